"""Compiled kernel libraries (C++ and CUDA): build, cache, load."""
