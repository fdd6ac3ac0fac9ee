"""Benchmarks of the engine: rays, environment, compilation, GPU."""
