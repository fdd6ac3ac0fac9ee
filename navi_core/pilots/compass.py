"""Compass pilot: follows the features that a policy's occupancy memory computes, without any learning.

It is the control for learned policies with that memory: what it sees was not learned. With a goal the features lead
along the shortest way there, through unknown cells where needed.
"""

from typing import Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from navi_core.config.policy import AHEAD, MOVED
from navi_core.pilots.map_pilot import steer
from navi_core.pilots.pilot import (
    Pilot,
    PilotSettings,
    front_share,
    moved_scan,
    read_scan,
)
from navi_core.pilots.reactive import ForwardPlusPilot, Recovery
from navi_core.pilots.shield import Shield
from navi_core.world.occupancy_memory import OccupancyMemory
from navi_core.world.reckoning import Trajectory

Floats = npt.NDArray[np.float64]

_BEARING = -MOVED - 2 - 2 * len(AHEAD)
"""Index of the features cosine and sine of the bearing of the first waypoint, three cells ahead."""
_AT_GOAL = 1.2
"""Horizontal distance from which a goal is flown at straight [m]."""
_FAR = 5.0
"""Distance at which a target lies in its direction, so that speed is not limited by it [m]."""


class CompassPilot(Pilot):
    """Unlearned control: flies along the way to the nearest frontier of an occupancy memory, level, at full speed.

    It flies in the direction of the waypoint three cells along the way, with the shield of the map pilots. Where the
    map has no way to a frontier it flies as forward-plus, behind the same shield. With a limited sensor it has the
    policies' shield and recovery. A goal takes the frontier's place; within `_AT_GOAL` it is flown at straight, to stop
    there.

    Tuning of the defaults, on training scenes alone, at 64×16, 3 starts: C_vis AUC 82.1, 82.8, 83.6, 83.9 % for cells
    of 0.15, 0.2, 0.25, 0.3 m on apartments 0–9 (200 decisions), and 79.0, 79.8, 79.9, 79.9 % on rooms 16–23 (400);
    of these 0.2 m passes narrow doors. `margin` 0.04 and 0.1 m change it by less than 0.5 %.

    Args:
        cell: Edge of the map's cells [m].
        margin: Distance kept to surfaces beyond the drone's radius [m].
        settings: Those of `Pilot`.
    """

    name = "compass"
    reckons = True
    seeks = True
    finishes = True

    def __init__(self, *, cell: float = 0.2, margin: float = 0.07, **settings: Unpack[PilotSettings]) -> None:
        super().__init__(**settings)
        self._require(cell=(cell, 0.05, 1.0), margin=(margin, 0.0, 1.0))
        self.cell, self.margin = cell, margin
        self._wander = ForwardPlusPilot(**settings)
        d = self.dynamics
        self._limits = np.array([*d.max_speed, d.max_yaw_rate], np.float64)
        self._memory: OccupancyMemory | None = None
        self._shield: Shield | None = None
        self._recovery: Recovery | None = None

    def reset(self, rows: Tensor, keys: Tensor) -> None:
        """Reset rows to given random keys and empty memory; see `Pilot.reset`."""
        super().reset(rows, keys)
        self._wander.reset(rows, keys)

    def _allocate(self, batch: int, device: torch.device) -> None:
        self._memory, self._shield, self._begins = None, None, torch.ones(batch, dtype=torch.bool, device=device)
        self._action = torch.zeros(batch, 4, device=device)
        self._trajectory = Trajectory(batch, self.oldest)

    def _forget(self, rows: Tensor) -> None:
        self._begins = self._begins | rows

    def executed(self, actions: Tensor) -> None:
        """Record the executed actions, (B, 4), for dead reckoning."""
        self._action = actions

    def _features(self, obs: Tensor) -> Tensor:
        """Update the maps and return their features (B, OCCUPANCY_INPUTS)."""
        if self._memory is None:
            rows, _, azimuths, elevations = obs.shape
            self._memory = OccupancyMemory(
                rows,
                azimuths,
                elevations,
                self.dynamics,
                self.max_distance,
                oldest=self.oldest,
                cell=self.cell,
                stride=1,
                shielded=self.limited,
            )
            if self.limited:
                self._shield = Shield(self._memory, self.margin)
                self._recovery = Recovery(rows, self.dynamics.decision_hz, self.seed)
        begins, self._begins = self._begins, torch.zeros_like(self._begins)
        if self._odometry is not None:
            self._memory.velocity[:] = 0.0
            age = None if self._scan_age is None else torch.from_numpy(self._scan_age)
            return self._memory.look(obs, torch.from_numpy(self._odometry), begins, goal=self._relative_goal, age=age)
        if bool(begins.all()):
            return self._memory.begin(obs)
        features = self._memory.fly(obs, self._action)
        if bool(begins.any()):
            features[begins] = self._memory.begin(obs[begins], rows=begins.nonzero().squeeze(1))
        return features

    def _decide(self, obs: Tensor) -> Tensor:
        restarts = self._begins & (self._step == 0)
        features = self._features(obs).cpu().numpy().astype(np.float64)
        memory, d, scan = self._memory, self.dynamics, read_scan(obs, self.max_distance)
        assert memory is not None
        limiter = memory.limiter()
        if self._scan_age is not None and self._odometry is not None:
            taken = self._trajectory.follow_all(self._odometry, (self._step == 0).cpu().numpy(), self._scan_age)
            scan = moved_scan(scan, taken, self._odometry)
            limiter = front_share(scan, d)
        bearing, there_is_way = features[:, _BEARING : _BEARING + 2], features[:, -MOVED - 1] > 0.0
        active = there_is_way & (np.abs(bearing).sum(axis=1) > 0.0)
        target = _FAR * np.stack([bearing[:, 1], -bearing[:, 0]], axis=1)
        # Where the map has no way the wanderer chooses speed and turn, and the shield holds for it, too.
        wander = self._wander.act(obs, restarts).cpu().numpy()
        ahead = np.stack([np.zeros(len(wander)), -wander[:, 0] * d.max_speed[0] * d.decision_seconds], axis=1)
        target = np.where(active[:, None], target, ahead)
        target, climb = self._goals(target)
        actions = np.zeros((len(features), 4), np.float32)
        steer(
            target, climb, active | (wander[:, 0] > 0.0), memory.velocity, scan.points,
            scan.valid & (not self.limited), limiter, self._limits, 1.0, d.radius + self.margin, d.steps_per_decision,
            d.substep, d.response, actions,
        )  # fmt: skip
        actions[:, 3] = np.where(active, actions[:, 3], wander[:, 3])
        self._action = torch.from_numpy(actions).to(obs.device)
        if self._recovery is not None:
            here = torch.from_numpy(memory.pose if self._odometry is None else self._odometry)
            # Where its map shows a way and the shield does not, it would wait to the end; policies have this, too.
            self._action = self._recovery.act(self._action, here, restarts, self._keys, self._step)
        if self.done_after:
            self.done = memory.done(self.done_after)
            self._action = torch.where(self.done[:, None], 0.0, self._action)
        if self._shield is not None:
            age = None if self._scan_age is None else torch.from_numpy(self._scan_age)
            self._action = self._shield.apply(self._action, obs, age)
        return self._action

    def _goals(self, target: Floats) -> tuple[Floats, Floats]:
        """Return the targets (B, 2) with goals that are near in their stead, and the heights (B,) to gain [m]."""
        if self._relative_goal is None:
            return target, np.zeros(len(target))
        distance, ahead, left, climb = self._relative_goal.cpu().numpy().astype(np.float64).T
        scale = np.exp(distance)
        near = np.expm1(distance) < _AT_GOAL
        return np.where(near[:, None], np.stack([-left * scale, -ahead * scale], axis=1), target), climb
