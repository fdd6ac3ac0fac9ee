"""Occupancy memory: map of the flight so far and its frontier features, as inputs of a policy.

Every row keeps a map of its flight, drawn from its own observations (`mapping.occupancy_map`). Its features are
direction and distance of free floor that it has not seen; with a goal, of the way there, through unknown cells where
needed. Nothing privileged is read: the pose is reckoned from the actions and observations, collisions included
(`world.reckoning.reckon`), or given by the caller. A recurrent state of 128 numbers cannot hold a floor plan; this can.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.config import DynamicsConfig, EnvConfig
from navi_core.config.policy import MOVED, OCCUPANCY_INPUTS
from navi_core.errors import ConfigError
from navi_core.mapping.frontier_features import frontier_features
from navi_core.mapping.level_rays import read_levels
from navi_core.mapping.near_hits import SPAN, keep_points, points_nearby
from navi_core.mapping.occupancy_map import HIT, draw
from navi_core.world.dynamics import limiter_bins
from navi_core.world.reckoning import Trajectory, reckon

CELL = 0.4
"""Edge of a cell [m]."""
SIZE = 160
"""Cells of a map along each axis: 64 m."""
VIEW_RADIUS = 3.2
"""View radius within which floor counts as seen [m], as in the evaluation protocol."""
SIGHT = 6.4
"""Length of the straight flights that the features evaluate [m]."""

_SCROLL = 16.0
"""Distance from the map's centre at which the map scrolls [m]."""
_STOREY = 1.5
"""Height difference to the map at which a new map (storey) begins [m]."""
_JUMP = 2.0
"""Limit of the motion features along one axis, in a decision's maximum; larger jumps of a pose are clipped."""

_STILL = 0.01
"""Motion of a decision, as a share of its maximum, below which a drone has not moved."""
_PUSHED = 0.2
"""Commanded speed from which a drone that does not move has bumped [m/s]."""

Floats = npt.NDArray[np.float64]


def pose_rows(position: Tensor, yaw: Tensor) -> Tensor:
    """Pack positions (n, 3) [m] and yaws (n,) or (n, 1) [rad] into (n, 4) poses for an occupancy memory."""
    return torch.cat((position, yaw.view(-1, 1)), dim=1)


