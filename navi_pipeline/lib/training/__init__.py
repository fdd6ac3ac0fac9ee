"""Supervised training processes, local or as Ray jobs."""
