"""Navi: scenes in, a measured navigation policy out. This package is the training engine."""

__version__ = "0.1.0"
