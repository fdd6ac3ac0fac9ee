"""Navi: scenes in, a measured navigation policy out. This package is the training engine."""

from navi_core.compiled import keep_compiled_code

__version__ = "0.1.0"

keep_compiled_code()
