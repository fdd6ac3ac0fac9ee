"""Evaluations, verdicts and promotions of the pipeline."""
