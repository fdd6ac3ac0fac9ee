"""The benchmarks stage."""
