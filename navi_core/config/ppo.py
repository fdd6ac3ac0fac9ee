"""Settings of proximal policy optimisation."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from navi_core.config.rollouts import RolloutConfig
from navi_core.config.schedule import Schedule
from navi_core.errors import ConfigError

__all__ = ["PPOConfig"]

Scheduled = Literal["learning_rate", "entropy_coefficient", "clip", "std_limit"]
"""Settings of PPO that may move during a run."""


class PPOConfig(RolloutConfig):
    """Proximal policy optimisation (Schulman et al. 2017) on sequences."""

    schedules: dict[Scheduled, Schedule] = {}
    """How learning_rate, entropy_coefficient, clip and std_limit move; one that is not named stays."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount per decision."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """λ of generalised advantage estimation."""
    clip: float = Field(0.2, gt=0, le=1)
    """Ratio clip ε."""
    entropy_coefficient: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    std_limit: float | None = Field(None, gt=0, le=10)
    """Most that a Gaussian policy's standard deviations may be after an update; None: as learned.

    With a schedule that falls, the policy that is learned comes close to its own mean, which is what evaluation and
    service fly. What too small deviations do is in docs/RESULTS.md, "Training on large floors"."""
    value_coefficient: float = Field(0.5, ge=0)
    """Weight of the value loss."""
    value_clip: float | None = Field(None, gt=0)
    """Clip of the value step, in the critic's units; None switches it off."""
    normalise_returns: bool = True
    """The critic predicts returns in units of their own spread; undone before advantages are estimated."""
    normalise_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    reward_clip: float = Field(10.0, gt=0)
    """Bound of a normalised reward."""
    rho_clip: float | None = Field(None, gt=0)
    """Bound ρ̄ of the importance ratio on the temporal difference (V-trace); None: the ratio is not looked at."""
    c_clip: float | None = Field(None, gt=0)
    """Bound c̄ of the importance ratio on the trace behind it; None: the ratio is not looked at."""
    epochs: int = Field(2, ge=1, le=100)
    """Passes over each rollout."""
    minibatch: int = Field(64, ge=1, le=2**30)
    """Sequences per minibatch."""
    order: Literal["shuffled", "sequential", "advantage"] = "shuffled"
    """Minibatches: a new random order every epoch, storage order, or drawn by |advantage| with replacement."""
    advantage_exponent: float = Field(0.8, ge=0, le=2)
    """Sequences are drawn in proportion to mean |advantage| to this power; order: advantage."""
    advantage_correction: float = Field(0.2, ge=0, le=1)
    """Exponent β of the weight (count · probability)^−β that makes up for being drawn often; order: advantage."""
    target_kl: float | None = Field(0.03, gt=0)
    """Approximate KL above which the update's remaining epochs are skipped; None never stops."""

    @model_validator(mode="after")
    def _limit_to_move(self) -> Self:
        if "std_limit" in self.schedules and self.std_limit is None:
            raise ConfigError("schedules.std_limit moves a limit from its own value: set std_limit, too")
        return self
