"""Dead reckoning: integrates a pose from the drone's own commands, without a map.

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
"""Mean scan-matching error below which collision-free flight is accepted without a search [m]."""
_SUBSTEPS_TRIED = 6
"""Most substeps searched one by one for a collision; further ones are blocked together."""
_NEAR_SURFACE = 0.35
"""Clearance beyond radius and path length below which a collision is considered possible [m]."""

Floats = npt.NDArray[np.float64]


@numba.njit(cache=True, inline="always")
def respond(before: float, command: float, response: tuple[float, float, float], limit: int) -> float:
    """Compute an axis' speed after a substep: first-order response, its change at most `response[limit]`."""
    after = response[0] * command + (1.0 - response[0]) * before
    return min(max(after, before - response[limit]), before + response[limit])


@numba.njit(cache=True)
def foresee(
    command: Floats, velocity: Floats, substeps: int, dt: float, response: tuple[float, float, float], way: Floats
) -> None:
    """Forward-simulate free flight over one decision.

    Args:
        command: (4,) commanded velocity, limiter applied.
        velocity: (4,) forward, vertical, lateral [m/s], yaw rate [rad/s].
        substeps: Substeps of a decision.
        dt: Their duration [s].
        response: See `DynamicsConfig.response`.
        way: (substeps, 3) positions after each substep, in the frame of the drone at the start [m]; written.
    """
    x = y = z = yaw = 0.0
    f, v, s, w = velocity[0], velocity[1], velocity[2], velocity[3]
    for k in range(substeps):
        f, v = respond(f, command[0], response, 1), respond(v, command[1], response, 1)
        s, w = respond(s, command[2], response, 1), respond(w, command[3], response, 2)
        yaw += w * dt
        sin, cos = math.sin(yaw), math.cos(yaw)
        x += (s * cos - f * sin) * dt
        y += v * dt
        z += (-f * cos - s * sin) * dt
        way[k, 0], way[k, 1], way[k, 2] = x, y, z


@numba.njit(cache=True)
def integrate(
    pose: Floats,
    velocity: Floats,
    command: Floats,
    blocked: int,
    substeps: int,
    dt: float,
    response: tuple[float, float, float],
    out_pose: Floats,
    out_velocity: Floats,
) -> None:
    """Integrate pose and velocity over one decision (numba), as `Dynamics.step` does, with given blocked substeps.

    Args:
        pose: (4,) x, y, z [m], yaw [rad].
        velocity: (4,) forward, vertical, lateral [m/s], yaw rate [rad/s].
        command: (4,) commanded velocity, limiter applied.
        blocked: Bit k set: substep k is reverted.
        substeps: Substeps of a decision.
        dt: Their duration [s].
        response: See `DynamicsConfig.response`.
        out_pose: (4,) written.
        out_velocity: (4,) written.
    """
    x, y, z, yaw = pose[0], pose[1], pose[2], pose[3]
    f, v, s, w = velocity[0], velocity[1], velocity[2], velocity[3]
    for k in range(substeps):
        f, v = respond(f, command[0], response, 1), respond(v, command[1], response, 1)
        s, w = respond(s, command[2], response, 1), respond(w, command[3], response, 2)
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
    """Compute the scan-matching residual of two scans: mean range error [m], each cut at 0.5 m; −1 below 8 pairs.

    Args:
        before: (4,) pose of the old scan.
        now: (4,) supposed pose of the new one.
        old: (Az,) horizontal ranges [m], ≤ 0 at a miss.
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
    response: tuple[float, float, float],
) -> None:
    """Update one row's dead-reckoned pose and velocity by one decision; scan matching decides about collisions.

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
        response: See `DynamicsConfig.response`.
    """
    start, speed = pose.copy(), velocity.copy()
    best_pose, best_velocity = np.empty(4), np.empty(4)
    integrate(start, speed, command, 0, substeps, dt, response, best_pose, best_velocity)
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
                integrate(start, speed, command, blocked, substeps, dt, response, tried_pose, tried_velocity)
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
    response: tuple[float, float, float],
) -> None:
    """Update the dead-reckoned poses of the rows (B, …) that are `moving`: `advance`, each row by itself."""
    for b in range(pose.shape[0]):
        if moving[b]:
            advance(
                pose[b], velocity[b], command[b], old[b], new[b], clearance[b], radius, substeps, dt, response
            )  # fmt: skip


class Trajectory:
    """Poses of the last decisions of B rows, to find where a late scan was taken from.

    Args:
        rows: Rows B.
        oldest: Largest age of a scan, K [decisions].

    Attributes:
        poses: (B, K + 1, 4) x, y, z [m], yaw [rad], the latest first.
    """

    def __init__(self, rows: int, oldest: int) -> None:
        self.poses: Floats = np.zeros((rows, oldest + 1, 4))

    def begin(self, rows: npt.NDArray[np.int64], pose: Floats) -> None:
        """Begin flights of some rows (n,) at the poses (n, 4)."""
        self.poses[rows] = pose[:, None]

    def follow(self, rows: npt.NDArray[np.int64], pose: Floats, age: npt.NDArray[np.int64]) -> Floats:
        """Append the present poses (n, 4) of some rows (n,); return those (n, 4) that scans of that age are from."""
        self.poses[rows] = np.concatenate([pose[:, None], self.poses[rows, :-1]], axis=1)
        taken: Floats = self.poses[rows, age]
        return taken

    def follow_all(self, pose: Floats, fresh: npt.NDArray[np.bool_], age: npt.NDArray[np.int64]) -> Floats:
        """Begin the rows that are `fresh` (B,), then `follow` with the poses (B, 4) and ages (B,) of all."""
        self.begin(np.flatnonzero(fresh), pose[fresh])
        return self.follow(np.arange(len(pose)), pose, age)
