"""Settings of group-relative policy optimisation."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from navi_core.config.rollouts import RolloutConfig
from navi_core.config.schedule import Schedule
from navi_core.errors import ConfigError

__all__ = ["GRPOConfig"]

Scheduled = Literal["learning_rate", "ent_coef", "max_grad_norm", "ref_kl_coef", "gamma"]
"""Settings of GRPO that may move during a run."""


class GRPOConfig(RolloutConfig):
    """Group-relative policy optimisation (Shao et al. 2024) on segments of flight."""

    may_be_zero: ClassVar[frozenset[str]] = frozenset({"ent_coef", "ref_kl_coef", "gamma"})

    schedules: dict[Scheduled, Schedule] = {}
    """How learning_rate, ent_coef, max_grad_norm, ref_kl_coef and gamma move; one that is not named stays."""
    group_size: int = Field(4, ge=2, le=2**20)
    """Segments K of a group; one that cannot be filled is dropped and counted."""
    normalize_group: Literal["mean", "mean_std"] = "mean"
    """Advantage of a segment: its return less its group's mean, or that in units of the population deviation."""
    group_by: Literal["order", "age"] = "order"
    """Which segments are compared: those that began together, or those that began at like ages of their episodes."""
    horizon: int | None = Field(None, ge=1, le=2**20)
    """Decisions of a segment that nothing ends before; None is the rollout.

    A segment begins with the rollout, with an episode, and where the one before it reached its horizon. It counts
    if its whole horizon lies in the rollout, whatever happens in it, so that no outcome is preferred; and unless
    its episode is truncated before, which is nobody's doing."""
    min_steps: int = Field(2, ge=1, le=2**20)
    """Decisions that a segment must have to count."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per decision of a segment's return."""
    update_epochs: int = Field(4, ge=1, le=100)
    """Passes over the groups of a rollout."""
    groups_per_step: int = Field(1, ge=1, le=2**20)
    """Groups whose loss makes one gradient step."""
    clip: float | None = Field(0.2, gt=0, le=1)
    """Ratio clip ε; None is the plain policy gradient, which further epochs carry beyond what it is right for."""
    length_normalisation: bool = False
    """A segment's log-probabilities are averaged over its decisions instead of summed."""
    ent_coef: float = Field(0.01, ge=0)
    """Weight of the mean entropy."""
    ref_kl_coef: float = Field(0.0, ge=0)
    """Weight of the divergence from the frozen reference policy; 0 makes no reference at all."""
    kl_estimator: Literal["k3", "k1"] = "k3"
    """Estimator of the divergence on sampled actions; the expected gradient of k1 is zero: it measures only."""
    ref_sync_every_updates: int = Field(50, ge=1, le=2**30)
    """Group updates after which the reference takes the policy's weights."""

    @model_validator(mode="after")
    def _segments(self) -> Self:
        if self.horizon is not None and not self.min_steps <= self.horizon <= self.rollout:
            raise ConfigError(
                f"horizon {self.horizon} of a segment; allowed: min_steps {self.min_steps} … rollout {self.rollout}"
            )
        return self

    @property
    def segment_steps(self) -> int:
        """Decisions of a whole segment."""
        return self.horizon if self.horizon is not None else self.rollout

    def least_rows(self) -> int:
        """Return the rows of which a rollout can fill a group."""
        return math.ceil(self.group_size / (self.rollout // self.segment_steps))
