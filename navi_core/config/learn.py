"""Settings of learning: PPO, behaviour cloning, and the run around them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from navi_core.config.base import Config, Count
from navi_core.config.policy import PolicyConfig, ShaperConfig
from navi_core.config.scenes import CompileConfig, CorpusConfig, compile_resolution
from navi_core.config.schedule import Schedule
from navi_core.config.world import EnvConfig
from navi_core.errors import ConfigError

__all__ = ["BCConfig", "PPOConfig", "Scheduled", "TrainConfig"]

Scheduled = Literal["learning_rate", "entropy_coefficient", "clip"]
"""Settings of PPO that may move during a run."""


class PPOConfig(Config):
    """Proximal policy optimisation (Schulman et al. 2017) on sequences."""

    learning_rate: float = Field(3e-4, gt=0, le=1)
    """Adam step size."""
    schedules: dict[Scheduled, Schedule] = {}
    """How learning_rate, entropy_coefficient and clip move; one that is not named stays."""
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
    max_grad_norm: float = Field(0.5, gt=0)
    """Global gradient norm bound."""
    epochs: int = Field(2, ge=1, le=100)
    """Passes over each rollout."""
    rollout: int = Field(256, ge=1, le=2**20)
    """Decisions per row between updates."""
    minibatch: int = Field(64, ge=1, le=2**30)
    """Sequences per minibatch."""
    microbatch: int | None = Field(None, ge=1, le=2**30)
    """Sequences per backward pass, whose gradients are summed over a minibatch.

    None: all at once; on the CPU, of panoramas with 16,384 numbers or more, 128 observations at once."""
    order: Literal["shuffled", "sequential", "advantage"] = "shuffled"
    """Minibatches: a new random order every epoch, storage order, or drawn by |advantage| with replacement."""
    advantage_exponent: float = Field(0.8, ge=0, le=2)
    """Sequences are drawn in proportion to mean |advantage| to this power; order: advantage."""
    advantage_correction: float = Field(0.2, ge=0, le=1)
    """Exponent β of the weight (count · probability)^−β that makes up for being drawn often; order: advantage."""
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

    @model_validator(mode="after")
    def _scheduled_values(self) -> Self:
        for name, schedule in self.schedules.items():
            for value in schedule.values():
                if not 0 <= value <= 1 or (value == 0 and name != "entropy_coefficient"):
                    raise ConfigError(f"schedules.{name} names {value}; allowed: above 0 up to 1 (entropy also 0)")
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
    """Torch threads on CPU; 0 measures rollout and update with one thread and with every core."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Encoder matrix products: single precision, or bfloat16 by autocast. Everything behind it stays fp32."""
    execution: Literal["eager", "compile", "graph"] = "eager"
    """Policy calls: as written, through torch.compile, or as captured CUDA graphs (CUDA alone)."""
    storage: Literal["full", "compact"] = "full"
    """Observations of a rollout: float32, or depth fp16, semantic u8 and valid bits (a quarter of the memory)."""
    profile: bool = False
    """Stage timings of a CUDA device by events on its stream instead of the host clock."""
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
