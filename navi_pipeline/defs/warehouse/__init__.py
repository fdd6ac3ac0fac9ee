"""The warehouse stage."""
