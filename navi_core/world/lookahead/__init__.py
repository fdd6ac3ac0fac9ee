"""Simulated lookahead: held motions flown in the distance field."""
