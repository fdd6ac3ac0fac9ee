"""Settings of the policy and of its reward shaper."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from navi_core.config.base import Config, Count
from navi_core.errors import ConfigError

__all__ = ["PolicyConfig", "ShaperConfig"]


class PolicyConfig(Config):
    """Encoder → temporal core → heads."""

    encoder: Literal["rayvit", "ring_cnn"] = "rayvit"
    """Encoder backend."""
    core: Literal["mamba2", "gru"] = "mamba2"
    """Temporal core."""
    azimuth_bins: int = Field(256, ge=8, le=4096)
    """Azimuth bins of the observation; must equal the environment's."""
    elevation_bins: int = Field(48, ge=4, le=2048)
    """Elevation bins of the observation; must equal the environment's."""
    width: int = Field(128, ge=8, le=1024, multiple_of=4)
    """Embedding width D."""
    patch: int = Field(8, ge=2, le=64)
    """Patch edge of rayvit; must divide both observation axes."""
    core_layers: int = Field(1, ge=1, le=4)
    """1: the bare block; more: pre-norm residual layers."""
    aux: Literal["no_reward", "full", "off"] = "no_reward"
    """Auxiliary input from the previous step (shaped reward, loop similarity, intrinsic reward)."""
    depth_shift: float = 0.2
    """Subtracted from the depth channel before the encoder."""
    depth_scale: float = Field(0.1, gt=0)
    """Divides the shifted depth channel."""
    log_std_init: float = Field(-0.5, ge=-5, le=2)
    """Initial log standard deviation of every action axis."""
    stop_value_gradient: bool = False
    """Keep the critic's gradient out of the trunk."""

    @model_validator(mode="after")
    def _patch_divides(self) -> Self:
        if self.encoder == "rayvit":
            for name in ("azimuth_bins", "elevation_bins"):
                bins = getattr(self, name)
                if bins % self.patch:
                    raise ConfigError(f"{name} {bins} is not a multiple of the patch {self.patch} (encoder rayvit)")
        return self


class ShaperConfig(Config):
    """Actor-side reward shaping: tax, RND curiosity, loop penalty."""

    existential_tax: float = -0.02
    """Added at every decision."""
    velocity_weight: float = 0.0
    """Weight of the linear speed [1 / (m/s)]."""
    rnd_start: float = Field(1.0, ge=0)
    """RND coefficient at step 0; 0 with rnd_end 0 switches RND off."""
    rnd_end: float = Field(0.01, ge=0)
    """RND coefficient after rnd_decay_steps."""
    rnd_decay_steps: Count = 500_000
    """Steps of the linear decay."""
    rnd_clamp: float = Field(5.0, gt=0)
    """Bound of the normalised intrinsic reward."""
    rnd_lr: float = Field(3e-4, gt=0)
    """Learning rate of the RND predictor."""
    loop_coefficient: float = Field(2.0, ge=0)
    """Weight of the loop penalty; 0 switches episodic memory off."""
    loop_threshold: float = Field(0.85, ge=-1, le=1)
    """Cosine similarity above which a revisit is penalised."""
    loop_decay: Literal["half_life", "exponential"] = "half_life"
    """2^(−Δ/τ) or exp(−Δ/τ), Δ steps since the remembered step."""
    loop_tau: float = Field(200.0, gt=0)
    """τ of the decay [steps]."""
    memory_capacity: int = Field(100_000, ge=1, le=2**30)
    """Embeddings kept in total over all rows."""
    memory_exclusion: int = Field(50, ge=0)
    """The latest steps that are not compared."""
