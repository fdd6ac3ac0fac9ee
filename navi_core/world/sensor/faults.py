"""Sensor noise model: depth noise, ray dropout and delay, applied to the true observations of an environment.

Noise of the depth and rays that drop out are drawn as functions of (seed, row, episode, decision, ray): a row meets the
same faults alone, among a thousand others, and when it is replayed.
"""

from __future__ import annotations

import copy
import math

import torch

from navi_core.config import EnvConfig, SensorConfig
from navi_core.world.counter_random import Purpose, spread, words
from navi_core.world.sensor.panorama import denormalise_depth, normalise_depth
from navi_core.world.spawning import SpawnPools

_LOW = 2**32 - 1


class SensorFaults:
    """Sensor fault model: adds depth noise and ray dropout to observations.

    Args:
        config: Kinds and strengths of the faults.
        seed: Seed of the draws.
        rows: (B,) int64 keys of the rows.
        max_distance: Range M of the sensor [m].
    """

    def __init__(self, config: SensorConfig, seed: int, rows: torch.Tensor, max_distance: float) -> None:
        self._config, self._seed, self._rows, self._max_distance = config, seed, rows, max_distance
        self._noisy = bool(config.depth_additive or config.depth_relative or config.depth_quadratic)
        self.active = self._noisy or config.dropout > 0.0
        """Whether `apply` changes anything."""
        self._ray: torch.Tensor | None = None

    def apply(
        self, obs: torch.Tensor, episode: torch.Tensor, step: torch.Tensor, which: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return a corrupted copy of true observations; without faults, the observations themselves.

        Args:
            obs: (B, 3, Az, El) as `sensor.observation`.
            episode: (B,) int64.
            step: (B,) int64 decisions since the episode began.
            which: (B,) the rows that they are of; None for all rows.

        Returns:
            (B, 3, Az, El); rays that missed still miss, those that drop out have depth 1, semantic 0, valid 0.
            Depth leaves neither [0, M] nor its ray.
        """
        if not self.active:
            return obs
        c = self._config
        depth, semantic, valid = obs.flatten(2).unbind(1)
        if self._ray is None:
            self._ray = torch.arange(depth.shape[1], device=obs.device)
        rows = self._rows if which is None else self._rows[which]
        word = spread(words(self._seed, Purpose.SENSOR, rows, episode, step)[:, None], self._ray)
        kept = valid > 0.5
        if self._noisy:
            metres = denormalise_depth(depth, self._max_distance)
            sigma = c.depth_additive + c.depth_relative * metres + c.depth_quadratic * metres**2
            depth = normalise_depth(metres + sigma * _normal(word), self._max_distance)
        if c.dropout:
            kept = kept & ((spread(word, 1) & _LOW) >= round(c.dropout * 2**32))
        corrupted = [torch.where(kept, depth, 1.0), torch.where(kept, semantic, 0.0), kept.to(obs.dtype)]
        return torch.stack(corrupted, dim=1).view(obs.shape)


def _unit(bits: torch.Tensor) -> torch.Tensor:
    """Convert 32 random bits to a uniform float32 in (0, 1]."""
    return ((bits.to(torch.float64) + 0.5) * 2.0**-32).to(torch.float32)


def _normal(word: torch.Tensor) -> torch.Tensor:
    """Draw standard normal numbers, one of each 64-bit word (Box & Muller 1958)."""
    radius = (-2.0 * _unit(word >> 32 & _LOW).log()).sqrt()
    return radius * (2.0 * math.pi * _unit(word & _LOW)).cos()


class SensorModel:
    """Sensor model of an environment's rows: corrupts (faults) and delays their true observations.

    Args:
        config: Faults and delay of the sensor, its range.
        pools: Spawn pools with the observation at each start pose.
        rows: (B,) int64 keys of the rows.
        seed: Seed of the faults.
        sparse: Spoil spawns only where an episode begins, which the host has to look for; else those of every row.

    Attributes:
        late: (B, 3, Az, El) what a delayed sensor shows next, updated in place; (B, 0) without a delay.
    """

    def __init__(self, config: EnvConfig, pools: SpawnPools, rows: torch.Tensor, seed: int, *, sparse: bool) -> None:
        self._config, self._pools, self._rows, self._sparse = config, pools, rows, sparse
        self._delayed = config.sensor.delayed
        shape = pools.obs.shape[2:] if self._delayed else (0,)
        self.late = torch.zeros(len(rows), *shape, device=rows.device)
        self.draw_by(seed)

    @property
    def corrupts(self) -> bool:
        """Whether the sensor has faults or a delay."""
        return self._faults.active or self._delayed

    def draw_by(self, seed: int) -> None:
        """Reseed the random faults."""
        self._seed = seed
        self._faults = SensorFaults(self._config.sensor, seed, self._rows, self._config.max_distance)

    def subset(self, rows: torch.Tensor) -> SensorModel:
        """Return a sensor model of a subset of the rows, with copies of their state."""
        subset = copy.copy(self)
        subset._rows, subset.late = self._rows[rows], self.late[rows]
        subset.draw_by(self._seed)
        return subset

    def begin(
        self, obs: torch.Tensor, episode: torch.Tensor, length: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the sensor's observations of rows that begin an episode.

        Args:
            obs: (N, 3, Az, El) true observations.
            episode: (N,) their numbers.
            length: (N,) zeros.
            rows: (N,) their rows; None for all.
        """
        obs = self._faults.apply(obs, episode, length, rows)
        if self._delayed:
            self.late[slice(None) if rows is None else rows] = obs
        return obs

    def follow(
        self,
        begins: torch.Tensor,
        scene: torch.Tensor,
        slot: torch.Tensor,
        obs: torch.Tensor,
        episode: torch.Tensor,
        length: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sensor's observations after a step: `StepBatch.obs` and `ended_obs`.

        Args:
            begins: (B,) bool, the next episode begins.
            scene: (B,) of the new episode.
            slot: (B,) entry of its pool.
            obs: (B, 3, Az, El) true observation after the step; may be overwritten.
            episode: (B,) number of the episode that follows the step.
            length: (B,) decisions of the episode that the step belongs to.
        """
        spawns = self._pools.obs
        shown = self._faults.apply(obs, episode - begins.to(torch.int64), length)
        if self._sparse and not self._delayed:
            begin = begins.nonzero().squeeze(1)
            if not len(begin):
                return shown, shown
            ended = torch.empty_like(shown)
            ended[begin] = shown[begin]
            spawn = spawns[scene[begin], slot[begin]]
            shown[begin] = self._faults.apply(spawn, episode[begin], torch.zeros_like(begin), begin)
            return shown, ended
        ended = shown
        spawn = self._faults.apply(spawns[scene, slot], episode, torch.zeros_like(length))
        mask = begins[:, None, None, None]
        fresh = torch.where(mask, spawn, ended)
        if not self._delayed:
            return fresh, ended
        ended = self.late.clone()
        self.late.copy_(fresh)
        return torch.where(mask, spawn, ended), ended
