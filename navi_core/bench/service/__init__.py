"""Benchmarks of the service: gate, round trip, continuous training."""
