"""Scenes and demonstrations of the pipeline."""
