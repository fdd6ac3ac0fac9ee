"""Evaluation rollouts from frozen starts, in blocks of fixed size, with adapters for pilots and policies.

Sensor and physics are the environment's. A block always has the same number of rows, padded by copies of its first
start, so every tensor operation sees the same shapes. An episode's bits therefore depend on its start and the weights
alone.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from navi_core.config import EvalConfig, ShaperConfig
from navi_core.errors import EvaluationError
from navi_core.evaluate.flight.course import Start
from navi_core.pilots import Pilot, Pose
from navi_core.pilots.pilot import draw_normal
from navi_core.pilots.reactive import Recovery
from navi_core.pilots.shield import Shield
from navi_core.policy import NavigationPolicy, RewardShaper
from navi_core.world.dynamics import Dynamics, linear_speed
from navi_core.world.field import Field
from navi_core.world.goals import reached, relative_goal
from navi_core.world.occupancy_memory import OccupancyMemory, pose_rows
from navi_core.world.sensor.faults import SensorClock, SensorFaults
from navi_core.world.sensor.odometry import Odometry
from navi_core.world.sensor.panorama import SphericalSensor


class Flyer(Protocol):
    """Interface of subjects that can be evaluated: observations in, actions out."""

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
    padded: bool
    """Whether blocks are filled up to one size, because its rounding depends on the batch."""
    done: Tensor | None
    """(B,) rows that hover because nothing is left to see; None for subjects that fly on."""

    def begin(self, keys: Tensor, field: Field) -> None:
        """Reset the subject for new episodes in all rows.

        Args:
            keys: Random keys of the rows, int64 (B,).
            field: Scenes, for privileged subjects.
        """

    def act(self, obs: Tensor, pose: Pose) -> Tensor:
        """Compute the actions (B, 4) for observations (B, 3, Az, El).

        A privileged subject may use all of `pose`; a goal-conditioned policy only the goal relative to it.
        """


@dataclass(frozen=True)
class Flight:
    """Trajectory of one evaluation episode of T decisions."""

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
    done_at: int | None = None
    """Decision from which on it hovered, because nothing was left to see."""


@torch.no_grad()
def fly(
    field: Field,
    flyer: Flyer,
    starts: Sequence[Start],
    config: EvalConfig,
    progress: Callable[[int, int], None] | None = None,
) -> list[Flight]:
    """Run evaluation rollouts, one from each frozen start; an episode with a goal ends once the drone stops there.

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
        before, total = number * config.max_steps, len(blocks) * config.max_steps
        flights += _fly_block(field, flyer, block, config, progress, before, total)
    return flights


# One loop over decisions, whose state is local.
def _fly_block(
    field: Field,
    flyer: Flyer,
    block: Sequence[Start],
    config: EvalConfig,
    progress: Callable[[int, int], None] | None,
    before: int,
    total: int,
) -> list[Flight]:
    rows = [*block, *[block[0]] * (config.block - len(block) if flyer.padded else 0)]
    scene = torch.tensor([start.scene_index for start in rows])
    position = torch.tensor([start.position for start in rows], dtype=torch.float32)
    yaw = torch.tensor([start.yaw for start in rows], dtype=torch.float32)
    velocity = torch.zeros(len(rows), 4)
    sensor = SphericalSensor(field, flyer.azimuth_bins, flyer.elevation_bins, flyer.max_distance)
    dynamics = Dynamics(field, config.dynamics)
    keys = torch.tensor([start.key for start in rows])
    faults = SensorFaults(config.sensor, config.seed, keys, flyer.max_distance)
    flyer.begin(keys, field)

    poses = [(position, yaw)]
    decisions: list[tuple[Tensor, Tensor, Tensor]] = []
    # Either all starts of a course have goals or none has.
    goals = [start.goal for start in rows if start.goal is not None]
    goal = torch.tensor(goals, dtype=torch.float32) if goals else None
    ended, success = torch.full((len(rows),), config.max_steps), torch.zeros(len(rows), dtype=torch.bool)
    odometry = Odometry(config.odometry, config.seed, keys, config.dynamics.decision_seconds)
    clock, first, age = SensorClock(config.sensor, config.seed, keys), torch.zeros_like(keys), None
    late: Tensor | None = None
    done_at = torch.full((len(rows),), -1)
    for t in range(config.max_steps):
        hits = sensor.cast(position, yaw, scene)
        front = dynamics.front_distance(hits.depth, hits.valid, flyer.azimuth_bins)
        obs = scan = faults.apply(sensor.observation(hits), first, torch.full_like(keys, t))
        if clock.oldest:
            late = scan.repeat(1, clock.oldest, 1, 1) if late is None else late
            age = clock.age(first, torch.full_like(keys, t))
            obs, late = clock.show(scan, late, age), torch.cat([scan, late[:, :-3]], dim=1)
        estimate = None
        if config.reckoned:
            estimate = pose_rows(*odometry.follow(position, yaw))
        action = flyer.act(obs, Pose(position, yaw, scene, goal, estimate, age))
        if not torch.isfinite(action).all():
            row = int((~torch.isfinite(action)).any(dim=1).nonzero()[0, 0])
            raise EvaluationError(
                f"{flyer.name} returned NaN or Inf at decision {t} of scene {rows[row].scene}, start {rows[row].index}"
            )
        stuck = torch.zeros(len(rows), dtype=torch.bool) if flyer.recovering is None else flyer.recovering.clone()
        if flyer.done is not None:
            done_at = torch.where(flyer.done, torch.where(done_at < 0, t, done_at), -1)
            stuck &= ~flyer.done
        motion = dynamics.step(position, yaw, velocity, action, front, scene)
        position, yaw, velocity = motion.position, motion.yaw, motion.velocity
        poses.append((position, yaw))
        decisions.append((motion.collided, field.distance(position, scene), stuck))
        if progress is not None:
            progress(before + t + 1, total)
        if goal is not None:
            there = reached(position, linear_speed(velocity), goal, config.goal) & (ended == config.max_steps)
            ended = torch.where(there, t + 1, ended)
            success |= there
            if success.all():
                break
    positions, yaws = (torch.stack(values).cpu() for values in zip(*poses, strict=True))
    collided, clearance, recovering = (torch.stack(values).cpu() for values in zip(*decisions, strict=True))
    flights = []
    for row in range(len(block)):
        steps = int(ended[row])
        path, faced = (x[: steps + 1, row].numpy().copy() for x in (positions, yaws))
        hit, gap = (x[:steps, row].numpy().copy() for x in (collided, clearance))
        recovered = int(recovering[:steps, row].sum())
        flights.append(
            Flight(
                path, faced, hit, gap, bool(success[row]), recovered, int(done_at[row]) if done_at[row] >= 0 else None
            )
        )
    return flights


