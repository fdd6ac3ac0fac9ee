"""Experiments: variants × seeds, measured in child processes; sweeps, ablations and benchmarks share one runner."""
