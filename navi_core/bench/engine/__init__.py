"""Benchmarks of the engine: ray casting, environment, scene compilation, GPU."""
