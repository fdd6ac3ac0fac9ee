"""Rows and documents that the pipeline writes."""
