"""Estimators: advantages, targets, normalisation, noise, losses, schedules."""
