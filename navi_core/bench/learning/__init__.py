"""Benchmarks of learning: training throughput, memory tasks, preference learning, kernels of GAE and replay."""
