"""Faults of a real sensor, as options: noise of the depth, rays that drop out.

Every draw is a function of (seed, row, episode, decision, ray): a row meets the same faults alone, among a
thousand others, and when it is replayed.
"""

import math

import torch

from navi_core.config import SensorConfig
from navi_core.world.counter_random import Purpose, spread, words
from navi_core.world.sensor.spherical import denormalise_depth, normalise_depth

_LOW = 2**32 - 1


class SensorFaults:
    """Spoils observations as a real sensor would.

    Args:
        config: Which faults, and how strong.
        seed: Of the draws.
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
        """Return a corrupted copy of true observations; without faults, themselves.

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
    """Return float32 in (0, 1] of 32 random bits."""
    return ((bits.to(torch.float64) + 0.5) * 2.0**-32).to(torch.float32)


def _normal(word: torch.Tensor) -> torch.Tensor:
    """Return standard normal numbers, one of each 64-bit word (Box & Muller 1958)."""
    radius = (-2.0 * _unit(word >> 32 & _LOW).log()).sqrt()
    return radius * (2.0 * math.pi * _unit(word & _LOW)).cos()
