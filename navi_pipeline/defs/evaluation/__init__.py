"""The evaluation stage."""
