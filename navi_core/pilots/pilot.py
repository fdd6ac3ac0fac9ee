"""What every scripted pilot is: an object that sees observations, and nothing else, and answers with actions.

A pilot keeps per-row memory (what it is turning towards, how long it holds a command). The memory belongs to a
row's *key*, so that the same key flies the same way in any batch and at any place in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from navi_core.errors import ConfigError

__all__ = ["Pilot"]


class Pilot(ABC):
    """Base of the scripted pilots: row keys, episode and step counters.

    Args:
        seed: Seed of the pilot's draws.
        max_distance: Range of the sensor whose observations it reads, M [m].
    """

    name: str

    def __init__(self, *, seed: int = 0, max_distance: float = 100.0) -> None:
        if seed < 0:
            raise ConfigError(f"seed {seed} of pilot {self.name!r} is negative")
        if not max_distance > 0:
            raise ConfigError(f"max_distance {max_distance} of pilot {self.name!r} is not positive")
        self.seed = seed
        self.max_distance = max_distance
        self._keys = torch.zeros(0, dtype=torch.int64)
        self._episode = torch.zeros(0, dtype=torch.int64)
        self._step = torch.zeros(0, dtype=torch.int64)

    def reset(self, rows: Tensor, keys: Tensor) -> None:
        """Give rows their keys and an empty memory; a first call, or one of another size, sets the batch size.

        Args:
            rows: Rows to reset, bool (B,).
            keys: The rows' keys, int64 (B,); read where `rows` is true.
        """
        if rows.shape != keys.shape or rows.ndim != 1:
            raise ConfigError(f"rows {tuple(rows.shape)} and keys {tuple(keys.shape)} must both have shape (B,)")
        if self._keys.shape != keys.shape or self._keys.device != keys.device:
            self._keys = torch.arange(len(keys), device=keys.device)
            self._episode = torch.zeros_like(self._keys)
            self._step = torch.zeros_like(self._keys)
            self._allocate(len(keys), keys.device)
        self._keys = torch.where(rows, keys.to(torch.int64), self._keys)
        self._episode = torch.where(rows, 0, self._episode)
        self._step = torch.where(rows, 0, self._step)
        self._forget(rows)

    def act(self, obs: Tensor, reset: Tensor | None = None) -> Tensor:
        """Return the actions for one decision.

        Args:
            obs: Observations (B, 3, Az, El) as the environment gives them: normalised depth, semantic id, valid.
            reset: Rows whose observation is the first of a new episode, bool (B,). A row without a key yet
                (no `reset` before) takes its row index.

        Returns:
            float32 (B, 4) in [−1, 1]: forward, vertical, lateral, yaw.
        """
        if obs.ndim != 4 or obs.shape[1] != 3:
            raise ConfigError(f"observations must have shape (B, 3, Az, El), not {tuple(obs.shape)}")
        batch = obs.shape[0]
        if len(self._keys) != batch or self._keys.device != obs.device:
            everyone = torch.ones(batch, dtype=torch.bool, device=obs.device)
            self.reset(everyone, torch.arange(batch, device=obs.device))
        if reset is not None:
            # A row that has not flown yet is already at the start of its first episode.
            begins = reset.to(torch.bool) & (self._step > 0)
            self._episode = self._episode + begins.to(torch.int64)
            self._step = torch.where(begins, 0, self._step)
            self._forget(begins)
        actions = self._decide(obs)
        self._step = self._step + 1
        return actions

    @abstractmethod
    def _decide(self, obs: Tensor) -> Tensor:
        """Return the actions (B, 4) for this decision, from observations and this pilot's own memory."""

    def _allocate(self, batch: int, device: torch.device) -> None:  # noqa: B027 - a pilot without memory needs none
        """Make the memory of `batch` rows."""

    def _forget(self, rows: Tensor) -> None:  # noqa: B027 - a pilot without memory forgets nothing
        """Empty the memory of `rows`, bool (B,)."""
