"""Settings of drift smoothing, of stopping early, and of their adaptation."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from navi_core.config.base import Config, Count
from navi_core.errors import ConfigError

__all__ = ["AdaptationConfig", "EarlyStopConfig", "SmoothingConfig"]


class SmoothingConfig(Config):
    """Drift smoothing: a step of every row toward the kernel mean of its neighbours in latent space."""

    enabled: bool = False
    """Whether the learner smooths."""
    apply_to: Literal["td_targets", "latents", "q_regulariser"] = "td_targets"
    """What is smoothed: bootstrap targets, the latents the Q head reads, or nothing but a penalty on Q."""
    regulariser_weight: float = Field(0.1, ge=0)
    """λ_reg, weight of ½‖Q − smoothed Q‖²; apply_to: q_regulariser."""
    k: int = Field(16, ge=1, le=2**16)
    """Neighbours of a row, itself excluded; a smaller batch has fewer."""
    sigma_min: float = Field(1e-3, gt=0)
    """Least kernel width σ_i, which is the distance to the k-th neighbour."""
    sigma_max: float = Field(1.0, gt=0)
    """Largest kernel width."""
    alpha_step_init: float = Field(0.15, ge=0, le=10)
    """Step size α_step at step 0. Not the exponent of the priorities."""
    alpha_step_schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How α_step falls to 0."""
    alpha_step_decay_steps: Count = 100_000
    """Steps at which α_step is 0; linear and cosine."""
    dim_exponent: float = Field(0.5, ge=0, le=4)
    """Δt = d^(−dim_exponent)."""
    dt_dim: Literal["latent", "h"] = "latent"
    """d of Δt: latent_dim, or the width of what is smoothed."""
    trust_region_tau: float = Field(0.1, gt=0)
    """τ, bound of the norm of a row's step."""
    latent_dim: int = Field(64, ge=1, le=2**16)
    """d, numbers of a latent; the width of the Q head's hidden layer must be the same."""
    gate_by_td_variance: bool = True
    """Smooth only where the variance of the temporal differences or the disagreement is above its floor."""
    td_var_min: float = Field(0.0, ge=0)
    """The gate is open above this variance of the temporal differences."""
    disagreement_min: float = Field(0.0, ge=0)
    """The gate is open above this mean distance of a row from its neighbours' mean."""
    scale_preservation: bool = False
    """Give every feature its former mean and deviation back. Rows may then leave their neighbours' range."""
    noise_std: float = Field(0.0, ge=0)
    """Deviation of normal noise in a step."""
    iterations: int = Field(1, ge=1, le=100)
    """Steps of one application; the kernel is computed once."""
    importance_weighted: bool = False
    """Weigh neighbours by their importance weights, so that what is drawn often does not count twice."""
    block: int = Field(4096, ge=16, le=2**20)
    """Rows of the distance matrix that are held at once."""
    free_energy_weight: float = Field(0.0, ge=0)
    """λ_F, weight of the free energy in the loss; 0 reports it alone."""
    temperature: float = Field(1.0, ge=0)
    """T of the free energy U − T·S."""

    @model_validator(mode="after")
    def _widths(self) -> Self:
        if self.sigma_min > self.sigma_max:
            raise ConfigError(f"sigma_min {self.sigma_min:g} is above sigma_max {self.sigma_max:g}")
        return self


class EarlyStopConfig(Config):
    """When a run has learned what it will learn."""

    enabled: bool = False
    """Whether the run ends when the controller says so; false only reports."""
    eval_interval: Count = 5000
    """Decisions between two evaluations of the controller."""
    patience: int = Field(10, ge=1, le=10_000)
    """Evaluations in a row below the threshold before the run ends."""
    hysteresis_pct: float = Field(0.03, ge=0, lt=1)
    """Half width of the band around the threshold in which nothing changes."""
    td_ema_beta: float = Field(0.9, ge=0, lt=1)
    """β of the moving averages of the temporal differences' mean and variance."""
    plateau_threshold: float = Field(0.5, gt=0, lt=1)
    """Cost below which an evaluation counts toward stopping."""
    reward_ema_beta: float = Field(0.6, ge=0, lt=1)
    """β of the moving average of the validation reward."""
    window: int = Field(5, ge=1, le=10_000)
    """Evaluations over which the rise of the validation reward is measured."""
    td_var_floor: float = Field(0.0, ge=0)
    """The run also ends when the variance stays at or below this and nothing improves for patience evaluations."""
    trend: bool = False
    """Do not stop while a Mann–Kendall test over the window sees the reward, not averaged, rise (one-sided, 5 %)."""
    slump: float | None = Field(None, ge=0, le=10)
    """Do not stop while the moving average of the reward is this share of |best| below its best; None does not ask.

    A run that has just lost what it knew is flat too, and its weights are those of its worst hour."""
    rise: float | None = Field(None, ge=0, le=10)
    """Do not stop before the moving average of the reward was this share of |first| above its first; None does not ask.

    A run that has not begun to learn is flat too: acrobot earns its least for tens of thousands of decisions."""
    aggregate: Literal["median", "trimmed_mean"] = "median"
    """How the evaluations of several workers become one."""
    trim: float = Field(0.25, ge=0, lt=0.5)
    """Share that is dropped at each end; aggregate: trimmed_mean."""


class AdaptationConfig(Config):
    """Slow changes of the smoother and of the learning rate by what evaluations show."""

    enabled: bool = False
    """Whether anything is adapted; algorithm dqn alone."""
    rate: float = Field(0.05, gt=0, lt=1)
    """Relative change of one adaptation."""
    min_dwell: int = Field(5, ge=1, le=10_000)
    """Evaluations between two changes."""
    alpha_step_bounds: tuple[float, float] = (0.01, 0.5)
    """Range of alpha_step."""
    tau_bounds: tuple[float, float] = (0.01, 1.0)
    """Range of trust_region_tau."""
    k_bounds: tuple[int, int] = (4, 64)
    """Range of k."""
    learning_rate_bounds: tuple[float, float] = (1e-5, 5e-3)
    """Range of the learning rate."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name in ("alpha_step_bounds", "tau_bounds", "k_bounds", "learning_rate_bounds"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ConfigError(f"adaptation.{name} {low:g}, {high:g}: needs two positive numbers in ascending order")
        return self
