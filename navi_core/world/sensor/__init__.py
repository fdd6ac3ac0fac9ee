"""Spherical depth sensor: ray directions, noise, faults, panoramas."""
