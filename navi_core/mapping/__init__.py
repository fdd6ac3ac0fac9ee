"""Occupancy mapping from a drone's own observations: grids, frontiers, shortest paths."""
