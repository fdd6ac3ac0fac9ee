"""What a place memory tells a policy; the numbers that the policy's shape depends on."""

from __future__ import annotations

__all__ = ["AHEAD", "MOVED", "PLACE_INPUTS", "RINGS", "SECTORS"]

SECTORS = 16
"""Directions that are told apart; the first is ahead, the next to its right."""
RINGS = (1.6, 3.2, 6.4, 12.8)
"""Outer radii of the rings in which unseen floor is counted [m]."""
AHEAD = (3, 7)
"""Cells along the way to the frontier whose bearings are told."""
MOVED = 3
"""Numbers that tell how the drone moved since it looked last."""
PLACE_INPUTS = SECTORS * (2 + len(RINGS)) + 2 * len(AHEAD) + 2 + MOVED
"""Numbers that a place memory tells: see `kernels.place_compass.read`."""
