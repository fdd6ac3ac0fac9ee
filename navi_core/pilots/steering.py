"""Steering to a waypoint: turn to it, fly at it on all axes, and never into a surface of the scan.

The shield simulates the coming decision with the drone's own dynamics and takes the fastest command that keeps its
distance from every point of the current scan.
"""

import math

import numba
import numpy as np
import numpy.typing as npt

_SPEEDS = np.array([1.0, 0.75, 0.5, 0.3, 0.15, 0.06])
_DETOURS = np.array([0.0, 0.6, -0.6, 1.2, -1.2, 1.9, -1.9])
"""Directions tried against the wanted one [rad]."""
_GIVE_UP = 0.2
"""Speed share below which another direction is tried."""

Floats = npt.NDArray[np.float64]


@numba.njit(cache=True)
def _least_gap(
    command: Floats,
    velocity: Floats,
    cloud: npt.NDArray[np.float32],
    count: int,
    substeps: int,
    dt: float,
    smoothing: float,
) -> float:
    """Return the least distance to the scan over the substeps of a decision, in the drone's frame [m]."""
    x = y = z = yaw = 0.0
    f, v, s, w = velocity[0], velocity[1], velocity[2], velocity[3]
    keep = 1.0 - smoothing
    least = 1e30
    for _ in range(substeps):
        f = smoothing * command[0] + keep * f
        v = smoothing * command[1] + keep * v
        s = smoothing * command[2] + keep * s
        w = smoothing * command[3] + keep * w
        yaw += w * dt
        sin, cos = math.sin(yaw), math.cos(yaw)
        x += (s * cos - f * sin) * dt
        y += v * dt
        z += (-f * cos - s * sin) * dt
        for p in range(count):
            dx, dy, dz = cloud[p, 0] - x, cloud[p, 1] - y, cloud[p, 2] - z
            least = min(least, dx * dx + dy * dy + dz * dz)
    return math.sqrt(least)


@numba.njit(cache=True)
def steer(
    target: Floats,
    climb: Floats,
    active: npt.NDArray[np.bool_],
    velocity: Floats,
    points: npt.NDArray[np.float32],
    valid: npt.NDArray[np.bool_],
    limit: Floats,
    speeds: Floats,
    cruise: float,
    keep_out: float,
    substeps: int,
    dt: float,
    smoothing: float,
    actions: npt.NDArray[np.float32],
) -> None:
    """Write the action of each row.

    Args:
        target: (B, 2) where to fly, x and z in the drone's frame (−z ahead, +x right) [m].
        climb: (B,) height to gain [m].
        active: (B,) rows that have a target; the others only climb.
        velocity: (B, 4) of the substep before.
        points: (B, R, 3) what the rays met, in the drone's frame [m].
        valid: (B, R) whether they met anything.
        limit: (B,) share of the linear speed that the limiter leaves.
        speeds: (4,) the drone's limits [m/s, rad/s].
        cruise: Largest share of the speed that is used.
        keep_out: Distance kept from points [m].
        substeps: Substeps of a decision.
        dt: Their duration [s].
        smoothing: Share of the command in the new velocity.
        actions: (B, 4) written, in [−1, 1].
    """
    period = substeps * dt
    cloud = np.empty((points.shape[1], 3), np.float32)
    command = np.empty(4)
    for b in range(target.shape[0]):
        range_around = keep_out + (speeds[0] + speeds[2]) * period + 0.1
        count, now = 0, 1e30
        for r in range(points.shape[1]):
            if valid[b, r]:
                x, y, z = points[b, r, 0], points[b, r, 1], points[b, r, 2]
                squared = x * x + y * y + z * z
                if squared < range_around * range_around:
                    cloud[count, 0], cloud[count, 1], cloud[count, 2] = x, y, z
                    count += 1
                    now = min(now, squared)
        # Already too close: it is enough not to come closer.
        least_allowed = min(keep_out, math.sqrt(now) - 1e-4)
        dx, dz = target[b, 0], target[b, 1]
        distance = math.hypot(dx, dz) if active[b] else 0.0
        bearing = math.atan2(-dx, -dz) if distance > 1e-6 else 0.0
        # A blocked limiter sector slows every axis: turning away from it comes with the way itself.
        turn = max(-1.0, min(1.0, bearing / (speeds[3] * period)))
        up = max(-1.0, min(1.0, climb[b] / (speeds[1] * period)))
        wanted = min(cruise * speeds[0], distance / period)
        best_share, best_gap = -1.0, -1.0
        af = av = al = 0.0
        for d in range(_DETOURS.shape[0]):
            # The nose turns during the decision; aim for its mean heading.
            angle = bearing + _DETOURS[d] - 0.55 * turn * speeds[3] * period
            f, s = math.cos(angle) * wanted, -math.sin(angle) * wanted
            scale = max(1.0, abs(f) / speeds[0], abs(s) / speeds[2])
            f, s = f / scale / speeds[0], s / scale / speeds[2]
            for n in range(_SPEEDS.shape[0]):
                share = _SPEEDS[n]
                if share <= best_share:
                    break
                command[0] = f * share * speeds[0] * limit[b]
                command[1] = up * share * speeds[1] * limit[b]
                command[2] = s * share * speeds[2] * limit[b]
                command[3] = turn * speeds[3]
                gap = _least_gap(command, velocity[b], cloud, count, substeps, dt, smoothing) if count > 0 else 1e30
                if gap >= least_allowed:
                    best_share, best_gap = share, gap
                    af, av, al = f * share, up * share, s * share
                    break
            if best_share >= _GIVE_UP or (distance == 0.0 and best_gap >= 0.0):
                break
        actions[b, 0], actions[b, 1], actions[b, 2], actions[b, 3] = af, av, al, turn
