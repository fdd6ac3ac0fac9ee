"""Base class of pilots with a map: cruising height, path following, collision avoidance.

A flight begins with a climb or a descent to the cruising height; from there on it is level, so that a plane map is
enough. Steering turns to a waypoint and flies at it on all axes. Its shield simulates the coming decision with the
drone's own dynamics and takes the fastest command that keeps its distance from every point of the current scan.
"""

import math
from abc import abstractmethod
from typing import Any, Unpack

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.mapping.search import visible_rows
from navi_core.pilots.pilot import Pilot, PilotSettings, Scan, front_share, moved_scan, read_scan
from navi_core.world.dynamics import front_distance, limiter_bins
from navi_core.world.reckoning import Trajectory, foresee, integrate

SPEEDS = np.array([1.0, 0.75, 0.5, 0.3, 0.15, 0.06])
"""Shares of the wanted speed that steering tries."""
DETOURS = np.array([0.0, 0.6, -0.6, 1.2, -1.2, 1.9, -1.9])
"""Deviations from the wanted direction that steering tries [rad]."""
_LOOK_AROUND = 0.6
"""Yaw command of a pilot with a limited sensor that knows no way."""
SHIELD = 1.2
"""Distance up to which a limited pilot's shield reads its own map [m]."""
_GIVE_UP = 0.2
"""Speed fraction below which steering tries another direction."""
Floats = npt.NDArray[np.float64]


@numba.njit(cache=True)
def _least_gap(way: Floats, cloud: npt.NDArray[np.float32], count: int) -> float:
    """Return the least distance of the foreseen way (substeps, 3) from the scan's points [m]."""
    least = 1e30
    for k in range(way.shape[0]):
        for p in range(count):
            dx, dy, dz = cloud[p, 0] - way[k, 0], cloud[p, 1] - way[k, 1], cloud[p, 2] - way[k, 2]
            least = min(least, dx * dx + dy * dy + dz * dz)
    return math.sqrt(least)


# More than 60 lines: a third of it describes the arguments.
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
    response: tuple[float, float, float],
    actions: npt.NDArray[np.float32],
) -> None:
    """Compute each row's action: steer to a waypoint, with collision avoidance.

    Args:
        target: (B, 2) where to fly, x and z in the drone's frame (−z ahead, +x right) [m].
        climb: (B,) height to gain [m].
        active: (B,) rows that have a target; the others only climb.
        velocity: (B, 4) of the substep before.
        points: (B, R, 3) hit points of the rays, in the drone's frame [m].
        valid: (B, R) whether the rays hit.
        limit: (B,) share of the linear speed that the limiter leaves.
        speeds: (4,) the drone's limits [m/s, rad/s].
        cruise: Largest share of the speed that is used.
        keep_out: Distance kept from points [m].
        substeps: Substeps of a decision.
        dt: Their duration [s].
        response: See `DynamicsConfig.response`.
        actions: (B, 4) written, in [−1, 1].
    """
    period = substeps * dt
    cloud = np.empty((points.shape[1], 3), np.float32)
    command, way = np.empty(4), np.empty((substeps, 3))
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
        for d in range(DETOURS.shape[0]):
            # The nose turns during the decision; aim for its mean heading.
            angle = bearing + DETOURS[d] - 0.55 * turn * speeds[3] * period
            f, s = math.cos(angle) * wanted, -math.sin(angle) * wanted
            scale = max(1.0, abs(f) / speeds[0], abs(s) / speeds[2])
            f, s = f / scale / speeds[0], s / scale / speeds[2]
            for n in range(SPEEDS.shape[0]):
                share = SPEEDS[n]
                if share <= best_share:
                    break
                command[0] = f * share * speeds[0] * limit[b]
                command[1] = up * share * speeds[1] * limit[b]
                command[2] = s * share * speeds[2] * limit[b]
                command[3] = turn * speeds[3]
                foresee(command, velocity[b], substeps, dt, response, way)
                gap = _least_gap(way, cloud, count) if count > 0 else 1e30
                if gap >= least_allowed:
                    best_share, best_gap = share, gap
                    af, av, al = f * share, up * share, s * share
                    break
            if best_share >= _GIVE_UP or (distance == 0.0 and best_gap >= 0.0):
                break
        actions[b, 0], actions[b, 1], actions[b, 2], actions[b, 3] = af, av, al, turn


@numba.njit(cache=True)
def follow(
    before: Floats, now: Floats, velocity: Floats, command: Floats, moving: npt.NDArray[np.bool_], tolerance: float,
    substeps: int, dt: float, response: tuple[float, float, float],
) -> None:  # fmt: skip
    """Update velocity estimates (B, 4) by the dynamics model; 0 where the pose shows a collision, off by more [m]."""
    for b in range(before.shape[0]):
        if moving[b]:
            pose, speed = np.empty(4), np.empty(4)
            integrate(before[b], velocity[b], command[b], 0, substeps, dt, response, pose, speed)
            off = abs(pose[0] - now[b, 0]) + abs(pose[1] - now[b, 1]) + abs(pose[2] - now[b, 2])
            velocity[b] = speed if off < tolerance else np.zeros(4)


