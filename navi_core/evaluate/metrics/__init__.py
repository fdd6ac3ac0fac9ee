"""Evaluation metrics: coverage, seen surface, point goals."""
