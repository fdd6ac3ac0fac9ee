"""Pairs of computations that must give the same bits, or differ by a known rounding."""
