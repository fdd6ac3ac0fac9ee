"""Evaluation flights from frozen starts, in blocks of fixed size.

Sensor and physics are the environment's. A block always has the same number of rows, padded by copies of its first
start, so every tensor operation sees the same shapes. An episode's bits therefore depend on its start and the weights
alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from navi_core.config import EvalConfig
from navi_core.errors import EvaluationError
from navi_core.evaluate.flight.course import Start
from navi_core.pilots import Pose
from navi_core.world.dynamics import Dynamics, linear_speed
from navi_core.world.field import Field
from navi_core.world.goals import reached
from navi_core.world.sensor.noise import SensorFaults
from navi_core.world.sensor.spherical import SphericalSensor


class Flyer(Protocol):
    """Interface of everything that can be flown in an evaluation."""

    name: str
    """Name of the subject."""
    azimuth_bins: int
    """Az of its observations."""
    elevation_bins: int
    """El of its observations."""
    max_distance: float
    """Range of its sensor [m]."""
    recovering: Tensor | None
    """(B,) rows whose last action came from recovery; None without recovery."""

    def begin(self, keys: Tensor, field: Field) -> None:
        """Start new episodes in all rows.

        Args:
            keys: Random keys of the rows, int64 (B,).
            field: Scenes, for privileged subjects.
        """

    def act(self, obs: Tensor, pose: Pose) -> Tensor:
        """Return actions (B, 4) for observations (B, 3, Az, El).

        A privileged subject may use all of `pose`; a goal-conditioned policy only the goal relative to it.
        """


@dataclass(frozen=True)
class Flight:
    """One episode of T decisions."""

    positions: np.ndarray
    """The start and the position after each decision, float32 (T+1, 3) [m]."""
    yaws: np.ndarray
    """Yaw at each position, float32 (T+1,) [rad]."""
    collided: np.ndarray
    """Decisions with at least one reverted substep, bool (T,)."""
    clearance: np.ndarray
    """Distance to the nearest surface after each decision, float32 (T,) [m]."""
    success: bool = False
    """Whether the episode ended by stopping at its goal."""
    recovery_steps: int = 0
    """Decisions whose action came from recovery because the drone was stuck."""


@torch.no_grad()
def fly(
    field: Field,
    flyer: Flyer,
    starts: Sequence[Start],
    config: EvalConfig,
    progress: Callable[[int, int], None] | None = None,
) -> list[Flight]:
    """Fly one episode from each start; an episode with a goal ends once the drone stops there.

    Args:
        field: Geometry.
        flyer: The subject.
        starts: Start poses.
        config: Length of the episodes, block size, dynamics.
        progress: Called as progress(decisions done, decisions in all).

    Raises:
        EvaluationError: The subject returned NaN or Inf.
    """
    flights: list[Flight] = []
    blocks = [starts[first : first + config.block] for first in range(0, len(starts), config.block)]
    for number, block in enumerate(blocks):
        report = None
        if progress is not None:
            report = partial(_report, progress, number * config.max_steps, len(blocks) * config.max_steps)
        flights += _fly_block(field, flyer, block, config, report)
    return flights


def _report(progress: Callable[[int, int], None], before: int, total: int, decisions: int) -> None:
    progress(before + decisions, total)


def _fly_block(
    field: Field, flyer: Flyer, block: Sequence[Start], config: EvalConfig, report: Callable[[int], None] | None
) -> list[Flight]:
    rows = [*block, *[block[0]] * (config.block - len(block))]
    scene = torch.tensor([start.scene_index for start in rows])
    position = torch.tensor([start.position for start in rows], dtype=torch.float32)
    yaw = torch.tensor([start.yaw for start in rows], dtype=torch.float32)
    velocity = torch.zeros(len(rows), 4)
    sensor = SphericalSensor(field, flyer.azimuth_bins, flyer.elevation_bins, flyer.max_distance)
    dynamics = Dynamics(field, config.dynamics)
    keys = torch.tensor([start.key for start in rows])
    faults = SensorFaults(config.sensor, config.seed, keys, flyer.max_distance)
    flyer.begin(keys, field)

    positions = torch.empty(config.max_steps + 1, len(rows), 3)
    positions[0] = position
    yaws = torch.empty(config.max_steps + 1, len(rows))
    yaws[0] = yaw
    collided = torch.empty(config.max_steps, len(rows), dtype=torch.bool)
    recovering = torch.zeros(config.max_steps, len(rows), dtype=torch.bool)
    clearance = torch.empty(config.max_steps, len(rows))
    # Either all starts of a course have goals or none has.
    goals = [start.goal for start in rows if start.goal is not None]
    goal = torch.tensor(goals, dtype=torch.float32) if goals else None
    ended, success = torch.full((len(rows),), config.max_steps), torch.zeros(len(rows), dtype=torch.bool)
    delayed = None
    for t in range(config.max_steps):
        hits = sensor.cast(position, yaw, scene)
        front = dynamics.front_distance(hits.depth, hits.valid, flyer.azimuth_bins)
        current = faults.apply(sensor.observation(hits), torch.zeros_like(keys), torch.full_like(keys, t))
        obs, delayed = (current if delayed is None else delayed, current) if config.sensor.delayed else (current, None)
        action = flyer.act(obs, Pose(position, yaw, scene, goal))
        if not torch.isfinite(action).all():
            row = int((~torch.isfinite(action)).any(dim=1).nonzero()[0, 0])
            raise EvaluationError(
                f"{flyer.name} returned NaN or Inf at decision {t} of scene {rows[row].scene}, start {rows[row].index}"
            )
        if flyer.recovering is not None:
            recovering[t] = flyer.recovering
        motion = dynamics.step(position, yaw, velocity, action, front, scene)
        position, yaw, velocity = motion.position, motion.yaw, motion.velocity
        positions[t + 1], yaws[t + 1] = position, yaw
        collided[t] = motion.collided
        clearance[t] = field.distance(position, scene)
        if report is not None:
            report(t + 1)
        if goal is not None:
            there = reached(position, linear_speed(velocity), goal, config.goal) & (ended == config.max_steps)
            ended = torch.where(there, t + 1, ended)
            success |= there
            if success.all():
                break
    flights = []
    for row in range(len(block)):
        steps = int(ended[row])
        path, faced = (x[: steps + 1, row].numpy().copy() for x in (positions, yaws))
        hit, gap = (x[:steps, row].numpy().copy() for x in (collided, clearance))
        recovered = int(recovering[:steps, row].sum())
        flights.append(Flight(path, faced, hit, gap, bool(success[row]), recovered))
    return flights
