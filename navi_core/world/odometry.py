"""Dead reckoning: a drone's pose integrated from its own commands, without a map.

The dynamics are known, so the only surprise is a collision, which reverts a substep and stops the drone. A decision of
n substeps has 2ⁿ ways to be blocked. The drone finds out which one happened by matching scans: surfaces that it saw
before must lie where it sees them now.
"""

import math

import numba
import numpy as np
import numpy.typing as npt

PERIOD = 2.0 * math.pi

_TRUSTED_MISFIT = 0.02
"""Mean misfit under which free flight is believed without a further look [m]."""
_SUBSTEPS_TRIED = 6
"""More substeps than these are blocked together in the search for a collision."""
_NEAR_SURFACE = 0.35
"""Clearance above radius and way within which a collision is thought possible at all [m]."""

Floats = npt.NDArray[np.float64]


@numba.njit(cache=True)
def integrate(
    pose: Floats,
    velocity: Floats,
    command: Floats,
    blocked: int,
    substeps: int,
    dt: float,
    smoothing: float,
    out_pose: Floats,
    out_velocity: Floats,
) -> None:
    """Integrate one decision as `world.dynamics` does.

    Args:
        pose: (4,) x, y, z [m], yaw [rad].
        velocity: (4,) forward, vertical, lateral [m/s], yaw rate [rad/s].
        command: (4,) commanded velocity, limiter applied.
        blocked: Bit k set: substep k is reverted.
        substeps: Substeps of a decision.
        dt: Their duration [s].
        smoothing: Share of the command in the new velocity.
        out_pose: (4,) written.
        out_velocity: (4,) written.
    """
    x, y, z, yaw = pose[0], pose[1], pose[2], pose[3]
    f, v, s, w = velocity[0], velocity[1], velocity[2], velocity[3]
    keep = 1.0 - smoothing
    for k in range(substeps):
        f = smoothing * command[0] + keep * f
        v = smoothing * command[1] + keep * v
        s = smoothing * command[2] + keep * s
        w = smoothing * command[3] + keep * w
        if (blocked >> k) & 1:
            f = v = s = w = 0.0
            continue
        yaw = (yaw + w * dt) % PERIOD
        sin, cos = math.sin(yaw), math.cos(yaw)
        x += (s * cos - f * sin) * dt
        y += v * dt
        z += (-f * cos - s * sin) * dt
    out_pose[0], out_pose[1], out_pose[2], out_pose[3] = x, y, z, yaw
    out_velocity[0], out_velocity[1], out_velocity[2], out_velocity[3] = f, v, s, w


@numba.njit(cache=True)
def _misfit(before: Floats, now: Floats, old: Floats, new: Floats) -> float:
    """Return the mean misfit of two horizontal scans under a motion [m], errors cut at half a metre.

    Args:
        before: (4,) pose of the old scan.
        now: (4,) supposed pose of the new one.
        old: (Az,) horizontal ranges, ≤ 0 where nothing was met [m].
        new: (Az,) the same, of the new scan.
    """
    bins = old.shape[0]
    total, count = 0.0, 0
    for i in range(bins):
        if old[i] <= 0.0 or old[i] > 8.0:
            continue
        angle = PERIOD * i / bins - before[3]
        px = before[0] + old[i] * math.sin(angle) - now[0]
        pz = before[2] - old[i] * math.cos(angle) - now[2]
        reach = math.hypot(px, pz)
        bearing = ((math.atan2(px, -pz) + now[3]) % PERIOD) / PERIOD * bins
        j = int(bearing) % bins
        a, b = new[j], new[(j + 1) % bins]
        # Across an edge there is no surface between two bins to compare with.
        if a <= 0.0 or b <= 0.0 or abs(a - b) > 0.3 * min(a, b):
            continue
        share = bearing - math.floor(bearing)
        # A plane's inverse range is nearly linear in the bearing.
        expected = 1.0 / ((1.0 - share) / a + share / b)
        total += min(abs(expected - reach), 0.5)
        count += 1
    return total / count if count >= 8 else -1.0


@numba.njit(cache=True)
def advance(
    pose: Floats,
    velocity: Floats,
    command: Floats,
    old: Floats,
    new: Floats,
    clearance: float,
    radius: float,
    substeps: int,
    dt: float,
    smoothing: float,
) -> None:
    """Move one row's reckoned pose and velocity by one decision, collisions included.

    Args:
        pose: (4,) updated.
        velocity: (4,) updated.
        command: (4,) commanded velocity, limiter applied.
        old: (Az,) horizontal ranges before the decision, ≤ 0 for a miss [m].
        new: (Az,) those after it.
        clearance: Nearest surface seen before the decision [m].
        radius: Radius of the drone [m].
        substeps: Substeps of a decision.
        dt: Their duration [s].
        smoothing: Share of the command in the new velocity.
    """
    start, speed = pose.copy(), velocity.copy()
    best_pose, best_velocity = np.empty(4), np.empty(4)
    integrate(start, speed, command, 0, substeps, dt, smoothing, best_pose, best_velocity)
    way = math.sqrt((best_pose[0] - start[0]) ** 2 + (best_pose[1] - start[1]) ** 2 + (best_pose[2] - start[2]) ** 2)
    if clearance < radius + way + _NEAR_SURFACE:
        best = _misfit(start, best_pose, old, new)
        if best > _TRUSTED_MISFIT:
            tried_pose, tried_velocity = np.empty(4), np.empty(4)
            bits = min(substeps, _SUBSTEPS_TRIED)
            for pattern in range(1, 1 << bits):
                blocked = pattern
                if substeps > bits and (pattern >> (bits - 1)) & 1:
                    blocked |= ((1 << (substeps - bits)) - 1) << bits
                integrate(start, speed, command, blocked, substeps, dt, smoothing, tried_pose, tried_velocity)
                misfit = _misfit(start, tried_pose, old, new)
                # A collision must explain the scan clearly better than free flight does.
                if 0.0 <= misfit < 0.8 * best:
                    best = misfit
                    best_pose[:], best_velocity[:] = tried_pose, tried_velocity
    pose[:], velocity[:] = best_pose, best_velocity


@numba.njit(cache=True)
def reckon(
    pose: Floats,
    velocity: Floats,
    command: Floats,
    old: Floats,
    new: Floats,
    clearance: Floats,
    moving: npt.NDArray[np.bool_],
    radius: float,
    substeps: int,
    dt: float,
    smoothing: float,
) -> None:
    """Apply `advance` to the rows (B, …) that are `moving`, each by itself."""
    for b in range(pose.shape[0]):
        if moving[b]:
            advance(
                pose[b], velocity[b], command[b], old[b], new[b], clearance[b], radius, substeps, dt, smoothing
            )  # fmt: skip
