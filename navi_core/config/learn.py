"""Settings of learning: PPO, behaviour cloning, and the run around them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from navi_core.config.base import Config, Count
from navi_core.config.policy import PolicyConfig, ShaperConfig
from navi_core.config.scenes import CompileConfig, CorpusConfig, compile_resolution
from navi_core.config.world import EnvConfig
from navi_core.errors import ConfigError

__all__ = ["BCConfig", "PPOConfig", "TrainConfig"]


class PPOConfig(Config):
    """Proximal policy optimisation (Schulman et al. 2017) on sequences."""

    learning_rate: float = Field(3e-4, gt=0, le=1)
    """Adam step size."""
    final_learning_rate: float | None = Field(None, gt=0, le=1)
    """Cosine target at total_steps; None keeps the rate constant."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount per decision."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """λ of generalised advantage estimation."""
    clip: float = Field(0.2, gt=0, le=1)
    """Ratio clip ε."""
    entropy_coefficient: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    value_coefficient: float = Field(0.5, ge=0)
    """Weight of the value loss."""
    value_clip: float | None = Field(None, gt=0)
    """Clip of the value step; None switches it off."""
    max_grad_norm: float = Field(0.5, gt=0)
    """Global gradient norm bound."""
    epochs: int = Field(2, ge=1, le=100)
    """Passes over each rollout."""
    rollout: int = Field(256, ge=1, le=2**20)
    """Decisions per row between updates."""
    minibatch: int = Field(64, ge=1, le=2**30)
    """Sequences per minibatch."""
    bptt: int = Field(8, ge=1, le=2**20)
    """Decisions per sequence; must divide rollout."""
    target_kl: float | None = Field(0.03, gt=0)
    """Approximate KL above which the update's remaining epochs are skipped; None never stops."""
    reward_ema_alpha: float = Field(0.01, gt=0, le=1)
    """Smoothing of the reported reward_ema, per decision batch."""

    @model_validator(mode="after")
    def _chunks(self) -> Self:
        if self.rollout % self.bptt:
            raise ConfigError(f"rollout {self.rollout} is not a multiple of bptt {self.bptt}")
        return self


class BCConfig(Config):
    """Behaviour cloning of demonstrations on sequences."""

    data: str | None = None
    """Content hash of the demonstrations; filled in by `navi bc`, so that other data are another run."""
    learning_rate: float = Field(1e-3, gt=0, le=1)
    """Adam step size."""
    epochs: int = Field(50, ge=1, le=100_000)
    """Passes over the demonstrations."""
    sequences: int = Field(32, ge=1, le=2**20)
    """Sequences per minibatch, each from another episode."""
    bptt: int = Field(8, ge=1, le=2**20)
    """Decisions per sequence; the recurrent state is carried from one sequence of an episode to its next."""
    entropy_coefficient: float = Field(0.01, ge=0)
    """β, weight of the entropy bonus; without gradient, because log_std is frozen."""
    max_grad_norm: float = Field(0.5, gt=0)
    """Global gradient norm bound."""
    validation: float = Field(0.1, gt=0, le=0.5)
    """Share of the scenes that is held out; of the episodes where there are fewer than four scenes."""


class TrainConfig(Config):
    """Everything a training run is made of; saved in its run directory and checkpoints."""

    algorithm: Literal["ppo", "bc"] = "ppo"
    """Learner."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of every random draw."""
    actors: int = Field(64, ge=1, le=65536)
    """Environment rows B."""
    total_steps: Count | None = None
    """Decisions summed over rows at which the run ends; None trains until stopped."""
    checkpoint_every: Count = 25_000
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(3, ge=1, le=10_000)
    """Checkpoints kept in the run directory besides the last."""
    threads: int = Field(0, ge=0, le=256)
    """Torch threads on CPU; 0 chooses by the machine."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Training device."""
    corpus: CorpusConfig = CorpusConfig()
    """Training scenes."""
    compile: CompileConfig = CompileConfig()
    """Scene compilation; a resolution that is not given follows the sensor, see `compile_resolution`."""
    env: EnvConfig = EnvConfig()
    """Environment."""
    policy: PolicyConfig = PolicyConfig()
    """Network."""
    shaper: ShaperConfig = ShaperConfig()
    """Reward shaping."""
    ppo: PPOConfig = PPOConfig()
    """Update rule."""
    bc: BCConfig = BCConfig()
    """Behaviour cloning."""

    @model_validator(mode="after")
    def _compile_for_the_sensor(self) -> Self:
        if "resolution" not in self.compile.model_fields_set:
            resolution = compile_resolution(self.env.azimuth_bins, self.env.elevation_bins)
            # Frozen for everybody else: the section is complete only now that the sensor is known.
            object.__setattr__(self, "compile", self.compile.model_copy(update={"resolution": resolution}))
        return self

    @model_validator(mode="after")
    def _one_resolution(self) -> Self:
        for name in ("azimuth_bins", "elevation_bins"):
            here, there = getattr(self.policy, name), getattr(self.env, name)
            if here != there:
                raise ConfigError(f"policy.{name} {here} differs from env.{name} {there}; set both")
        return self