_LOG = logging.getLogger("navi.evaluate")
QUIET_SHAPER = ShaperConfig(rnd_start=0.0, rnd_end=0.0, loop_coefficient=0.0)
"""Shaper without curiosity and loop memory; the auxiliary inputs are zero."""


class PilotFlyer:
    """Adapter that runs a scripted policy (pilot) in an evaluation, at the evaluation's sensor resolution."""

    recovering: Tensor | None = None
    padded = False
    done: Tensor | None = None

    def __init__(self, pilot: Pilot, config: EvalConfig) -> None:
        self.name = pilot.name
        self.azimuth_bins = config.azimuth_bins
        self.elevation_bins = config.elevation_bins
        self.max_distance = pilot.max_distance
        pilot.carry(config.sensor)
        if config.done_after and not pilot.finishes:
            raise EvaluationError(
                f"{pilot.name} keeps no map, by which it could know that nothing is left to see; "
                "next: leave out --done-after"
            )
        pilot.done_after, pilot.horizon = config.done_after or 0, config.max_steps
        self._pilot = pilot

    def begin(self, keys: Tensor, field: Field) -> None:
        """Reset the subject for new episodes in all rows."""
        if self._pilot.privileged:
            self._pilot.attach(field)
        self.restart(torch.ones(len(keys), dtype=torch.bool), keys)

    def restart(self, rows: Tensor, keys: Tensor) -> None:
        """Reset the pilot in some rows for new episodes: (B,) bool, (B,) int64 keys of all."""
        self._pilot.reset(rows, keys)

    def act(self, obs: Tensor, pose: Pose) -> Tensor:
        """Compute actions (B, 4) for observations (B, 3, Az, El); a privileged pilot receives its pose."""
        action = self._pilot.act_at(obs, pose)
        self.done = self._pilot.done
        return action


