"""Settings of group-relative policy optimisation."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from navi_core.config.schedule import Schedule
from navi_core.config.segments import SegmentsConfig

__all__ = ["GRPOConfig"]

Scheduled = Literal["learning_rate", "ent_coef", "max_grad_norm", "ref_kl_coef", "gamma"]
"""Settings of GRPO that may move during a run."""


class GRPOConfig(SegmentsConfig):
    """Group-relative policy optimisation (Shao et al. 2024) on segments of flight."""

    schedules: dict[Scheduled, Schedule] = {}
    """How learning_rate, ent_coef, max_grad_norm, ref_kl_coef and gamma move; one that is not named stays."""
    group_size: int = Field(4, ge=2, le=2**20)
    """Segments K of a group; one that cannot be filled is dropped and counted."""
    normalize_group: Literal["mean", "mean_std"] = "mean"
    """Advantage of a segment: its return less its group's mean, or that in units of the population deviation."""
    group_by: Literal["order", "age"] = "order"
    """Which segments are compared: those that began together, or those that began at like ages of their episodes."""
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

    def least_rows(self) -> int:
        """Return the rows of which a rollout can fill a group."""
        return math.ceil(self.group_size / (self.rollout // self.segment_steps))
