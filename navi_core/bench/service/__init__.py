"""Benchmarks of the service: safety gate, round trip, continuous training."""
