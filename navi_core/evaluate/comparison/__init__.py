"""Paired comparisons: pairing, intervals, corrections for several verdicts."""
