"""Evaluation flights: subjects (policies and pilots), courses, frozen starts."""