class PolicyFlyer:
    """Adapter that runs a policy in evaluation mode: recurrent state carried, no learning, frozen normalisers.

    The auxiliary input (loop similarity and curiosity of the previous step) comes from a reward shaper in evaluation
    mode, as in training. The privileged reward entry is zero.

    Args:
        policy: The network.
        config: The protocol: block size, seed, mean or sampled actions, recovery.
        name: Name of the subject.
        shaper: Reward shaper of the training.
        shaper_rows: Rows of the training run, which fix the memory per row.
        shaper_state: Trained curiosity state of the checkpoint.
        max_distance: Range of the sensor that the policy was trained with [m].

    Raises:
        EvaluationError: The policy reads the privileged reward (`aux: full`), or a goal that the task lacks.
    """

    padded = True

    def __init__(
        self,
        policy: NavigationPolicy,
        config: EvalConfig,
        *,
        name: str,
        shaper: ShaperConfig = QUIET_SHAPER,
        shaper_rows: int | None = None,
        shaper_state: dict[str, object] | None = None,
        max_distance: float = 100.0,
    ) -> None:
        if policy.config.aux == "full":
            raise EvaluationError(
                f"{name} reads the training reward (aux: full), which evaluations do not have; "
                "train with aux no_reward or off to evaluate"
            )
        if policy.config.goal and config.task != "point_goal":
            raise EvaluationError(f"{name} needs goals, which the task {config.task} lacks; use --task point_goal")
        if config.task == "point_goal" and not policy.config.goal:
            _LOG.warning("%s has no goal input: it explores and stops at no goal", name)
        self.done: Tensor | None = None
        self._done_after = policy.config.done_after if config.done_after is None else config.done_after
        if self._done_after and not policy.config.place_memory:
            raise EvaluationError(
                f"{name} has no occupancy map, by which it could know that nothing is left to see; "
                "next: leave out --done-after, or train it with policy.place_memory"
            )
        self.name = name
        self.azimuth_bins = policy.config.azimuth_bins
        self.elevation_bins = policy.config.elevation_bins
        self.max_distance = max_distance
        self._policy = policy
        self._config = config
        per_row = shaper.memory_capacity // (shaper_rows or config.block)
        self._shaper_config = shaper.model_copy(update={"memory_capacity": per_row * config.block})
        self._shaper_state = shaper_state or {}
        self._device = next(policy.parameters()).device

    def begin(self, keys: Tensor, field: Field) -> None:  # noqa: ARG002 - of the Flyer protocol, pilots need it
        """Reset all rows for new episodes: zero recurrent state, empty memory."""
        rows = len(keys)
        self._keys = keys
        self._step = torch.zeros_like(keys)
        self._state = self._policy.initial_state(rows, self._device)
        self._aux = torch.zeros(rows, 3, device=self._device)
        self._reset = torch.ones(rows, dtype=torch.bool, device=self._device)
        self._places, self.done = None, None
        own = self._policy.config
        if own.place_memory:
            self._places = OccupancyMemory(
                rows, self.azimuth_bins, self.elevation_bins, self._config.dynamics, self.max_distance,
                oldest=self._config.sensor.oldest, cell=own.map_cell, shielded=own.shield,
            )  # fmt: skip
        self._shield = None
        if self._places is not None and own.shield:
            self._shield = Shield(self._places)
        self._recovery, self.recovering = None, None
        recovers = own.recovery if self._config.recovery is None else self._config.recovery
        if recovers and self._config.deterministic:
            self._recovery = Recovery(rows, self._config.dynamics.decision_hz, self._config.seed)
            self.recovering = self._recovery.stuck
        self._shaper = RewardShaper(self._shaper_config, rows, self._policy.config.width, device=self._device)
        self._shaper.load_state_dict(self._shaper_state)
        self._shaper.eval()

    def restart(self, rows: Tensor, keys: Tensor) -> None:
        """Reset some rows, (B,) bool, for new episodes: zero recurrent state, empty memory; (B,) keys of all rows."""
        rows_there = rows.to(self._device)
        self._keys = torch.where(rows, keys, self._keys)
        self._step = torch.where(rows, 0, self._step)
        self._reset = self._reset | rows_there
        if self._shaper.memory is not None:
            self._shaper.memory.clear(rows_there)

    def act(self, obs: Tensor, pose: Pose) -> Tensor:
        """Compute the actions (B, 4) for observations (B, 3, Az, El)."""
        noise = None
        if not self._config.deterministic:
            zero = torch.zeros_like(self._step)
            noise = draw_normal(self._config.seed, self._keys, zero, self._step, axes=4).to(self._device)
        aux = self._aux
        goal = None
        here = pose_rows(pose.position, pose.yaw) if pose.estimate is None else pose.estimate
        if self._policy.config.goal and pose.goal is not None:
            goal = relative_goal(here[:, :3], here[:, 3], pose.goal)
        if self._places is not None:
            features = self._places.look(obs, here, self._reset, goal=goal, age=pose.scan_age)
            aux = torch.cat([aux, features.to(self._device)], dim=1)
        if goal is not None:
            aux = torch.cat([aux, goal.to(self._device)], dim=1)
        out = self._policy.act(obs.to(self._device), aux, self._state, self._reset, noise)
        action = out.action.to(torch.float32).cpu()
        if self._recovery is not None:
            action = self._recovery.act(action, here, self._reset.cpu(), self._keys, self._step)
        if self._places is not None and self._done_after:
            self.done = self._places.done(self._done_after)
            action = torch.where(self.done[:, None], 0.0, action)
        if self._shield is not None:
            action = self._shield.apply(action, obs, pose.scan_age)
        self._state = out.state
        self._reset = torch.zeros_like(self._reset)
        self._step = self._step + 1
        if self._policy.config.aux != "off":
            zeros = torch.zeros(len(obs), device=self._device)
            shaped = self._shaper.shape(out.embedding, zeros, zeros, torch.zeros_like(self._reset), 0)
            self._aux = torch.stack([zeros, shaped.loop_similarity, shaped.intrinsic], dim=1)
        return action
