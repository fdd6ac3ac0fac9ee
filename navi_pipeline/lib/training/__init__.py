"""Supervised training children, locally or as Ray jobs."""
