"""Estimators: advantages, targets, normalisation, random draws, losses, schedules, drift smoothing."""
