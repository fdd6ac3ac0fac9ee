"""Settings of the fast path: GRPO of a memoryless network on a reference task."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from navi_core.config.base import Count
from navi_core.config.fast_task import FastTaskConfig
from navi_core.errors import ConfigError

__all__ = ["FastGRPOConfig"]


class FastGRPOConfig(FastTaskConfig):
    """GRPO on whole episodes for a small network on a CPU; the defaults solve cart-pole."""

    rows: int = Field(64, ge=2, le=65536)
    """Environment rows B; each flies one whole episode an update."""
    total_steps: Count = 400_000
    """Decisions summed over rows at which the run ends."""
    horizon: Count = 500
    """Decisions after which an episode that has not ended is judged by what it earned so far."""
    hidden: tuple[Count, ...] = Field((64, 64), min_length=1, max_length=8)
    """Widths of the hidden layers."""
    group_size: int = Field(16, ge=2, le=65536)
    """Episodes K of a group; must divide rows."""
    normalize_group: Literal["mean", "mean_std"] = "mean_std"
    """Advantage of an episode: its return less its group's mean, or that in units of the population deviation."""
    epochs: int = Field(4, ge=1, le=100)
    """Passes over the groups of an update."""
    minibatch: int = Field(1024, ge=1, le=2**30)
    """Decisions per gradient step."""
    learning_rate: float = Field(3e-3, gt=0, le=1)
    """Adam step size at the start."""
    learning_rate_end: float = Field(1e-4, ge=0, le=1)
    """Adam step size at the end; between them a straight line."""
    clip: float = Field(0.2, gt=0, le=1)
    """Ratio clip ε."""
    ent_coef: float = Field(0.0, ge=0)
    """Weight of the mean entropy."""
    max_grad_norm: float = Field(0.5, gt=0)
    """Global gradient norm bound."""

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.rows % self.group_size:
            raise ConfigError(f"group_size {self.group_size} does not divide rows {self.rows}")
        return self
