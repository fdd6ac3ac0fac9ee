"""`NavigationEnv`: many drones in many scenes, one batch, one cast per step.

A step has fixed shapes; resets are masked selects from precomputed spawn pools, which hold the pose
and its observation. Autoreset is same-step: `obs` is already the next episode's first observation
where an episode ended, `final_obs` is the one it ended with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from navi_core.config import REWARD_TERMS, EnvConfig
from navi_core.errors import ConfigError, NonFiniteError, SceneError
from navi_core.world.counter_random import Purpose, uniform
from navi_core.world.dynamics import Dynamics, linear_speed
from navi_core.world.field import Field, RayHits
from navi_core.world.floor import FloorMap, FloorView
from navi_core.world.rewards import Perception, RewardTerms, structure_fractions
from navi_core.world.sensor import SphericalSensor
from navi_core.world.spawning import SpawnPool, spawn_pool

__all__ = ["NavigationEnv", "StepBatch"]

POOL_SIZE = 32
"""Spawn poses kept per scene, the best-scored ones; each keeps its observation in memory."""
FLOOR_CLEARANCE_MARGIN = 0.05
"""Added to the drone's radius for the reachable floor [m]."""


@dataclass(frozen=True)
class StepBatch:
    """The outcome of one step.

    Attributes:
        obs: (B, 3, Az, El) float32; of the new episode where one ended.
        reward: (B,) float32 weighted environment reward.
        terminated: (B,) bool; never true in free flight.
        truncated: (B,) bool; time limit or void.
        final_obs: (B, 3, Az, El) observation after the step, before any reset.
        info: "reward_terms" {name: (B,)}, "collision", "void" (B,) bool, "position" (B, 3), "yaw",
            "speed" (B,), "scene_index", "episode_return", "episode_length" (B,), all before any reset.
    """

    obs: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    final_obs: torch.Tensor
    info: dict[str, Any]