CELL = 0.1
"""Edge of a map cell [m]."""
_PATH = 512
"""Most cells of a stored path."""
_PATIENCE = 20
"""Timeout of a climb: decisions until an unreached height is given up, and as many for each metre of a later climb."""


class MapSettings(PilotSettings, total=False):
    """Keyword settings of every pilot with a map; see `MapPilot`."""

    cruise_height: float
    speed: float
    margin: float
    comfort: float


class MapPilot(Pilot):
    """Base class of the frontier pilot and the planner: path following on a map, at a cruising height.

    Args:
        cruise_height: Height above the floor that is flown at; low rooms are flown at half height [m].
        speed: Largest share of the drone's speed, in (0, 1].
        margin: Distance kept to surfaces beyond the drone's radius [m].
        comfort: Distance to surfaces below which a way costs more [m].
        lookahead: Farthest point of the path that is flown at straight [m].
        replan: Decisions after which the way is searched anew.
        settings: Those of `Pilot`.
    """

    finishes = True

    def __init__(
        self,
        *,
        cruise_height: float = 1.2,
        speed: float = 1.0,
        margin: float = 0.07,
        comfort: float = 0.5,
        lookahead: float = 2.5,
        replan: int = 4,
        **settings: Unpack[PilotSettings],
    ) -> None:
        super().__init__(**settings)
        self._require(
            cruise_height=(cruise_height, 0.1, 100.0),
            speed=(speed, 0.05, 1.0),
            margin=(margin, 0.0, 1.0),
            comfort=(comfort, 0.0, 5.0),
            lookahead=(lookahead, 0.1, 20.0),
            replan=(replan, 1, math.inf),
        )
        self.cruise_height, self.speed, self.margin = cruise_height, speed, margin
        self.comfort, self.lookahead, self.replan = comfort, lookahead, replan
        d = self.dynamics
        self._limits = np.array([*d.max_speed, d.max_yaw_rate], np.float64)
        # A cell's centre lies up to half a diagonal from what is in the cell.
        self._hard = math.ceil(((d.radius + margin) / CELL) ** 2)

    @abstractmethod
    def _locate(self, scan: Scan, fresh: npt.NDArray[np.bool_]) -> Floats:
        """Localise the rows: poses (B, 4) x, y, z [m], yaw [rad], in the frame of the row's map."""

    @abstractmethod
    def _survey(self, scan: Scan, pose: Floats, plane: Floats, settled: npt.NDArray[np.bool_]) -> None:
        """Update the maps of the rows at their cruising height with their scans."""

    @abstractmethod
    def _route(self, pose: Floats, due: npt.NDArray[np.bool_]) -> None:
        """Plan paths for the rows that are `due`; written into `_path` and `_length`."""

    @abstractmethod
    def _grids(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], Floats]:
        """Return the obstacle-distance grids (S, X, Z), each row's grid (B,), and each row's corner (B, 2) [m]."""

    def _allocate(self, batch: int, device: torch.device) -> None:  # noqa: ARG002 (the interface's arguments)
        self._velocity = np.zeros((batch, 4))
        self._trajectory = Trajectory(batch, self.oldest)
        self._plane = np.zeros(batch)
        self._settled = np.zeros(batch, bool)
        self._deadline = np.zeros(batch, np.int64)
        self._path = np.zeros((batch, _PATH), np.int32)
        self._length = np.zeros(batch, np.int64)
        self._age = np.zeros(batch, np.int64)
        self._command = np.zeros((batch, 4))
        self._limiter = np.ones(batch)
        self._idle = np.zeros(batch, np.int64)

    def _forget(self, rows: Tensor) -> None:
        gone = rows.cpu().numpy()
        self._velocity[gone] = 0.0
        self._settled[gone] = False
        self._length[gone] = 0
        self._age[gone] = 0
        self._idle[gone] = 0

    def executed(self, actions: Tensor) -> None:
        """Record the executed actions, (B, 4), for dead reckoning."""
        command = np.clip(actions.detach().cpu().numpy().astype(np.float64), -1.0, 1.0) * self._limits
        command[:, :3] *= self._limiter[:, None]
        self._command = command

    def _decide(self, obs: Tensor) -> Tensor:
        d = self.dynamics
        scan = read_scan(obs, self.max_distance)
        step = self._step.cpu().numpy()
        pose = self._locate(scan, step == 0)
        # A late scan is drawn from the pose that it was taken from; the shield needs its points from the present one.
        late = self._scan_age is not None
        taken = pose if self._scan_age is None else self._trajectory.follow_all(pose, step == 0, self._scan_age)
        near = moved_scan(scan, taken, pose) if late else scan
        bins = limiter_bins(obs.shape[2], obs.shape[3], d.limiter_elevation_degrees)
        front = front_distance(torch.from_numpy(scan.depth), torch.from_numpy(scan.valid), obs.shape[2], bins).numpy()
        self._limiter = np.clip(front.astype(np.float64) / d.limiter_distance, d.limiter_floor, 1.0)
        if late:
            self._limiter = front_share(near, d)
        self._find_height(scan, pose, step)
        self._survey(scan, taken, self._plane, self._settled)
        due = self._settled & ((self._age >= self.replan) | (self._length == 0))
        self._route(pose, due)
        self._age = np.where(due, 0, self._age) + 1
        target, flying = self._ahead(pose)
        actions = np.zeros((len(pose), 4), np.float32)
        near = self._shielded(near, pose)
        steer(
            target, self._plane - pose[:, 1], flying, self._velocity, near.points, near.valid, self._limiter,
            self._limits, self.speed, d.radius + self.margin, d.steps_per_decision, d.substep, d.response, actions,
        )  # fmt: skip
        if self.limited:
            # Nowhere to fly to, as far as it sees: it looks around.
            actions[self._settled & ~flying, 3] = _LOOK_AROUND
        self._idle = np.where(self._settled & ~flying, self._idle + 1, 0)
        if self.done_after:
            self.done = torch.from_numpy(self._idle >= self.done_after)
            actions[self._idle >= self.done_after] = 0.0
        self.executed(torch.from_numpy(actions))
        return torch.from_numpy(actions).to(obs.device)

    def _shielded(self, scan: Scan, pose: Floats) -> Scan:  # noqa: ARG002 (the interface's arguments)
        """Return the scan that the shield keeps its distance from; a map of the flight may add to it."""
        return scan

    def _find_height(self, scan: Scan, pose: Floats, step: npt.NDArray[np.int64]) -> None:
        """Set the cruising height of new rows, and flag the rows that have reached it or run out of time."""
        fresh = step == 0
        if fresh.any():
            wanted = self._climb(scan)
            self._plane = np.where(fresh, pose[:, 1] + np.where(np.abs(wanted) < 0.15, 0.0, wanted), self._plane)
            self._deadline = np.where(fresh, _PATIENCE, self._deadline)
        late = ~self._settled & (step >= self._deadline)
        self._plane = np.where(late, pose[:, 1], self._plane)
        self._settled |= np.abs(pose[:, 1] - self._plane) < 0.05

    def _fly_to_height(self, row: int, height: float, now: float) -> None:
        """Command a height change of one row to a new cruising height, both in the frame of `_locate` [m]."""
        self._plane[row], self._settled[row], self._length[row] = height, False, 0
        self._deadline[row] = int(self._step[row]) + math.ceil(_PATIENCE * (1.0 + abs(height - now)))

    def _climb(self, scan: Scan) -> Floats:
        """Compute the climb (B,) [m] from each row's height to its cruising height."""
        height = scan.points[:, :, 1]
        steep = np.abs(height) > 0.5 * scan.depth
        # The lowest and highest surfaces, but for the few rays that leave through an opening.
        down = np.where(scan.valid & steep & (height < 0), height, np.nan)
        up = np.where(scan.valid & steep & (height > 0), height, np.nan)
        # Nothing below: the drone takes its own height for the right one. Nothing above: there is room.
        floor, ceiling = _percentile(down, 5, -self.cruise_height), _percentile(up, 95, math.inf)
        half = np.maximum((ceiling - floor) / 2.0, self.dynamics.radius + 0.05)
        level: Floats = floor + np.minimum(self.cruise_height, half)
        return level

    def _ahead(self, pose: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return the lookahead waypoint in the drone's frame (B, 2) [m], and a mask of the rows that have one."""
        near, grid, corner = self._grids()
        place = (pose[:, [0, 2]] - corner) / CELL
        point = np.zeros((len(pose), 2))
        visible_rows(near, grid, self._path, self._length, place, self._hard, self.lookahead / CELL, point)
        gap = (point - place) * CELL
        sin, cos = np.sin(pose[:, 3]), np.cos(pose[:, 3])
        target = np.stack([gap[:, 0] * cos - gap[:, 1] * sin, gap[:, 0] * sin + gap[:, 1] * cos], axis=1)
        return target, self._settled & (self._length > 0)


def _percentile(values: npt.NDArray[np.float32], share: float, otherwise: float) -> npt.NDArray[Any]:
    """Compute a percentile of each row's (B, R) numbers, ignoring NaN; `otherwise` for a row without any."""
    empty: npt.NDArray[np.bool_] = np.all(np.isnan(values), axis=1, keepdims=True)
    known = np.where(empty, np.float32(0.0), values)
    return np.where(empty[:, 0], otherwise, np.nanpercentile(known, share, axis=1))
