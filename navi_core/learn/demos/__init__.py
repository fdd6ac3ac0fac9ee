"""Demonstrations as training sequences."""
