"""Compiled kernel libraries: build, cache, load (C++ and CUDA)."""
