"""Benchmarks of learning: speed of a run, memory tasks, preferences, off-policy learners."""
