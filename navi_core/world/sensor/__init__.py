"""Spherical depth sensor: directions, noise, faults, panoramas."""
