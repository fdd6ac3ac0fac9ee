"""Ray casting: tracer interface, C++, CUDA and numba implementations, and a brute-force reference."""
