"""Benchmarks of the pipeline: warehouse throughput and fault tolerance of studies."""
