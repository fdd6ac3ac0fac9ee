"""A setting that moves with the steps of a run."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, Self

from pydantic import Field, model_validator

from navi_core.config.base import Config, Count
from navi_core.errors import ConfigError

__all__ = ["Schedule"]


class Schedule(Config):
    """How a setting moves from its own value, which it has at step 0."""

    shape: Literal["linear", "cosine", "piecewise"] = "linear"
    """Straight line, half a cosine, or straight lines through `points`."""
    end: float | None = None
    """Value at `steps` and after; for linear and cosine."""
    steps: Count | None = None
    """Decisions summed over rows at which `end` is reached; None is the run's total_steps."""
    points: tuple[tuple[int, float], ...] = Field((), max_length=1000)
    """(steps, value) in ascending order of steps; for piecewise. The last value stays."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.shape == "piecewise":
            steps = [0, *(at for at, _ in self.points)]
            if not self.points or any(b <= a for a, b in pairwise(steps)):
                raise ConfigError("a piecewise schedule needs points [[steps, value], …] with ascending steps above 0")
            if self.end is not None or self.steps is not None:
                raise ConfigError("a piecewise schedule has points; end and steps belong to linear and cosine")
        elif self.end is None:
            raise ConfigError(f"a {self.shape} schedule needs end, the value that it reaches")
        elif self.points:
            raise ConfigError(f"a {self.shape} schedule has end and steps; points belong to piecewise")
        return self

    def values(self) -> tuple[float, ...]:
        """Return the values that the schedule names."""
        return tuple(value for _, value in self.points) if self.end is None else (self.end,)

    def value(self, start: float, at: int, total_steps: int | None) -> float:
        """Return the setting's value.

        Args:
            start: Its value at step 0.
            at: Decisions so far, summed over rows.
            total_steps: The run's length; used where `steps` is not given.

        Raises:
            ConfigError: Neither `steps` nor `total_steps` says when the schedule ends.
        """
        if self.end is None:
            earlier, low = 0, start
            for later, high in self.points:
                if at < later:
                    return low + (high - low) * max(at - earlier, 0) / (later - earlier)
                earlier, low = later, high
            return low
        last = self.steps if self.steps is not None else total_steps
        if last is None:
            raise ConfigError(f"a {self.shape} schedule needs its own steps, or total_steps (--steps) of the run")
        share = min(1.0, max(at, 0) / last)
        if self.shape == "linear":
            return start + (self.end - start) * share
        return self.end + 0.5 * (start - self.end) * (1.0 + math.cos(math.pi * share))
