"""Base of the pilots with a map: finding a flight height, following a path, keeping off surfaces.

A flight begins with a climb or a descent to the cruising height; from there on it is level, so that a plane map is
enough.
"""

import math
from abc import abstractmethod
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.errors import ConfigError
from navi_core.mapping.search import visible_rows
from navi_core.pilots.pilot import Pilot, PilotSettings
from navi_core.pilots.scan import Scan, read_scan
from navi_core.pilots.steering import steer
from navi_core.world.dynamics import front_distance, limiter_bins

CELL = 0.1
"""Edge of a map cell [m]."""
_PATH = 512
"""Cells of a path that are kept."""
_PATIENCE = 20
"""Decisions after which a height that is not reached is given up, and so many more for each metre of a later climb."""

Floats = npt.NDArray[np.float64]


class MapSettings(PilotSettings, total=False):
    """What every pilot with a map is built with; see `MapPilot`."""

    cruise_height: float
    speed: float
    margin: float
    comfort: float
    lookahead: float


class MapPilot(Pilot):
    """Base of the frontier pilot and the planner.

    Args:
        cruise_height: Height above the floor that is flown at; low rooms are flown at half height [m].
        speed: Largest share of the drone's speed, in (0, 1].
        margin: Distance kept to surfaces beyond the drone's radius [m].
        comfort: Distance to surfaces below which a way costs more [m].
        lookahead: Farthest point of the path that is flown at straight [m].
        replan: Decisions after which the way is searched anew.
        settings: Those of `Pilot`.
    """

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
        )
        if replan < 1:
            raise ConfigError(f"{self.name}: replan {replan} must be at least 1 decision")
        self.cruise_height, self.speed, self.margin = cruise_height, speed, margin
        self.comfort, self.lookahead, self.replan = comfort, lookahead, replan
        d = self.dynamics
        self._limits = np.array([*d.max_speed, d.max_yaw_rate], np.float64)
        # A cell's centre lies up to half a diagonal from what is in the cell.
        self._hard = math.ceil(((d.radius + margin) / CELL) ** 2)

    @abstractmethod
    def _locate(self, scan: Scan, fresh: npt.NDArray[np.bool_]) -> Floats:
        """Return the poses (B, 4): x, y, z [m], yaw [rad], in the frame of the row's map."""

    @abstractmethod
    def _survey(self, scan: Scan, pose: Floats, plane: Floats, settled: npt.NDArray[np.bool_]) -> None:
        """Take in what the rows at their cruising height see."""

    @abstractmethod
    def _route(self, pose: Floats, due: npt.NDArray[np.bool_]) -> None:
        """Write new ways of the rows that are `due` into `_path` and `_length`."""

    @abstractmethod
    def _grids(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], Floats]:
        """Return the distance grids (S, X, Z), each row's grid (B,), and each row's corner (B, 2) [m]."""

    def _allocate(self, batch: int, device: torch.device) -> None:  # noqa: ARG002 (the interface's arguments)
        self._velocity = np.zeros((batch, 4))
        self._plane = np.zeros(batch)
        self._settled = np.zeros(batch, bool)
        self._deadline = np.zeros(batch, np.int64)
        self._path = np.zeros((batch, _PATH), np.int32)
        self._length = np.zeros(batch, np.int64)
        self._age = np.zeros(batch, np.int64)
        self._command = np.zeros((batch, 4))
        self._limiter = np.ones(batch)

    def _forget(self, rows: Tensor) -> None:
        gone = rows.cpu().numpy()
        self._velocity[gone] = 0.0
        self._settled[gone] = False
        self._length[gone] = 0
        self._age[gone] = 0

    def executed(self, actions: Tensor) -> None:
        """Record the executed actions, (B, 4)."""
        self._note(actions.detach().cpu().numpy())

    def _note(self, actions: npt.NDArray[np.float32]) -> None:
        command = np.clip(actions.astype(np.float64), -1.0, 1.0) * self._limits
        command[:, :3] *= self._limiter[:, None]
        self._command = command

    def _decide(self, obs: Tensor) -> Tensor:
        d = self.dynamics
        scan = read_scan(obs, self.max_distance)
        step = self._step.cpu().numpy()
        pose = self._locate(scan, step == 0)
        bins = limiter_bins(obs.shape[2], obs.shape[3], d.limiter_elevation_degrees)
        front = front_distance(torch.from_numpy(scan.depth), torch.from_numpy(scan.valid), obs.shape[2], bins).numpy()
        self._limiter = np.clip(front.astype(np.float64) / d.limiter_distance, d.limiter_floor, 1.0)
        self._find_height(scan, pose, step)
        self._survey(scan, pose, self._plane, self._settled)
        due = self._settled & ((self._age >= self.replan) | (self._length == 0))
        self._route(pose, due)
        self._age = np.where(due, 0, self._age) + 1
        target, flying = self._ahead(pose)
        actions = np.zeros((len(pose), 4), np.float32)
        steer(
            target, self._plane - pose[:, 1], flying, self._velocity, scan.points, scan.valid, self._limiter,
            self._limits, self.speed, d.radius + self.margin, d.steps_per_decision, d.substep, d.smoothing, actions,
        )  # fmt: skip
        self._note(actions)
        return torch.from_numpy(actions).to(obs.device)

    def _find_height(self, scan: Scan, pose: Floats, step: npt.NDArray[np.int64]) -> None:
        """Choose the cruising height of new rows, and note who has reached it or cannot."""
        fresh = step == 0
        if fresh.any():
            wanted = self._climb(scan)
            self._plane = np.where(fresh, pose[:, 1] + np.where(np.abs(wanted) < 0.15, 0.0, wanted), self._plane)
            self._deadline = np.where(fresh, _PATIENCE, self._deadline)
        late = ~self._settled & (step >= self._deadline)
        self._plane = np.where(late, pose[:, 1], self._plane)
        self._settled |= np.abs(pose[:, 1] - self._plane) < 0.05

    def _fly_to_height(self, row: int, height: float, now: float) -> None:
        """Let a row leave its plane for another height, both in the frame of `_locate` [m], where it is."""
        self._plane[row], self._settled[row], self._length[row] = height, False, 0
        self._deadline[row] = int(self._step[row]) + math.ceil(_PATIENCE * (1.0 + abs(height - now)))

    def _climb(self, scan: Scan) -> Floats:
        """Return how far the cruising height lies above each row (B,) [m]."""
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
        """Return the point to fly at in the drone's frame (B, 2) [m], and which rows have one."""
        near, grid, corner = self._grids()
        place = (pose[:, [0, 2]] - corner) / CELL
        point = np.zeros((len(pose), 2))
        visible_rows(near, grid, self._path, self._length, place, self._hard, self.lookahead / CELL, point)
        gap = (point - place) * CELL
        sin, cos = np.sin(pose[:, 3]), np.cos(pose[:, 3])
        target = np.stack([gap[:, 0] * cos - gap[:, 1] * sin, gap[:, 0] * sin + gap[:, 1] * cos], axis=1)
        return target, self._settled & (self._length > 0)


def _percentile(values: npt.NDArray[np.float32], share: float, otherwise: float) -> npt.NDArray[Any]:
    """Return a percentile of each row's (B, R) numbers, `otherwise` for a row without any."""
    empty: npt.NDArray[np.bool_] = np.all(np.isnan(values), axis=1, keepdims=True)
    known = np.where(empty, np.float32(0.0), values)
    return np.where(empty[:, 0], otherwise, np.nanpercentile(known, share, axis=1))
