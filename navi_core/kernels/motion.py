"""A substep of the drone on the CPU, in the two halves that lie around its collision check.

`world/dynamics.py` has the same as tensor operations; both round every number alike. Sine and cosine come from
torch, so that the bits are the same.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["aim", "command_push", "settle", "turn"]

Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_TURN = np.float32(2.0 * math.pi)


@numba.njit(cache=True, error_model="numpy")
def command_push(
    action: Float32,
    front: Float32,
    limits: Float32,
    distance: float,
    floor: float,
    smoothing: float,
    push: Float32,
) -> None:
    """Turn actions into their share of the velocity.

    Args:
        action: (B, 4).
        front: (B,) nearest hit ahead [m].
        limits: (4,) speeds of a full action [m/s, rad/s].
        distance: Front distance under which linear speed is limited [m].
        floor: Least share that the limiter leaves.
        smoothing: Share of the command in the new velocity.
        push: (B, 4), written.
    """
    near, least, share = np.float32(distance), np.float32(floor), np.float32(smoothing)
    for b in range(len(front)):
        limit = min(max(front[b] / near, least), _ONE)
        for axis in range(4):
            command = min(max(action[b, axis], -_ONE), _ONE) * limits[axis]
            if axis < 3:
                command *= limit
            push[b, axis] = share * command


@numba.njit(cache=True, error_model="numpy")
def turn(push: Float32, keep: float, substep: float, yaw: Float32, velocity: Float32, turned: Float32) -> None:
    """Write the attempted velocity and the yaw that it leads to.

    Args:
        push: (B, 4) from `command_push`.
        keep: Share of the velocity that is kept.
        substep: Duration [s].
        yaw: (B,) [rad].
        velocity: (B, 4), updated to the attempted velocity.
        turned: (B,), written [rad] in [0, 2π).
    """
    dt, kept = np.float32(substep), np.float32(keep)
    for b in range(len(yaw)):
        for axis in range(4):
            velocity[b, axis] = push[b, axis] + kept * velocity[b, axis]
        angle = np.float32(np.fmod(yaw[b] + velocity[b, 3] * dt, _TURN))
        turned[b] = angle + _TURN if angle < _ZERO else angle


@numba.njit(cache=True, error_model="numpy")
def aim(
    substep: float,
    position: Float32,
    velocity: Float32,
    cos: Float32,
    sin: Float32,
    target: Float32,
) -> None:
    """Write where a substep would lead.

    Args:
        substep: Duration [s].
        position: (B, 3) [m].
        velocity: (B, 4) as attempted.
        cos: (B,) of the yaw after the substep: yaw turns before the drone moves.
        sin: (B,) of the same.
        target: (B, 3), written [m].
    """
    dt = np.float32(substep)
    for b in range(len(cos)):
        forward, vertical, lateral = velocity[b, 0], velocity[b, 1], velocity[b, 2]
        target[b, 0] = position[b, 0] + (lateral * cos[b] - forward * sin[b]) * dt
        target[b, 1] = position[b, 1] + vertical * dt
        target[b, 2] = position[b, 2] + (-forward * cos[b] - lateral * sin[b]) * dt


@numba.njit(cache=True, error_model="numpy")
def settle(
    blocked: Bool,
    target: Float32,
    turned: Float32,
    position: Float32,
    yaw: Float32,
    velocity: Float32,
    collided: Bool,
    attempted: Float32,
) -> None:
    """Move the rows that are free, and stop those that are not where they were.

    Args:
        blocked: (B,) is the target too near to a surface?
        target: (B, 3) from `aim` [m].
        turned: (B,) yaw after the substep [rad].
        position: (B, 3), updated.
        yaw: (B,), updated.
        velocity: (B, 4) as attempted, updated.
        collided: (B,), set where blocked.
        attempted: (B,) largest linear speed of a blocked substep [m/s], updated.
    """
    for b in range(len(blocked)):
        if blocked[b]:
            forward, vertical, lateral = velocity[b, 0], velocity[b, 1], velocity[b, 2]
            speed = np.sqrt(forward * forward + vertical * vertical + lateral * lateral)
            attempted[b] = max(attempted[b], speed)
            collided[b] = True
            velocity[b] = _ZERO
        else:
            position[b] = target[b]
            yaw[b] = turned[b]