class NavigationEnv:
    """Batched free flight with exploration rewards.

    Args:
        field: Scenes; row r starts in scene r mod S and moves on after `episodes_per_scene` episodes.
        num_envs: Rows B.
        config: Observation, dynamics, reward, episodes.
        seed: Seed of spawns and ages. Draws are functions of (seed, purpose, row, episode).

    Raises:
        ConfigError: `num_envs` below 1.
        SceneError: A scene without a viable spawn, named with its verdict.
    """

    def __init__(self, field: Field, num_envs: int, config: EnvConfig | None = None, seed: int = 0) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; it must be at least 1")
        self.field = field
        self.config = config or EnvConfig()
        self.num_envs = num_envs
        self.seed = seed
        c = self.config
        self.sensor = SphericalSensor(field, c.azimuth_bins, c.elevation_bins, c.max_distance)
        self.dynamics = Dynamics(field, c.dynamics)
        self.rewards = RewardTerms(field, num_envs, c.reward, c.dynamics.max_speed[0])
        clearance = c.dynamics.radius + FLOOR_CLEARANCE_MARGIN
        self.floors = [FloorMap(field, i, c.reward.view_cell, clearance) for i in range(field.num_scenes)]
        self.view = FloorView(self.floors, num_envs)
        self._prepare_fan()
        self._fill_pools(clearance)
        self._rows = torch.arange(num_envs)
        self._state: dict[str, torch.Tensor] = {}
        self._perception: Perception
        self.reset()

    def reset(self) -> torch.Tensor:
        """Begin every row's first episode and return the (B, 3, Az, El) observation."""
        rows = self.num_envs
        self.rewards.forget(torch.ones(rows, dtype=torch.bool))
        self.view.seen.zero_()
        episode = torch.zeros(rows, dtype=torch.int64)
        age = torch.zeros(rows, dtype=torch.int64)
        if self.config.stagger:
            age = (uniform(self.seed, Purpose.AGE, self._rows) * self.config.max_steps).to(torch.int64)
        scene, slot = self._draw_spawn(episode)
        self._state = {
            "episode": episode,
            "age": age,
            "length": torch.zeros(rows, dtype=torch.int64),
            "return": torch.zeros(rows),
            "scene": scene,
            "position": self._pool_position[scene, slot],
            "yaw": self._pool_yaw[scene, slot],
            "velocity": torch.zeros(rows, 4),
            "front": self._pool_front[scene, slot],
            "clearance": self._pool_clearance[scene, slot],
        }
        self._perception = self._pool_perception(scene, slot)
        self._see(self._pool_reach[scene, slot])
        return self._pool_obs[scene, slot].clone()

    def step(self, actions: torch.Tensor) -> StepBatch:
        """Fly one decision in every row.

        Args:
            actions: (B, 4) forward, vertical, lateral, yaw; clamped to [−1, 1].

        Raises:
            ConfigError: The actions have another shape.
            NonFiniteError: An action is NaN or infinite; nothing has moved.
        """
        if tuple(actions.shape) != (self.num_envs, 4):
            raise ConfigError(f"actions of shape {tuple(actions.shape)}, expected ({self.num_envs}, 4)")
        c, state = self.config, self._state
        scene = state["scene"]
        action = actions.detach().to(torch.float32)
        # A pose that is no number would never leave the kernels' grid walks.
        if action.device.type == "cpu" and not bool(torch.isfinite(action).all()):
            row = int((~torch.isfinite(action)).any(dim=1).nonzero()[0, 0])
            raise NonFiniteError("action", f"the action of row {row} is {action[row].tolist()}, not finite")
        motion = self.dynamics.step(state["position"], state["yaw"], state["velocity"], action, state["front"], scene)
        hits = self.sensor.cast(motion.position, motion.yaw, scene)
        final_obs = self.sensor.observation(hits)
        seen = structure_fractions(hits, c.azimuth_bins, self.rewards.band(scene))
        clearance = self.field.distance(motion.position, scene)
        front = self.dynamics.front_distance(hits.depth, hits.valid, c.azimuth_bins)
        before = state["position"]
        state.update(position=motion.position, yaw=motion.yaw)
        gain = self._see(self._reach(hits))
        moved = linear_speed(motion.position - before)
        terms = self.rewards.compute(
            position=motion.position,
            moved=moved,
            yaw=motion.yaw,
            scene_index=scene,
            clearance=clearance,
            clearance_before=state["clearance"],
            now=seen,
            before=self._perception,
            collided=motion.collided,
            attempted_speed=motion.attempted_speed,
            view_gain=gain,
        )
        reward = self.rewards.total(terms)
        age, length = state["age"] + 1, state["length"] + 1
        returns = state["return"] + reward
        void = (seen.starvation >= c.void_starvation) & (length > c.void_grace)
        truncated = void | (age >= c.max_steps)
        info = {
            "reward_terms": dict(zip(REWARD_TERMS, terms.unbind(dim=1))),
            "collision": motion.collided,
            "void": void,
            "position": motion.position,
            "yaw": motion.yaw,
            "speed": linear_speed(motion.velocity),
            "scene_index": scene,
            "episode_return": returns,
            "episode_length": length,
        }
        episode = state["episode"] + truncated.to(torch.int64)
        next_scene, slot = self._draw_spawn(episode)
        reset3 = truncated[:, None]
        self._state = {
            "episode": episode,
            "age": torch.where(truncated, 0, age),
            "length": torch.where(truncated, 0, length),
            "return": torch.where(truncated, 0.0, returns),
            "scene": torch.where(truncated, next_scene, scene),
            "position": torch.where(reset3, self._pool_position[next_scene, slot], motion.position),
            "yaw": torch.where(truncated, self._pool_yaw[next_scene, slot], motion.yaw),
            "velocity": torch.where(reset3, 0.0, motion.velocity),
            "front": torch.where(truncated, self._pool_front[next_scene, slot], front),
            "clearance": torch.where(truncated, self._pool_clearance[next_scene, slot], clearance),
        }
        self._perception = seen.select(truncated, self._pool_perception(next_scene, slot))
        self.rewards.forget(truncated)
        # What the spawn already sees earns nothing; for the other rows the marking changes nothing.
        self._see(torch.where(reset3, self._pool_reach[next_scene, slot], 0.0))
        obs = torch.where(reset3[:, :, None, None], self._pool_obs[next_scene, slot], final_obs)
        return StepBatch(obs, reward, torch.zeros_like(truncated), truncated, final_obs, info)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return everything that decides the future, as tensors."""
        p = self._perception
        return {
            **{name: value.clone() for name, value in self._state.items()},
            "perception": torch.stack([p.starvation, p.near, p.band, p.forward]),
            "visits": self.rewards.visits.clone(),
            "headings": self.rewards.headings.clone(),
            "seen": self.view.seen.clone(),
        }

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restore `state_dict`.

        Raises:
            ConfigError: The state is of another number of rows or other scenes.
        """
        current = self.state_dict()
        for name, value in current.items():
            if name not in state or state[name].shape != value.shape:
                found = tuple(state[name].shape) if name in state else "nothing"
                raise ConfigError(f"environment state {name!r}: {found}, expected {tuple(value.shape)}; start --fresh")
        self._state = {name: state[name].clone() for name in self._state}
        self._perception = Perception(*state["perception"].clone().unbind(0))
        self.rewards.visits.copy_(state["visits"])
        self.rewards.headings.copy_(state["headings"])
        self.view.seen.copy_(state["seen"])

    def observe(self) -> torch.Tensor:
        """Return the (B, 3, Az, El) observation of the current poses, cast anew (after a restored state)."""
        s = self._state
        return self.sensor.observation(self.sensor.cast(s["position"], s["yaw"], s["scene"]))

    def _draw_spawn(self, episode: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scene and the pool slot of each row's episode."""
        scene = (self._rows + episode // self.config.episodes_per_scene) % self.field.num_scenes
        draw = uniform(self.seed, Purpose.SPAWN, self._rows, episode)
        return scene, (draw * self._pool_count[scene]).to(torch.int64)

    def _prepare_fan(self) -> None:
        """Choose the rays nearest to the horizon: one elevation bin, or the two around an even split."""
        c = self.config
        elevation = torch.linspace(math.pi / 2, -math.pi / 2, c.elevation_bins, dtype=torch.float64).abs()
        self._horizon = (elevation <= float(elevation.min()) + 1e-9).nonzero()[:, 0]
        self._horizon_cos = math.cos(float(elevation.min()))
        angle = torch.arange(c.azimuth_bins, dtype=torch.float64) * (2.0 * math.pi / c.azimuth_bins)
        self._fan = torch.stack([angle.sin(), -angle.cos()], dim=1).to(torch.float32)

    def _reach(self, hits: RayHits) -> torch.Tensor:
        """Return (B, Az) the horizontal length of the near-horizon rays, at most the view radius [m].

        Of two rays at one azimuth the longer counts: either of them sees the floor below its path.
        """
        c = self.config
        depth = hits.depth.view(-1, c.azimuth_bins, c.elevation_bins)[:, :, self._horizon]
        return (depth.amax(dim=2) * self._horizon_cos).clamp(max=c.reward.view_radius)

    def _see(self, reach: torch.Tensor) -> torch.Tensor:
        """Mark what the current poses see and return the newly seen area [m²]."""
        s = self._state
        cos, sin = s["yaw"].cos()[:, None], s["yaw"].sin()[:, None]
        x, z = self._fan[None, :, 0], self._fan[None, :, 1]
        heading = torch.stack([x * cos + z * sin, z * cos - x * sin], dim=2)
        return self.view.mark(s["position"], heading, reach, s["scene"], s["episode"] + 1)

    def _pool_perception(self, scene: torch.Tensor, slot: torch.Tensor) -> Perception:
        return Perception(*self._pool_seen[scene, slot].unbind(dim=1))

    def _fill_pools(self, clearance: float) -> None:
        """Probe every scene and keep its best spawn poses with what they see."""
        c, scenes = self.config, self.field.num_scenes
        pools: list[SpawnPool] = []
        for i, scene in enumerate(self.field.scenes):
            pool = spawn_pool(self.field, i, c.spawn, clearance)
            if pool.verdict.verdict == "FAIL":
                raise SceneError(
                    f"scene {scene.name!r} has no viable spawn (verdict FAIL, {pool.verdict.candidates} free "
                    f"candidates, best starvation {pool.verdict.best_starvation:.2f}); leave it out or see "
                    "`navi scenes qualify`"
                )
            pools.append(pool)
        size = min(POOL_SIZE, max(len(p.position) for p in pools))
        self._pool_count = torch.tensor([min(len(p.position), size) for p in pools])
        self._pool_position = torch.zeros(scenes, size, 3)
        self._pool_yaw = torch.zeros(scenes, size)
        self._pool_front = torch.zeros(scenes, size)
        self._pool_clearance = torch.zeros(scenes, size)
        self._pool_reach = torch.zeros(scenes, size, c.azimuth_bins)
        self._pool_seen = torch.zeros(scenes, size, 4)
        self._pool_obs = torch.zeros(scenes, size, 3, c.azimuth_bins, c.elevation_bins)
        for i, pool in enumerate(pools):
            n = int(self._pool_count[i])
            scene_index = torch.full((n,), i)
            position, yaw = pool.position[:n], pool.yaw[:n]
            hits = self.sensor.cast(position, yaw, scene_index)
            seen = structure_fractions(hits, c.azimuth_bins, self.rewards.band(scene_index))
            self._pool_position[i, :n] = position
            self._pool_yaw[i, :n] = yaw
            self._pool_front[i, :n] = self.dynamics.front_distance(hits.depth, hits.valid, c.azimuth_bins)
            self._pool_clearance[i, :n] = self.field.distance(position, scene_index)
            self._pool_reach[i, :n] = self._reach(hits)
            self._pool_seen[i, :n] = torch.stack([seen.starvation, seen.near, seen.band, seen.forward], dim=1)
            self._pool_obs[i, :n] = self.sensor.observation(hits)
        self.verdicts = [pool.verdict for pool in pools]
