"""Settings of direct preference optimisation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from navi_core.config.schedule import Schedule
from navi_core.config.segments import SegmentsConfig

__all__ = ["DPOConfig"]

Scheduled = Literal["learning_rate", "max_grad_norm", "beta"]
"""Settings of DPO that may move during a run."""


class DPOConfig(SegmentsConfig):
    """Direct preference optimisation (Rafailov et al. 2023) on pairs of segments of flight."""

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
    update_epochs: int = Field(1, ge=1, le=100)
    """Passes over the pairs of an update."""
    minibatch: int = Field(16, ge=1, le=2**20)
    """Pairs per gradient step."""
    microbatch: None = None
    """Of ppo and grpo alone: a gradient step is taken on its pairs at once; dpo.minibatch says how many."""
    ref_sync_every_updates: int = Field(1, ge=0, le=2**30)
    """Updates after which the reference takes the policy's weights; 0 keeps those that the run began with."""
