"""Motion primitives: the named actions of a discrete policy, one table for policy, world and service."""

from __future__ import annotations

__all__ = ["MOTION_PRIMITIVES"]

MOTION_PRIMITIVES: dict[str, tuple[float, float, float, float]] = {
    "hover": (0.0, 0.0, 0.0, 0.0),
    "forward": (1.0, 0.0, 0.0, 0.0),
    "forward_slow": (0.4, 0.0, 0.0, 0.0),
    "backward": (-0.5, 0.0, 0.0, 0.0),
    "climb": (0.0, 1.0, 0.0, 0.0),
    "descend": (0.0, -1.0, 0.0, 0.0),
    "left": (0.0, 0.0, -1.0, 0.0),
    "right": (0.0, 0.0, 1.0, 0.0),
    "turn_left": (0.0, 0.0, 0.0, 1.0),
    "turn_right": (0.0, 0.0, 0.0, -1.0),
    "turn_left_slow": (0.0, 0.0, 0.0, 0.4),
    "turn_right_slow": (0.0, 0.0, 0.0, -0.4),
    "curve_left": (1.0, 0.0, 0.0, 0.5),
    "curve_right": (1.0, 0.0, 0.0, -0.5),
    "curve_left_slow": (0.4, 0.0, 0.0, 0.7),
    "curve_right_slow": (0.4, 0.0, 0.0, -0.7),
    "forward_climb": (1.0, 0.5, 0.0, 0.0),
    "forward_descend": (1.0, -0.5, 0.0, 0.0),
}
"""Name → action (forward, vertical, lateral, yaw), each in [−1, 1]; + lateral is right, + yaw counter-clockwise.

The order is part of a discrete policy's meaning: new primitives go to the end."""
