"""Evaluation metrics: floor coverage, seen surface."""
