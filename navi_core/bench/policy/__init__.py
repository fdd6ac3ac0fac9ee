"""Benchmarks of the policy network: encoders, temporal cores, inference runtimes."""
