"""Sensor model: profiles, depth noise, ray dropout, delay and rate, applied to an environment's true observations.

Noise of the depth and rays that drop out are drawn as functions of (seed, row, episode, decision, ray); profile and
delay as functions of (seed, row, episode). A row meets the same alone, among a thousand others, and when replayed.
"""

from __future__ import annotations

import copy
import math

import torch

from navi_core.config import EnvConfig, SensorConfig
from navi_core.world.counter_random import Purpose, spread, uniform, words
from navi_core.world.sensor.panorama import denormalise_depth, normalise_depth
from navi_core.world.sensor.profiles import PROFILES, fields_of_view
from navi_core.world.spawning import SpawnPools

_LOW = 2**32 - 1


class SensorFaults:
    """Sensor fault model: adds depth noise and ray dropout to observations, and takes away what a profile cannot see.

    Args:
        config: Profiles, kinds and strengths of the faults.
        seed: Seed of the draws.
        rows: (B,) int64 keys of the rows.
        max_distance: Range M of the observations [m].
    """

    def __init__(self, config: SensorConfig, seed: int, rows: torch.Tensor, max_distance: float) -> None:
        self._config, self._seed, self._rows, self._max_distance = config, seed, rows, max_distance
        self._noisy = bool(config.depth_additive or config.depth_relative or config.depth_quadratic)
        self.active = self._noisy or config.dropout > 0.0 or config.limited
        """Whether `apply` changes anything."""
        self._ray: torch.Tensor | None = None
        chosen = [PROFILES[name] for name in config.profiles]
        ranges = [[math.log1p(min(d, max_distance)) / math.log1p(max_distance) for d in p.limits] for p in chosen]
        self._ranges = torch.tensor(ranges, dtype=torch.float32, device=rows.device)

    def profiles(self, rows: torch.Tensor, episode: torch.Tensor) -> torch.Tensor:
        """Draw the profile of the episodes (N,) of rows with keys (N,): indices (N,) int64; 0 without profiles."""
        return _drawn(self._seed, Purpose.PROFILE, rows, episode, max(len(self._config.profiles), 1))

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
            (B, 3, Az, El); rays that missed still miss, those that drop out have depth 1, semantic 0, valid 0; with
            profiles they are unknown. Depth leaves neither [0, M] nor its ray.
        """
        if not self.active:
            return obs
        c = self._config
        depth, semantic, valid = obs.flatten(2).unbind(1)
        true = depth
        if self._ray is None:
            self._ray = torch.arange(depth.shape[1], device=obs.device)
        rows = self._rows if which is None else self._rows[which]
        word = spread(words(self._seed, Purpose.SENSOR, rows, episode, step)[:, None], self._ray)
        kept = valid > 0.5
        measured = torch.ones_like(kept)
        if self._noisy:
            metres = denormalise_depth(depth, self._max_distance)
            sigma = c.depth_additive + c.depth_relative * metres + c.depth_quadratic * metres**2
            depth = normalise_depth(metres + sigma * _normal(word), self._max_distance)
        if c.dropout:
            measured = ~kept | ((spread(word, 1) & _LOW) >= round(c.dropout * 2**32))
            kept = kept & measured
        if c.limited:
            mask = fields_of_view(c.profiles, *obs.shape[2:]).to(obs.device)
            profile = self.profiles(rows, episode)
            nearest, farthest = self._ranges[profile, :, None].unbind(1)
            measured &= mask[profile] & ~(kept & (true < nearest))
            kept = kept & measured & (true <= farthest)
            missing = torch.where(measured, farthest, 0.0)
        else:
            missing = torch.ones_like(depth)
        corrupted = [torch.where(kept, depth, missing), torch.where(kept, semantic, 0.0), kept.to(obs.dtype)]
        return torch.stack(corrupted, dim=1).view(obs.shape)


def _unit(bits: torch.Tensor) -> torch.Tensor:
    """Convert 32 random bits to a uniform float32 in (0, 1]."""
    return ((bits.to(torch.float64) + 0.5) * 2.0**-32).to(torch.float32)


def _normal(word: torch.Tensor) -> torch.Tensor:
    """Draw standard normal numbers, one of each 64-bit word (Box & Muller 1958)."""
    radius = (-2.0 * _unit(word >> 32 & _LOW).log()).sqrt()
    return radius * (2.0 * math.pi * _unit(word & _LOW)).cos()


def _drawn(seed: int, purpose: Purpose, rows: torch.Tensor, episode: torch.Tensor, count: int) -> torch.Tensor:
    """Draw one of `count` numbers from 0 for each episode (N,) of rows with keys (N,)."""
    if count == 1:
        return torch.zeros_like(rows)
    return (uniform(seed, purpose, rows, episode) * count).to(torch.int64)


class SensorClock:
    """Age of the scans that a sensor with delay and period shows, and the scans kept for it.

    Args:
        config: Delay and period.
        seed: Seed of the delays.
        rows: (B,) int64 keys of the rows.

    Attributes:
        oldest: Largest age K [decisions]; 0 shows every scan at once.
    """

    def __init__(self, config: SensorConfig, seed: int, rows: torch.Tensor) -> None:
        self.oldest, self._config, self._seed, self._rows = config.oldest, config, seed, rows

    def age(self, episode: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """Return the (B,) age of the scan shown before decision `step` (B,) of episode `episode` (B,) [decisions]."""
        least, most = self._config.delays
        delay = least + _drawn(self._seed, Purpose.DELAY, self._rows, episode, most - least + 1)
        taken = (step - delay).clamp_min(0)
        return step - taken // self._config.period * self._config.period

    def show(self, scan: torch.Tensor, kept: torch.Tensor, age: torch.Tensor) -> torch.Tensor:
        """Return the scan of each row's age, of the present one (B, 3, …) and those before it (B, 3·K, …)."""
        every = torch.cat([scan, kept], dim=1).view(len(age), self.oldest + 1, *scan.shape[1:])
        return every[torch.arange(len(age), device=age.device), age]


