"""The demonstrations stage."""
