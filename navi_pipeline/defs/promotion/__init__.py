"""The promotion stage."""
