"""Settings of the fast path: Double DQN of a memoryless network on a reference task."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from navi_core.config.base import Count
from navi_core.config.fast_task import FastTaskConfig
from navi_core.config.offpolicy import DQNConfig, EarlyStopConfig, ReplayConfig, SmoothingConfig
from navi_core.errors import ConfigError

__all__ = ["FastDQNConfig"]

_OF_THE_RUN_LOOP = {
    "dqn": ("burn_in", "reward_ema_alpha"),
    "replay": ("sequence_max_share", "storage"),
    "early_stopping": ("enabled",),
}
"""What the sections have for sequences, panoramas and runs that end early, of which this path has none."""


class FastDQNConfig(FastTaskConfig):
    """Double DQN for a small network on a CPU; the sections are those of a training run."""

    rows: int = Field(16, ge=1, le=65536)
    """Environment rows B."""
    total_steps: Count = 100_000
    """Decisions summed over rows at which the run ends."""
    hidden: tuple[Count, ...] = Field((64, 64), min_length=1, max_length=8)
    """Widths of the hidden layers; the last one's activations are the latents of drift smoothing."""
    scale_observations: bool = True
    """Divide observations by the task's usual magnitudes; without, states look less alike, which explores further."""
    reward_noise: float = Field(0.0, ge=0, le=1e6)
    """Deviation of normal noise on the rewards that are learned from; returns are reported without it."""
    dqn: DQNConfig = DQNConfig(rollout=16, bptt=16)
    """Double DQN."""
    replay: ReplayConfig = ReplayConfig()
    """Replay."""
    kernel_smoothing: SmoothingConfig = SmoothingConfig()
    """Drift smoothing of the targets."""
    early_stopping: EarlyStopConfig = EarlyStopConfig()
    """The controller is asked at every evaluation."""
    evaluation_episodes: int = Field(20, ge=1, le=10_000)
    """Greedy episodes of an evaluation, which comes every early_stopping.eval_interval decisions."""

    @model_validator(mode="after")
    def _learning_can_start(self) -> Self:
        self.replay.require_start(self.dqn.learning_starts)
        return self

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        for section, names in _OF_THE_RUN_LOOP.items():
            given = getattr(self, section)
            for name in names:
                if getattr(given, name) != type(given).model_fields[name].default:
                    raise ConfigError(f"the fast path has no {section}.{name}; leave it out, or use navi train dqn")
        return self

    @model_validator(mode="after")
    def _fast_parts(self) -> Self:
        smoothing = self.kernel_smoothing
        if smoothing.enabled and smoothing.apply_to != "td_targets":
            raise ConfigError(
                f"the fast path smooths td_targets, not {smoothing.apply_to}; use navi train dqn for that"
            )
        if smoothing.enabled and (smoothing.noise_std or smoothing.iterations > 1 or smoothing.scale_preservation
                                  or smoothing.importance_weighted or smoothing.dt_dim == "h"
                                  or smoothing.free_energy_weight):  # fmt: skip
            raise ConfigError(
                "the fast path smooths once and plainly; noise_std, iterations, scale_preservation, "
                "importance_weighted, free_energy_weight and dt_dim h need navi train dqn"
            )
        if smoothing.enabled and smoothing.latent_dim != self.hidden[-1]:
            raise ConfigError(
                f"kernel_smoothing.latent_dim {smoothing.latent_dim} is not the width {self.hidden[-1]} of the last "
                "hidden layer, whose activations are the latents; set them alike"
            )
        return self
