"""Speed shield by a flight's own occupancy map: slows commands towards what is occupied or not known to be free."""

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.pilots.map_pilot import DETOURS, SHIELD, SPEEDS
from navi_core.pilots.pilot import front_share, moved_scan, read_scan, with_blocked_cells, with_points
from navi_core.world.occupancy_memory import OccupancyMemory
from navi_core.world.reckoning import foresee

MARGIN = 0.07
"""Distance kept beyond the drone's radius [m]; that of the pilots with a map."""
BLIND = 0.2
"""Largest share of the speed towards an azimuth that the scan does not measure: turn first, then fly."""
NEARBY = 1.5
"""Distance up to which the points of former scans count [m]."""
_SLOW = 0.3
"""Share of the commanded speed below which directions beside it are tried."""

Floats = npt.NDArray[np.float64]


@numba.njit(cache=True, nogil=True)
def _keeps_away(way: Floats, cloud: npt.NDArray[np.float32], allowed: Floats) -> bool:
    """Return whether a foreseen way (substeps, 3) keeps the `allowed` (N,) distance of each point."""
    for k in range(way.shape[0]):
        for p in range(len(allowed)):
            gap = (cloud[p, 0] - way[k, 0]) ** 2 + (cloud[p, 1] - way[k, 1]) ** 2 + (cloud[p, 2] - way[k, 2]) ** 2
            if gap < allowed[p] * allowed[p]:
                return False
    return True


@numba.njit(cache=True, nogil=True)
def limit_speed(
    action: npt.NDArray[np.float32],
    velocity: Floats,
    points: npt.NDArray[np.float32],
    valid: npt.NDArray[np.bool_],
    reach: Floats,
    turned: Floats,
    limit: Floats,
    speeds: Floats,
    keep_out: Floats,
    substeps: int,
    dt: float,
    response: Floats,
) -> None:
    """Scale the level commands so that the coming decision keeps its distance from all points; no climb, yaw stays.

    Towards azimuths that the scan does not measure the speed is at most `BLIND` of the limit ahead. Where less than
    `_SLOW` of what remains is safe, the horizontal command is also turned sideways.

    Args:
        action: (B, 4) in [−1, 1]; changed.
        velocity: (B, 4) of the drones [m/s, rad/s].
        points: (B, R, 3) in the drone's frame [m].
        valid: (B, R) whether a point is there.
        reach: (B, Az) horizontal range of the level rays of the scan; 0 for unknown ones [m].
        turned: (B,) turn since the scan was taken [rad].
        limit: (B,) share of the linear speed that the limiter leaves.
        speeds: (B, 4) the drones' limits [m/s, rad/s].
        keep_out: (B,) distance kept from points [m]; to those that are closer a drone only has to come no closer.
        substeps: Substeps of a decision.
        dt: Their duration [s].
        response: (B, 3) see `DynamicsConfig.response`.
    """
    cloud, allowed, command = np.empty((points.shape[1], 3), np.float32), np.empty(points.shape[1]), np.empty(4)
    way = np.empty((substeps, 3))
    bins = reach.shape[1]
    for b in range(action.shape[0]):
        most_ahead, most_up, most_right, most_turn = speeds[b]
        around = keep_out[b] + np.hypot(np.hypot(most_ahead, most_right), most_up) * substeps * dt + 0.1
        answer, count = (response[b, 0], response[b, 1], response[b, 2]), 0
        for r in range(points.shape[1]):
            squared = points[b, r, 0] ** 2 + points[b, r, 1] ** 2 + points[b, r, 2] ** 2
            if valid[b, r] and squared < around * around:
                cloud[count], allowed[count] = points[b, r], min(keep_out[b], np.sqrt(squared) - 1e-4)
                count += 1
        best, f, s = 0.0, np.float32(0.0), np.float32(0.0)
        command[1] = 0.0
        for d in range(DETOURS.shape[0]):
            cos, sin = np.cos(DETOURS[d]), np.sin(DETOURS[d])
            ahead, side = action[b, 0] * most_ahead, action[b, 2] * most_right
            forward, right = ahead * cos + side * sin, side * cos - ahead * sin
            bin = np.floor((np.arctan2(right, forward) - turned[b]) / (2.0 * np.pi) * bins)
            blind = reach[b, int(bin) % bins] == 0.0 or reach[b, int(bin + 1) % bins] == 0.0
            most = min(1.0, BLIND * most_ahead / max(np.hypot(forward, right), 1e-9)) if blind else 1.0
            for n in range(SPEEDS.shape[0]):
                share = SPEEDS[n] * most
                if share <= best:
                    break
                command[0], command[2] = forward * share * limit[b], right * share * limit[b]
                command[3] = action[b, 3] * most_turn
                foresee(command, velocity[b], substeps, dt, answer, way)
                if _keeps_away(way, cloud, allowed[:count]):
                    best = share
                    f, s = forward / most_ahead * best, right / most_right * best
                    break
            if best >= _SLOW * most:
                break
        action[b, 0], action[b, 1], action[b, 2] = f, 0.0, s


