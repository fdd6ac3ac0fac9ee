"""Sensor model: faults and delay applied to the true observations of an environment's rows."""

from __future__ import annotations

import copy

import torch

from navi_core.config import EnvConfig
from navi_core.world.sensor.noise import SensorFaults
from navi_core.world.spawning.pool_tensors import SpawnPools


class SensorModel:
    """The observations of an environment's rows as its sensor gives them.

    Args:
        config: Faults and delay of the sensor, its range.
        pools: What the rows see when an episode begins.
        rows: (B,) int64 keys of the rows.
        seed: Of the faults.
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
        """Draw the faults by another seed."""
        self._seed = seed
        self._faults = SensorFaults(self._config.sensor, seed, self._rows, self._config.max_distance)

    def subset(self, rows: torch.Tensor) -> SensorModel:
        """Return what some rows are shown, a copy."""
        subset = copy.copy(self)
        subset._rows, subset.late = self._rows[rows], self.late[rows]
        subset.draw_by(self._seed)
        return subset

    def begin(
        self, obs: torch.Tensor, episode: torch.Tensor, length: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return what is shown where episodes begin.

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
        """Return what is shown after a step: `StepBatch.obs` and `ended_obs`.

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
