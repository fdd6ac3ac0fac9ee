"""Mesh kernels: polygon triangulation and edge collapse."""
