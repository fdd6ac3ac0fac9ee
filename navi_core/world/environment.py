"""`NavigationEnv`: vectorised environment of many drones in many scenes; one batched ray cast per step.

A step is a program of fixed shapes over tensors that stay where they are; resets are masked selects from
precomputed spawn pools, which hold the pose and its observation. Autoreset is same-step: `obs` is already
the next episode's first observation where an episode ended, `final_obs` is the one it ended with.

On the CPU a whole step is one call of the C++ kernels, row by row (`step.py`); without a compiler the parts
that touch every ray or floor cell are numba kernels. Elsewhere, and with `tensor_only`, all are tensor programs
that never look at a value from the host, so that a device may run ahead of it or replay the whole step as one graph.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch

from navi_core.config import EnvConfig
from navi_core.errors import ConfigError
from navi_core.world.arguments import shaped_actions, whole_number
from navi_core.world.counter_random import Purpose, uniform
from navi_core.world.dynamics import Bodies, Dynamics
from navi_core.world.field import Field
from navi_core.world.floor.reachable import FloorMap, FloorView
from navi_core.world.goals import Goals, relative_goal
from navi_core.world.interface import Environment, Poses, StepBatch
from navi_core.world.rewards import CustomRewards, RewardTerms
from navi_core.world.sensor.faults import SensorModel
from navi_core.world.sensor.panorama import PanoramaReader, SphericalSensor
from navi_core.world.spawning import BODY, StartPoses, build_pools, drone_state, initial_state
from navi_core.world.step import NativeStep, TensorStep

MOST_ROWS = 2**20
"""Upper limit of an environment's rows, far beyond use: a mistyped number must not exhaust the memory."""
FAR = 1e7
"""Sanity limit of restored positions, angles and speeds [m, rad, m/s]."""
_MOTION = ("position", "yaw", "velocity")
SEEDS = (-(2**63), 2**63 - 1)
"""Range of valid seeds: 64 bits."""