class Shield:
    """Shield of a policy's commands by its scan and its occupancy memory.

    Args:
        memory: Occupancy memory of the rows, updated with the latest observations.
        margin: Distance kept beyond the drone's radius [m].
    """

    def __init__(self, memory: OccupancyMemory, margin: float = MARGIN) -> None:
        d = memory.dynamics
        self._memory, self._margin = memory, margin
        self._limits = np.array([*d.max_speed, d.max_yaw_rate], np.float64)
        self._body = torch.tensor([[1.0, d.radius, d.smoothing]], dtype=torch.float64)

    def apply(
        self,
        action: Tensor,
        obs: Tensor,
        age: Tensor | None = None,
        rows: Tensor | None = None,
        bodies: Tensor | None = None,
    ) -> Tensor:
        """Return the actions (n, 4), level, clamped to [−1, 1] and slowed where the way is not known to be free.

        The height is held, as the pilots with a map do: what a sensor sees above and below depends on it, and a policy
        that may sink does so.

        Args:
            action: (n, 4) commands of the policy.
            obs: (n, 3, Az, El) the latest observations.
            age: (n,) their ages [decisions]; None for present ones.
            rows: (n,) rows of the memory; all of them where it is None.
            bodies: (n, 3) their bodies, see `world.dynamics.Bodies`; None for the memory's dynamics.
        """
        d, memory = self._memory.dynamics, self._memory
        chosen = np.arange(memory.rows) if rows is None else rows.cpu().numpy()
        scan, limiter = read_scan(obs, memory.max_distance), memory.limiter()[chosen]
        reach, turned = scan.reach, np.zeros(len(obs))
        if age is not None:
            taken, now = memory.scan_poses(age, chosen)
            scan, turned = moved_scan(scan, taken, now), now[:, 3] - taken[:, 3]
            limiter = front_share(scan, d)
        body = self._body.expand(len(obs), 3) if bodies is None else bodies
        factor, radius, smoothing = body.to("cpu", torch.float64).numpy().T
        speeds = self._limits * factor[:, None]
        response = np.stack([smoothing, *(np.full_like(factor, change) for change in d.changes)], axis=1)
        points, valid = memory.nearby(scan.points, scan.valid, chosen, NEARBY)
        scan = with_points(scan, points, valid)
        scan = with_blocked_cells(scan, memory.marks[chosen], memory.pose[chosen], memory.cell, SHIELD)
        slowed = action.detach().to("cpu", torch.float32).clamp(-1.0, 1.0).numpy().copy()
        limit_speed(
            slowed, memory.moved(chosen) * self._limits, scan.points, scan.valid, reach, turned, limiter, speeds,
            radius + self._margin, d.steps_per_decision, d.substep, response,
        )  # fmt: skip
        memory.executed(slowed, chosen)
        return torch.from_numpy(slowed).to(action)