class SensorModel:
    """Sensor model of an environment's rows: limits, corrupts (faults) and delays their true observations.

    Args:
        config: Faults, profiles and delay of the sensor, its range.
        pools: Spawn pools with the observation at each start pose.
        rows: (B,) int64 keys of the rows.
        seed: Seed of the faults.
        sparse: Spoil spawns only where an episode begins, which the host has to look for; else those of every row.

    Attributes:
        late: (B, 3·K, Az, El) scans before the present one, the latest first, updated in place; (B, 0) without a delay.
        view_limits: (B, Az) bounds of the floor rays by each row's profile [m], updated in place; (B, 0) without.
    """

    def __init__(self, config: EnvConfig, pools: SpawnPools, rows: torch.Tensor, seed: int, *, sparse: bool) -> None:
        self._config, self._pools, self._rows, self._sparse = config, pools, rows, sparse
        self.oldest = config.sensor.oldest
        _, az, el = pools.obs.shape[2:]
        self.late = torch.zeros(len(rows), *((3 * self.oldest, az, el) if self.oldest else (0,)), device=rows.device)
        self.view_limits = torch.zeros(len(rows), az if config.sensor.limited else 0, device=rows.device)
        self.draw_by(seed)

    @property
    def corrupts(self) -> bool:
        """Whether the sensor has faults, a profile or a delay."""
        return self._faults.active or self.oldest > 0

    @property
    def limited(self) -> bool:
        """Whether the sensor has profiles."""
        return self._config.sensor.limited

    def draw_by(self, seed: int) -> None:
        """Reseed the random draws."""
        self._seed = seed
        self._faults = SensorFaults(self._config.sensor, seed, self._rows, self._config.max_distance)
        self._clock = SensorClock(self._config.sensor, seed, self._rows)

    def subset(self, rows: torch.Tensor) -> SensorModel:
        """Return a sensor model of a subset of the rows, with copies of their state."""
        subset = copy.copy(self)
        subset._rows = self._rows[rows]
        subset.late, subset.view_limits = self.late[rows], self.view_limits[rows]
        subset.draw_by(self._seed)
        return subset

    def age(self, episode: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        """Return the (B,) ages of the observations after `length` decisions (B,) of the episodes (B,) [decisions]."""
        return self._clock.age(episode, length)

    def profiles(self, episode: torch.Tensor) -> torch.Tensor:
        """Return the (B,) profile of each row in the given episodes (B,), an index of the spawn pools' floors."""
        return self._faults.profiles(self._rows, episode)

    def take_profiles(self, episode: torch.Tensor) -> None:
        """Set the limits of the floor rays to those of the episodes (B,)."""
        if self.limited:
            self.view_limits.copy_(self._pools.view_limits[self.profiles(episode)])

    def bounded(self, reach: torch.Tensor) -> torch.Tensor:
        """Return the lengths (B, Az) of the floor rays within the limits of the rows' profiles [m]."""
        return reach.minimum(self.view_limits) if self.limited else reach

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
        which = slice(None) if rows is None else rows
        if self.oldest:
            self.late[which] = obs.repeat(1, self.oldest, 1, 1)
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
        spawns, flown = self._pools.obs, episode - begins.to(torch.int64)
        shown = self._faults.apply(obs, flown, length)
        if self._sparse and not self.oldest:
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
        if not self.oldest:
            return torch.where(mask, spawn, ended), ended
        ended = self._clock.show(shown, self.late, self.age(flown, length))
        past = torch.cat([shown, self.late[:, :-3]], dim=1)
        self.late.copy_(torch.where(mask, spawn.repeat(1, self.oldest, 1, 1), past))
        return torch.where(mask, spawn, ended), ended