class NavigationEnv(Environment):
    """Vectorised environment: free flight with exploration rewards, or flight to goals (`task: point_goal`).

    Args:
        field: Scenes; row r starts in scene r mod S and moves on after `episodes_per_scene` episodes. The
            environment's state is on the field's device.
        num_envs: Rows B.
        config: Observation, dynamics, reward, episodes.
        first_row: Index of the first row among those of the run: several processes share the run's rows, and a
            row's episodes do not depend on its process.
        seed: Seed of spawns, ages and sensor faults. Draws are functions of (seed, purpose, row, episode, step).
        tensor_only: Run the tensor programs of other devices on the CPU too. Actions that are no numbers
            are then not refused but flown as zero and flagged in `info["action_fault"]`, as on other devices.

    Raises:
        ConfigError: The field is none, `num_envs` is below 1 or beyond `MOST_ROWS`, or the seed is no whole number.
        SceneError: A scene without a viable spawn, named with its verdict.

    Attributes:
        counters: "episode" (number), "age" (decisions towards truncation), "length" (decisions flown), "scene",
            each (B,) int64, of the rows' present episodes.
    """

    field: Field

    def __init__(
        self,
        field: Field,
        num_envs: int,
        config: EnvConfig | None = None,
        seed: int = 0,
        *,
        first_row: int = 0,
        tensor_only: bool = False,
    ) -> None:
        if not isinstance(field, Field):
            raise ConfigError(f"field is {type(field).__name__}; write NavigationEnv(Field([scene]), …)")
        if not isinstance(config, EnvConfig | None):
            raise ConfigError(f"config is {type(config).__name__}; write EnvConfig(…)")
        whole_number("num_envs", num_envs, 1, MOST_ROWS)
        whole_number("seed", seed, *SEEDS)
        theirs = frozenset(vars(self))  # what a class of a user's own has set before
        self.field = field
        self.config = config or EnvConfig()
        self.num_envs = num_envs
        self.seed = seed
        self.device = field.device
        c, device = self.config, field.device
        self._kernels = device.type == "cpu" and not tensor_only
        self.sensor = SphericalSensor(field, c.azimuth_bins, c.elevation_bins, c.max_distance)
        self.dynamics = Dynamics(field, c.dynamics, kernels=self._kernels)
        self.rewards = RewardTerms(field, num_envs, c.reward, c.dynamics.max_speed[0])
        self.reader = PanoramaReader(c, device, tracer=field.native if self._kernels else None)
        floor = c.reward.view_cell, c.floor_clearance, c.dynamics.height_limit
        self.floors = [FloorMap(field, i, *floor) for i in range(field.num_scenes)]
        self.view = FloorView(self.floors, num_envs, self.reader.fan, c.reward.view_radius, device)
        self._areas = torch.tensor([floor.area for floor in self.floors], dtype=torch.float32, device=device)
        self._pools = build_pools(self.sensor, self.reader, self.rewards, self.view, c)
        self.verdicts = self._pools.verdicts
        self._rows = torch.arange(first_row, first_row + num_envs, device=device)
        self._bodies = Bodies(c, self._rows)
        self.dynamics.radii = tuple(self._bodies.radii.tolist())
        self._sensor_model = SensorModel(c, self._pools, self._rows, seed, sparse=self._kernels)
        # Updated in place, never rebound: a captured program finds them where they were.
        self._body = torch.zeros(num_envs, sum(BODY.values()), device=device)
        self._drone_state = drone_state(self._body)
        self.counters = {
            name: torch.zeros(num_envs, dtype=torch.int64, device=device)
            for name in ("episode", "age", "length", "scene")
        }
        self.goals: Goals | None = None
        if c.task == "point_goal":
            spawns = self._pools.body[:, :, : BODY["position"]]
            self.goals = Goals(self.floors, spawns, self._pools.count, c.goal, self._rows, seed, device)
        self._custom_rewards = CustomRewards(c)
        self._describe_state()
        self._made = (num_envs, self.config, seed, first_row, tensor_only)
        # Before the first reset, which may be a user's own, too.
        self._parts = frozenset(vars(self)) - theirs | {"_parts"}
        self.reset()

    def reset(self, seed: int | None = None, *, episode: int = 0) -> torch.Tensor:
        """Reset every row to a new episode and return the (B, 3, Az, El) observation.

        Args:
            seed: New seed of the episodes' draws; None keeps the current one. A scene's goals stay where
                the constructor's seed put them; their assignment to rows is drawn anew.
            episode: Number of the episode to begin.
        """
        whole_number("episode", episode, 0, 2**31)
        if seed is not None:
            self.seed = whole_number("seed", seed, *SEEDS)
            self._sensor_model.draw_by(self.seed)
        rows = torch.arange(self.num_envs, device=self.device)
        obs = self.begin(rows, torch.full_like(rows, episode), StartPoses())
        if self.config.stagger:
            self.counters["age"].copy_(uniform(self.seed, Purpose.AGE, self._rows) * self.config.max_steps)
        return obs

    def begin(self, rows: torch.Tensor, episode: torch.Tensor, start: StartPoses) -> torch.Tensor:
        """Reset some rows to given start poses; the poses of the episodes after them are drawn as usual.

        Args:
            rows: (N,) int64, each at most once.
            episode: (N,) int64 numbers of the episodes.
            start: Start poses; a scene alone draws one of its spawns, a position alone keeps its scene and yaw.

        Returns:
            (N, 3, Az, El) observations.

        Raises:
            ConfigError: A start pose is invalid, out of reach, or too narrow for the drone; nothing has begun.
        """
        start.check(len(rows), self.field, goals=self.goals is not None)
        number = self.counters["episode"].clone()
        number[rows] = episode
        scene = self._draw_spawn(number)[0]
        if start.scene is not None:
            scene[rows] = start.scene
        slot, here = self._pools.draw_slot(self.seed, self._rows, number, scene), scene[rows]
        start.check_room(here, self.field, self.floors, max(self.config.dynamics.radius, *self.dynamics.radii))
        pool = self._pools
        profile = self._sensor_model.profiles(number)[rows]
        body, obs = (of[here, slot[rows]] for of in (pool.body, pool.obs))
        floor = pool.floor[profile, here, slot[rows]]
        position, yaw = body[:, :3], body[:, 3]
        if start.position is not None or start.yaw is not None:
            position = position if start.position is None else start.position.to(position)
            yaw = yaw if start.yaw is None else torch.remainder(start.yaw, 2.0 * math.pi).to(yaw)
            body, obs, floors = initial_state(
                self.sensor, self.reader, self.rewards, self.view, position.contiguous(), yaw.contiguous(), here,
                pool.view_limits,
            )  # fmt: skip
            floor = floors[profile, torch.arange(len(rows), device=self.device)]
        if self.goals is not None and start.goal is not None:
            self.goals.choose(rows, here, start.goal, position)  # the last thing that may be refused
        begins = torch.zeros_like(number, dtype=torch.bool)
        begins[rows] = True
        self.rewards.visits[rows] = 0
        self.view.seen[rows] = self.view.cells(floor)
        self._body[rows] = body
        begun: dict[str, torch.Tensor | int] = {"episode": episode, "scene": here, "age": 0, "length": 0}
        for name, value in begun.items():
            self.counters[name][rows] = value
        self._take_episodes()
        if self.goals is not None and start.goal is None:
            if start.position is None:
                self.goals.begin(begins, scene, slot, number, self._drone_state["position"], self.seed)
            else:
                self.goals.begin_at(rows, here, position, episode, self.seed)
        return self._sensor_model.begin(obs, episode, torch.zeros_like(rows), rows)

    def step(self, actions: torch.Tensor) -> StepBatch:
        """Step the vectorised environment (all rows) once; an episode that ends is reset in the same step.

        Args:
            actions: (B, 4) forward, vertical, lateral, yaw; clamped to [−1, 1].

        Raises:
            ConfigError: The actions have another shape.
            NonFiniteError: On the CPU, an action is NaN or infinite; nothing has moved.
        """
        action = shaped_actions(actions, self.num_envs, self.device)
        batch = self._stepper.fly(action, self.seed)
        if not self._custom_rewards:
            return batch
        return self._custom_rewards.add_to(batch, action, self._drone_state["return"].squeeze(1))

    def relative_goals(self) -> torch.Tensor | None:
        """Return the (B, 4) current goals in the drones' frames, see `relative_goal`; None without goals."""
        if self.goals is None:
            return None
        return relative_goal(
            self._drone_state["position"], self._drone_state["yaw"].squeeze(1), self.goals.of(self.counters["scene"])
        )

    def step_rows(self, rows: torch.Tensor, actions: torch.Tensor) -> StepBatch:
        """Step a subset of the rows; the others stay unchanged, and no rays are cast for them.

        Every row moves as `step` would move it, to the bit.

        Args:
            rows: (N,) int64 rows, each at most once.
            actions: (N, 4).

        Returns:
            The outcome, N rows in the order of `rows`.

        Raises:
            ConfigError: A row does not exist or is named twice, or the actions have another shape.
        """
        if len(rows) == self.num_envs and rows.tolist() == list(range(self.num_envs)):
            return self.step(actions)
        if len(rows.unique()) != len(rows) or not bool(((rows >= 0) & (rows < self.num_envs)).all()):
            raise ConfigError(f"rows {rows.tolist()[:8]}: each of 0 to {self.num_envs - 1} at most once")
        subset = self._subset(rows)
        batch = subset.step(actions)
        after = subset._state()
        for name, value in self._state().items():
            value[rows] = after[name]
        self._take_episodes()
        return batch

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a copy of the environment's full state as tensors, sufficient to continue the episodes bit for bit."""
        return {name: value.clone() for name, value in self._state().items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restore the environment from a `state_dict`.

        Raises:
            ConfigError: The state is of another number of rows or other scenes, or no flight could have led to it.
        """
        current = self._state()
        for name, value in current.items():
            if name not in state or state[name].shape != value.shape:
                found = tuple(state[name].shape) if name in state else "nothing"
                raise ConfigError(f"environment state {name!r}: {found}, expected {tuple(value.shape)}; start --fresh")
        # What the kernels would follow out of their arrays, or for ever.
        known = bool((state["scene"] < self.field.num_scenes).all())
        counted = all(bool((state[name] >= 0).all()) for name in self.counters)
        if self.goals is not None:
            known = known and self.goals.known(state["goal"], state["scene"])
        if not (known and counted and all(bool((state[name].abs() <= FAR).all()) for name in _MOTION)):
            raise ConfigError("environment state holds numbers that no flight could have led to; start --fresh")
        for name, value in current.items():
            value.copy_(state[name])
        self.view.forget_unreachable(self.counters["scene"])
        self._take_episodes()

    def observe(self) -> torch.Tensor:
        """Cast the (B, 3, Az, El) observation of the current poses anew, without sensor faults or delay."""
        position, yaw = self._drone_state["position"], self._drone_state["yaw"].squeeze(1)
        scene = self.counters["scene"]
        return self.reader.read(self.sensor.cast(position, yaw, scene), self.rewards.band(scene)).obs

    def progress(self) -> torch.Tensor:
        """Return (B, 3) privileged inputs of the critic: work left in the current episodes, decisions flown.

        Unseen floor [m²], its fraction and the decisions flown; with goals the path length [m] and whether the goal is
        near enough to stop at (0 or 1) instead of the floor.
        """
        flown = self.counters["length"].to(torch.float32)
        if self.goals is not None:
            near = self.goals.near(self._drone_state["position"], self.counters["scene"])
            return torch.stack((self.goals.way, near.to(flown.dtype), flown), dim=1)
        share = 1.0 - self.view.fraction(self.counters["scene"])
        area = self._areas[self.counters["scene"]]
        return torch.stack((area * share, share, flown), dim=1)

    def unseen_around(self) -> torch.Tensor:
        """Return (B, ANTICIPATED) where unseen floor lies around the drones, see `FloorView.unseen_around`."""
        state = self._drone_state
        return self.view.unseen_around(state["position"], state["yaw"].squeeze(1), self.counters["scene"])

    def poses(self) -> Poses:
        """Return the current poses: "position" (B, 3) [m], "yaw" (B,) [rad], "scene_index" (B,)."""
        return {
            "position": self._drone_state["position"].clone(),
            "yaw": self._drone_state["yaw"].squeeze(1).clone(),
            "scene_index": self.counters["scene"].clone(),
        }

    @property
    def scan_age(self) -> torch.Tensor | None:
        """(B,) int64 ages of the latest observations [decisions]; None for a sensor without delay."""
        if not self.config.sensor.oldest:
            return None
        return self._sensor_model.age(self.counters["episode"], self.counters["length"])

    @property
    def bodies(self) -> torch.Tensor | None:
        """(B, 3) factor of the speed limits, radius [m] and smoothing of each row; None where all have the drone's."""
        return self._bodies.current

    def drone_state(self) -> dict[str, torch.Tensor]:
        """Return copies of "position" (B, 3) [m], "yaw" (B,) [rad] and body "velocity" (B, 4) [m/s, rad/s]."""
        state = {name: value.clone() for name, value in self._drone_state.items()}
        return state | {"yaw": state["yaw"].squeeze(1)}

    def __deepcopy__(self, memo: dict[int, Any]) -> NavigationEnv:
        """Copy the environment with its running episodes; what never changes (scenes, pools) is shared."""
        twin = self._subset(torch.arange(self.num_envs, device=self.device))
        memo[id(self)] = twin
        twin.__dict__ |= copy.deepcopy(self._added(), memo)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: scenes, settings, `state_dict`. The kernels hold addresses and are left out."""
        return {
            "made": (self.field, *self._made),
            "seed": self.seed,
            "own_goals": None if self.goals is None else self.goals.own(),
            "flights": self.state_dict(),
            "added": self._added(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the environment from the pickled scenes and settings, then restore its episodes."""
        field, num_envs, config, seed, first_row, tensor_only = state["made"]
        self.__dict__ |= state["added"]  # a user's own reset may read it
        NavigationEnv.__init__(self, field, num_envs, config, seed, first_row=first_row, tensor_only=tensor_only)
        self.seed = state["seed"]
        self._sensor_model.draw_by(self.seed)
        if self.goals is not None:
            self.goals.take_own(state["own_goals"])
        self.load_state_dict(state["flights"])
        self.__dict__ |= state["added"]

    def _take_episodes(self) -> None:
        """Set sensors and bodies to those of the current episodes."""
        self._sensor_model.take_profiles(self.counters["episode"])
        self._bodies.take(self.seed, self.counters["episode"])

    def _added(self) -> dict[str, Any]:
        """Return the instance attributes added by a subclass or a caller, by name, for copies and pickles."""
        return {name: value for name, value in vars(self).items() if name not in self._parts}

    def _state(self) -> dict[str, torch.Tensor]:
        """Return the environment's full state as the live tensors, not copies."""
        return {
            **self.counters,
            **self._drone_state,
            "visits": self.rewards.visits,
            "floor": self.view.seen,
            "late": self._sensor_model.late,
        } | ({} if self.goals is None else {"goal": self.goals.index, "way": self.goals.way})

    def _subset(self, rows: torch.Tensor) -> NavigationEnv:
        """Return an environment of a subset of the rows: the same scenes and pools, copies of their state."""
        subset = object.__new__(type(self))
        subset.__dict__ |= self.__dict__
        subset.num_envs, subset._rows = len(rows), self._rows[rows]
        subset._body = self._body[rows]
        subset._drone_state = drone_state(subset._body)
        subset.counters = {name: counter[rows] for name, counter in self.counters.items()}
        subset._sensor_model, subset._bodies = self._sensor_model.subset(rows), self._bodies.subset(rows)
        subset.rewards, subset.view = copy.copy(self.rewards), copy.copy(self.view)
        subset.rewards.visits, subset.view.seen = self.rewards.visits[rows], self.view.seen[rows]
        subset.goals = None if self.goals is None else self.goals.subset(rows)
        subset._describe_state()
        return subset

    def _describe_state(self) -> None:
        """Build the stepper over the environment's state: `NativeStep` (C++) where it can, else `TensorStep`."""
        # The C++ step knows no goals.
        if self._kernels and self.field.native is not None and self.goals is None:
            self._stepper: NativeStep | TensorStep = NativeStep(
                self.field.native, self.config, self.sensor.directions, self.dynamics, self.reader, self.rewards,
                self.view, self._pools, self._rows, self._body, self.counters, self._sensor_model,
                self._bodies,
            )  # fmt: skip
        else:
            self._stepper = TensorStep(
                self.config, self.sensor, self.dynamics, self.reader, self.rewards, self.view, self._pools,
                self._rows, self._body, self.counters, self._sensor_model, self._bodies, self.goals,
                refuse=self._kernels,
            )  # fmt: skip

    def _draw_spawn(self, episode: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the scene index and the spawn-pool slot of each row's episode."""
        return self._pools.draw(self.seed, self._rows, episode, self.config.episodes_per_scene)
