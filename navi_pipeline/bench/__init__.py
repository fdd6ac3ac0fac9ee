"""Benchmarks of the pipeline."""
