"""The studies stage."""
