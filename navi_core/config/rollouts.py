"""What the learners that collect rollouts have in common."""

from __future__ import annotations

import math
from typing import Self

from pydantic import Field, model_validator

from navi_core.config.base import Config
from navi_core.config.schedule import Schedule
from navi_core.errors import ConfigError

__all__ = ["RolloutConfig"]


class RolloutConfig(Config):
    """Rollouts of every row, and the steps of Adam that are taken on them."""

    learning_rate: float = Field(3e-4, gt=0, le=1)
    """Adam step size."""
    max_grad_norm: float = Field(0.5, gt=0)
    """Global gradient norm bound."""
    rollout: int = Field(256, ge=1, le=2**20)
    """Decisions per row between updates."""
    bptt: int = Field(8, ge=1, le=2**20)
    """Decisions per sequence; must divide rollout."""
    microbatch: int | None = Field(None, ge=1, le=2**30)
    """Sequences per backward pass, whose gradients are summed over a minibatch.

    None: all at once; on the CPU, of panoramas with 16,384 numbers or more, 128 observations at once."""
    reward_ema_alpha: float = Field(0.01, gt=0, le=1)
    """Smoothing of the reported reward_ema, per decision batch."""

    @model_validator(mode="after")
    def _chunks(self) -> Self:
        if self.rollout % self.bptt:
            raise ConfigError(f"rollout {self.rollout} is not a multiple of bptt {self.bptt}")
        return self

    @model_validator(mode="after")
    def _scheduled_values(self) -> Self:
        schedules: dict[str, Schedule] = getattr(self, "schedules", {})
        for name, schedule in schedules.items():
            zero, most = self._limits(name)
            for value in schedule.values():
                if not (0 < value <= most or (value == 0 and zero)):
                    raise ConfigError(
                        f"schedules.{name} names {value}; allowed: above 0 up to {most:g}{' (and 0)' if zero else ''}"
                    )
        return self

    def _limits(self, name: str) -> tuple[bool, float]:
        """Return whether a setting may be 0, and the most that it may be."""
        bounds = type(self).model_fields[name].metadata
        return any(hasattr(bound, "ge") for bound in bounds), min(
            (float(bound.le) for bound in bounds if hasattr(bound, "le")), default=math.inf
        )
