"""Where held actions would lead, substep by substep, as if nothing stood in the way.

The substeps are those of `kernels/motion.py`. Whether a surface is met is asked afterwards for all places at once;
up to the first that is too near one, the path is that of the drone.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.motion import aim, command_push, turn

__all__ = ["fly_freely"]

Float32 = npt.NDArray[np.float32]


@numba.njit(cache=True, error_model="numpy")
def fly_freely(
    action: Float32,
    ahead: Float32,
    limits: Float32,
    distance: float,
    floor: float,
    smoothing: float,
    substep: float,
    per_decision: int,
    position: Float32,
    yaw: Float32,
    velocity: Float32,
    places: Float32,
    yaws: Float32,
    velocities: Float32,
) -> None:
    """Write places, yaws and velocities of every substep.

    Args:
        action: (B, 4).
        ahead: (B, Az) nearest hit ahead for a heading turned to each azimuth [m].
        limits: (4,) speeds of a full action [m/s, rad/s].
        distance: Front distance under which linear speed is limited [m].
        floor: Least share that the limiter leaves.
        smoothing: Share of the command in the new velocity.
        substep: Duration [s].
        per_decision: Substeps after which the limiter looks again; it never sees less far than at first.
        position: (B, 3) at the start [m].
        yaw: (B,) [rad].
        velocity: (B, 4) [m/s, rad/s].
        places: (K, B, 3), written.
        yaws: (K, B), written.
        velocities: (K, B, 4), written.
    """
    substeps, rows, azimuths = len(places), len(yaw), ahead.shape[1]
    push, front = np.empty_like(velocity), np.empty_like(yaw)
    where, heading, speed = position.copy(), yaw.copy(), velocity.copy()
    cos, sin = np.empty_like(yaw), np.empty_like(yaw)
    for k in range(substeps):
        if k % per_decision == 0:
            for b in range(rows):
                # Azimuths run clockwise, yaw counter-clockwise.
                bins = int(np.round((yaw[b] - heading[b]) * (azimuths / (2.0 * math.pi)))) % azimuths
                front[b] = max(ahead[b, 0], ahead[b, bins])
            command_push(action, front, limits, distance, floor, smoothing, push)
        turn(push, 1.0 - smoothing, substep, heading, speed, yaws[k])
        for b in range(rows):
            cos[b], sin[b] = np.cos(yaws[k, b]), np.sin(yaws[k, b])
        aim(substep, where, speed, cos, sin, places[k])
        where[:], heading[:], velocities[k] = places[k], yaws[k], speed
