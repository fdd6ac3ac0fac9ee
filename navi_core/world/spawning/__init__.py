"""Spawn poses: pools, start poses, scene fitness."""
