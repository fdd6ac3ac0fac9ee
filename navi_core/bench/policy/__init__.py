"""Benchmarks of the policy's parts: encoders, temporal cores, runtimes."""
