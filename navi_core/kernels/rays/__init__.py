"""Ray casting: the tracer, its C++, CUDA and numba paths, and a brute-force twin."""