class OccupancyMemory:
    """Occupancy maps of B rows, updated from observations and dead-reckoned or given poses.

    Args:
        rows: Rows B.
        azimuth_bins: Az of the observations.
        elevation_bins: El of the observations.
        dynamics: Dynamics of the drone, for dead reckoning.
        max_distance: Range of the sensor, M [m].
        oldest: Largest age of an observation [decisions], of a sensor with a delay: the map is drawn from the pose that
            it was taken from. For given poses alone.
        cell: Edge of a cell [m]; the map's edge stays 64 m.
        stride: Cells for one of `config.policy.AHEAD`; by default the waypoints of the bearings stay in place.
        shielded: Keep what a shield reads: points of surfaces nearby, see `nearby`, and a hit where a command did not
            move the drone, see `executed`. For given poses alone.

    `dynamics`, `max_distance` and `cell` are attributes of the same names.
    """

    def __init__(
        self,
        rows: int,
        azimuth_bins: int,
        elevation_bins: int,
        dynamics: DynamicsConfig,
        max_distance: float,
        *,
        cell: float = CELL,
        stride: int | None = None,
        oldest: int = 0,
        shielded: bool = False,
    ) -> None:
        self.rows, self._shape, self.dynamics = rows, (3, azimuth_bins, elevation_bins), dynamics
        self._oldest, self._shielded = oldest, shielded
        self._command = np.zeros((rows, 4))
        self._near = np.full((rows, SPAN, SPAN, 3) if shielded else (rows, 0), np.nan, np.float32)
        self.cell, self._size, self._stride = cell, round(SIZE * CELL / cell), stride or max(1, round(CELL / cell))
        self._trajectory = Trajectory(rows, oldest)
        angle = np.abs(np.linspace(math.pi / 2, -math.pi / 2, elevation_bins))
        level = np.flatnonzero(angle <= angle.min() + 1e-9)
        self._levels = (int(level[0]), int(level[-1]))
        self._flat = math.cos(float(angle.min()))
        self._ahead = limiter_bins(azimuth_bins, elevation_bins, dynamics.limiter_elevation_degrees)
        self.max_distance, self._scale = max_distance, math.log1p(max_distance)
        self._limits = np.array([*dynamics.max_speed, dynamics.max_yaw_rate])
        self._all = np.arange(rows)
        self.marks = np.zeros((rows, self._size, self._size), np.uint8)
        """(B, G, G) marks of free, seen and wall cells, see `mapping.occupancy_map`."""
        self.pose = np.zeros((rows, 4))
        """(B, 4) x, y, z [m] from the middle of the map, and yaw [rad], as far as the row knows."""
        self.velocity = np.zeros((rows, 4))
        """(B, 4) forward, vertical, lateral [m/s], yaw rate [rad/s] by dead reckoning; 0 for rows with given poses."""
        self._origin = np.zeros((rows, 3))
        self._reach = np.zeros((rows, azimuth_bins))
        self._met = np.zeros((rows, azimuth_bins), np.bool_)
        self._front = np.full(rows, np.inf)
        self._clearance = np.full(rows, np.inf)
        self._box = np.full((rows, 4), self._size // 2, np.int64)
        self._scratch = (
            np.zeros((self._size, self._size), np.int32),
            np.zeros((16, self._size**2), np.int32),
            np.zeros(16, np.int64),
            np.zeros((self._size, self._size), np.uint8),
        )
        self._out = np.zeros((rows, OCCUPANCY_INPUTS), np.float32)
        self._goal = np.full((rows, 2), np.nan)
        self._idle = np.zeros(rows, np.int64)

    @classmethod
    def of_env(cls, env: EnvConfig, rows: int, cell: float = CELL, *, shielded: bool = False) -> OccupancyMemory:
        """Build the occupancy memory for the rows of an environment."""
        return cls(
            rows, env.azimuth_bins, env.elevation_bins, env.dynamics, env.max_distance, oldest=env.sensor.oldest,
            cell=cell, shielded=shielded,
        )  # fmt: skip

    def begin(
        self, obs: Tensor, rows: Tensor | None = None, pose: Tensor | None = None, goal: Tensor | None = None
    ) -> Tensor:
        """Reset the maps of some rows and return the features of their first observation.

        Args:
            obs: (n, 3, Az, El) the first observation of each.
            rows: (n,) the rows that begin; all of them where it is None.
            pose: (n, 4) x, y, z [m] and yaw [rad] as known to the caller; None for rows with dead reckoning.
            goal: (n, 4) their relative goals, see `world.goals.relative_goal`; None without.

        Returns:
            (n, OCCUPANCY_INPUTS) features, see `mapping.frontier_features`.
        """
        chosen = self._all if rows is None else rows.cpu().numpy()
        for array in (self.marks, self.pose, self._origin, self.velocity, self._command):
            array[chosen] = 0
        self._near[chosen] = np.nan
        self._idle[chosen] = 0
        self._out[chosen, -MOVED:] = 0.0
        self._box[chosen] = self._size // 2
        if pose is not None:
            here = pose.cpu().numpy().astype(np.float64)
            self._origin[chosen] = here[:, :3]
            self.pose[chosen, 3] = here[:, 3]
            self._trajectory.begin(chosen, here)
        self._look(obs, chosen)
        self._aim(chosen, goal)
        return self._features(chosen, obs.device)

    def done(self, after: int, rows: Tensor | None = None) -> Tensor:
        """Mask the rows (n,) that have nothing left to see: no way to a frontier for `after` updates, and no goal.

        Args:
            after: Updates without a way; 0 for never.
            rows: (n,) the rows; all of them where it is None.
        """
        idle = (self._idle >= after) & np.isnan(self._goal[:, 0]) & (after > 0)
        return torch.from_numpy(idle if rows is None else idle[rows.cpu().numpy()])

    def limiter(self) -> Floats:
        """Return the share (B,) of the linear speed that the speed limiter leaves, by the latest observations."""
        d = self.dynamics
        limit: Floats = np.clip(self._front / d.limiter_distance, d.limiter_floor, 1.0)
        return limit

    def fly(self, obs: Tensor, action: Tensor) -> Tensor:
        """Dead-reckon all rows by one action, update their maps, and return the features.

        Args:
            obs: (B, 3, Az, El) current observations.
            action: (B, 4) actions of the decision; clamped to [−1, 1] here as the environment does.

        Returns:
            (B, OCCUPANCY_INPUTS).
        """
        d = self.dynamics
        command = np.clip(action.detach().cpu().numpy().astype(np.float64), -1.0, 1.0) * self._limits
        command[:, :3] *= self.limiter()[:, None]
        before, clearance = np.where(self._met, self._reach, -1.0), self._clearance.copy()
        self._look(obs, self._all)
        start = self.pose.copy()
        reckon(
            self.pose, self.velocity, command, before, np.where(self._met, self._reach, -1.0), clearance,
            np.ones(self.rows, np.bool_), d.radius, d.steps_per_decision, d.substep, d.response,
        )  # fmt: skip
        self._move(self._all, start)
        return self._features(self._all, obs.device)

    def follow(
        self, obs: Tensor, pose: Tensor, rows: Tensor, goal: Tensor | None = None, age: Tensor | None = None
    ) -> Tensor:
        """Update the maps of some rows from given poses and return the features.

        Args:
            obs: (n, 3, Az, El) what some rows see now.
            pose: (n, 4) x, y, z [m] and yaw [rad], in the frame of the pose they began with.
            rows: (n,) which rows they are.
            goal: (n, 4) where their goals lie from them; None without.
            age: (n,) ages of the observations [decisions], at most `oldest`; None for present ones.

        Returns:
            (n, OCCUPANCY_INPUTS).
        """
        chosen, here = rows.cpu().numpy(), pose.cpu().numpy().astype(np.float64)
        start = self.pose[chosen]
        self._look(obs, chosen)
        ages = np.zeros(len(chosen), np.int64) if age is None else age.cpu().numpy()
        taken = self._trajectory.follow(chosen, here, ages)
        late = self._oldest > 0 and age is not None
        if late:
            self.pose[chosen] = taken
            self.pose[chosen, :3] -= self._origin[chosen]
            self._draw(chosen)
        self.pose[chosen, :3] = here[:, :3] - self._origin[chosen]
        self.pose[chosen, 3] = here[:, 3]
        self._move(chosen, start)
        if self._shielded:
            self._mark_bumps(chosen)
        self._aim(chosen, goal)
        return self._features(chosen, obs.device, drawn=late)

    def executed(self, actions: npt.NDArray[np.float32], rows: npt.NDArray[np.int64]) -> None:
        """Record the actions (n, 4) of some rows, in [−1, 1], to find commands that did not move the drone."""
        self._command[rows] = actions * self._limits

    def nearby(
        self, points: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_], rows: npt.NDArray[np.int64], radius: float
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Keep the points of a scan, and return those nearby of all scans of the flights, in their present frames.

        Args:
            points: (n, N, 3) points of some rows in the drone's present frame [m].
            valid: (n, N) whether a point is there.
            rows: (n,) the rows.
            radius: Distance up to which points count [m].

        Returns:
            As `mapping.near_hits.points_nearby`.
        """
        here = self._trajectory.poses[rows, 0]
        keep_points(self._near, rows, here, points, valid)
        return points_nearby(self._near, rows, here, radius)

    def _mark_bumps(self, chosen: npt.NDArray[np.int64]) -> None:
        """Mark a hit beside rows that stood still, in the direction of their command."""
        command, d = self._command[chosen], self.dynamics
        wanted = np.hypot(command[:, 0], command[:, 2]) * self.limiter()[chosen]
        still = np.abs(self._out[chosen, -MOVED:]).sum(axis=1) < _STILL
        for row, (ahead, _, right, _) in zip(chosen[still & (wanted > _PUSHED)], command[still & (wanted > _PUSHED)]):
            sin, cos = math.sin(self.pose[row, 3]), math.cos(self.pose[row, 3])
            away = (d.radius + 0.5 * self.cell) / math.hypot(ahead, right)
            x = self.pose[row, 0] + (right * cos - ahead * sin) * away
            z = self.pose[row, 2] - (right * sin + ahead * cos) * away
            i, k = (math.floor(v / self.cell + self._size / 2) for v in (x, z))
            if 0 <= i < self._size and 0 <= k < self._size:
                self.marks[row, i, k] |= HIT

    def look(
        self,
        obs: Tensor,
        pose: Tensor,
        begins: Tensor,
        rows: Tensor | None = None,
        goal: Tensor | None = None,
        age: Tensor | None = None,
    ) -> Tensor:
        """Update the maps of some rows: `begin` where a flight begins, `follow` where it goes on.

        Args:
            obs: (n, 3, Az, El) what some rows see now.
            pose: (n, 4) x, y, z [m] and yaw [rad].
            begins: (n,) bool.
            rows: (n,) which rows they are; all of them where it is None.
            goal: (n, 4) where their goals lie from them; None without.
            age: See `follow`.

        Returns:
            (n, OCCUPANCY_INPUTS).
        """
        which = torch.arange(self.rows) if rows is None else rows.cpu()
        new = begins.cpu()
        if not bool(new.any()):
            return self.follow(obs, pose, which, goal, age)
        features = torch.empty(len(which), OCCUPANCY_INPUTS, device=obs.device)
        for some, update in ((new, self.begin), (~new, self.follow)):
            if bool(some.any()):
                there = some.to(obs.device)
                given = {"goal": None if goal is None else goal[some.to(goal.device)]}
                if age is not None and update == self.follow:
                    given["age"] = age.cpu()[some]
                features[there] = update(obs[there], rows=which[some], pose=pose[some.to(pose.device)], **given)
        return features

    def scan_poses(self, age: Tensor, rows: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return the poses (n, 4) from which scans of given ages (n,) of some rows were taken, and the present ones."""
        poses = self._trajectory.poses
        return poses[rows, age.cpu().numpy()], poses[rows, 0]

    def moved(self, rows: npt.NDArray[np.int64]) -> Floats:
        """Return the level velocities (n, 4) of some rows by the motion of their last decision, as shares of limits."""
        ahead, right, turn = np.moveaxis(self._out[rows, -MOVED:].astype(np.float64), 1, 0)
        return np.stack([ahead, np.zeros(len(rows)), right, turn], axis=1)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the maps and poses of all rows as tensors that share memory with them."""
        return {name: torch.from_numpy(array) for name, array in self._kept().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore maps and poses from a `state_dict`.

        Raises:
            ConfigError: The state has another number of rows or another sensor.
        """
        kept = self._kept()
        if self._oldest and "trajectory" not in state and {"pose", "origin"} <= state.keys():
            # A map of an earlier version: its scans were one decision old, and it stood where that one was taken.
            here = torch.cat([state["pose"][:, :3] + state["origin"], state["pose"][:, 3:]], dim=1)
            state = state | {"trajectory": here[:, None].repeat(1, self._oldest + 1, 1)}
        if self._shielded and "near" not in state:
            state = state | {"near": torch.full(self._near.shape, torch.nan)}  # of an earlier version
        for name, array in kept.items():
            there = tuple(state[name].shape) if name in state else None
            if there != array.shape:
                raise ConfigError(f"occupancy memory: {name} has shape {there}, here it is {array.shape}")
        for name, array in kept.items():
            array[...] = state[name].cpu().numpy()

    def _kept(self) -> dict[str, npt.NDArray[np.generic]]:
        kept: dict[str, npt.NDArray[np.generic]] = {
            "marks": self.marks,
            "pose": self.pose,
            "velocity": self.velocity,
            "origin": self._origin,
            "reach": self._reach,
            "met": self._met,
            "front": self._front,
            "clearance": self._clearance,
            "box": self._box,
        }
        kept |= {"trajectory": self._trajectory.poses} if self._oldest else {}
        return kept | {"command": self._command, "near": self._near} if self._shielded else kept

    def _look(self, obs: Tensor, chosen: npt.NDArray[np.int64]) -> None:
        if tuple(obs.shape) != (len(chosen), *self._shape):
            raise ConfigError(f"observations {tuple(obs.shape)} must be {(len(chosen), *self._shape)} for these maps")
        seen = np.ascontiguousarray(obs.detach().cpu().numpy(), np.float32)
        read_levels(
            seen, chosen, self._scale, self._levels, self._ahead, self._flat, self._reach, self._met, self._front,
            self._clearance,
        )  # fmt: skip

    def _move(self, chosen: npt.NDArray[np.int64], start: Floats) -> None:
        """Write ego-motion features: motion ahead, right and left turn, each as a fraction of a decision's maximum."""
        d, now = self.dynamics, self.pose[chosen]
        x, z = now[:, 0] - start[:, 0], now[:, 2] - start[:, 2]
        sin, cos = np.sin(start[:, 3]), np.cos(start[:, 3])
        turn = (now[:, 3] - start[:, 3] + math.pi) % (2.0 * math.pi) - math.pi
        moved = np.stack([-x * sin - z * cos, x * cos - z * sin, turn], axis=1)
        most = np.array([d.max_speed[0], d.max_speed[2], d.max_yaw_rate]) * d.decision_seconds
        self._out[chosen, -MOVED:] = np.clip(moved / most, -_JUMP, _JUMP)

    def _aim(self, chosen: npt.NDArray[np.int64], goal: Tensor | None) -> None:
        """Convert the relative goals of some rows to map coordinates and store them."""
        if goal is None:
            self._goal[chosen] = np.nan
            return
        relative = goal.detach().cpu().numpy().astype(np.float64)
        scale, yaw = np.exp(relative[:, 0]), self.pose[chosen, 3]
        ahead, left = scale * relative[:, 1], scale * relative[:, 2]
        sin, cos = np.sin(yaw), np.cos(yaw)
        gap = np.stack([-ahead * sin - left * cos, -ahead * cos + left * sin], axis=1)
        self._goal[chosen] = self.pose[chosen][:, [0, 2]] + gap

    def _draw(self, chosen: npt.NDArray[np.int64]) -> None:
        draw(self.marks, chosen, self.pose, self._reach, self._met, self._box, self.cell, VIEW_RADIUS)

    def _features(self, chosen: npt.NDArray[np.int64], device: torch.device, *, drawn: bool = False) -> Tensor:
        pose = self.pose[chosen]
        for row in chosen[np.abs(pose[:, 1]) > _STOREY]:
            self.marks[row] = 0
            self._origin[row, 1] += self.pose[row, 1]
            self.pose[row, 1] = 0.0
        for row in chosen[np.abs(pose[:, [0, 2]]).max(axis=1) > _SCROLL]:
            self._scroll(row)
        if not drawn:
            self._draw(chosen)
        frontier_features(
            self.marks, chosen, self.pose, self._reach, self._box, self.cell, SIGHT, self._scratch, self._goal,
            self._out, stride=self._stride,
        )  # fmt: skip
        self._idle[chosen] = np.where(self._out[chosen, -MOVED - 1] > 0.0, 0, self._idle[chosen] + 1)
        return torch.from_numpy(self._out[chosen].copy()).to(device)

    def _scroll(self, row: int) -> None:
        """Recentre a row's occupancy grid on the drone, shifted by whole cells; what leaves the map is dropped."""
        by = np.rint(self.pose[row, [0, 2]] / self.cell).astype(np.int64)
        there = np.zeros_like(self.marks[row])
        kept = [(max(int(n), 0), min(self._size + int(n), self._size)) for n in by]
        if all(low < high for low, high in kept):
            (x0, x1), (z0, z1) = kept
            there[x0 - by[0] : x1 - by[0], z0 - by[1] : z1 - by[1]] = self.marks[row, x0:x1, z0:z1]
        self.marks[row] = there
        self.pose[row, [0, 2]] -= by * self.cell
        self._origin[row, [0, 2]] += by * self.cell
        self._goal[row] -= by * self.cell
        self._box[row] = np.clip(self._box[row] - np.repeat(by, 2), 0, self._size - 1)
