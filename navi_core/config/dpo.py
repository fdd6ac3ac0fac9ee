"""Settings of direct preference optimisation."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from navi_core.config.rollouts import RolloutConfig
from navi_core.config.schedule import Schedule
from navi_core.errors import ConfigError

__all__ = ["DPOConfig"]

Scheduled = Literal["learning_rate", "max_grad_norm", "beta"]
"""Settings of DPO that may move during a run."""


class DPOConfig(RolloutConfig):
    """Direct preference optimisation (Rafailov et al. 2023) on pairs of segments of flight."""

    may_be_zero: ClassVar[frozenset[str]] = frozenset()

    schedules: dict[Scheduled, Schedule] = {}
    """How learning_rate, max_grad_norm and beta move; one that is not named stays."""
    beta: float = Field(0.1, gt=0, le=1)
    """β, how strongly the policy is held to the reference."""
    pairs: str | None = None
    """A JSONL file of pairs (navi demos pairs); None makes them of the rollouts, and rollouts else only measure."""
    pairs_hash: str | None = None
    """SHA-256 of the file; filled in by the command, so that other pairs are another run."""
    held_out: float = Field(0.2, gt=0, le=0.5)
    """Share of a file's pairs that is not learned from, but asked which of them the policy prefers."""
    pair_buffer: int = Field(64, ge=1, le=2**20)
    """Most pairs of an update."""
    horizon: int | None = Field(None, ge=1, le=2**20)
    """Decisions of a segment of a rollout that nothing ends before; None is the rollout. As `grpo.horizon`."""
    min_steps: int = Field(2, ge=1, le=2**20)
    """Decisions that a segment must have to count."""
    update_epochs: int = Field(1, ge=1, le=100)
    """Passes over the pairs of an update."""
    minibatch: int = Field(16, ge=1, le=2**20)
    """Pairs per gradient step."""
    ref_sync_every_updates: int = Field(1, ge=0, le=2**30)
    """Updates after which the reference takes the policy's weights; 0 keeps those that the run began with."""

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
