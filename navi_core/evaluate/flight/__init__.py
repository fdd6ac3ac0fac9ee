"""Evaluation flights: subjects, courses, frozen starts."""
