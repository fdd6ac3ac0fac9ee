"""Settings of the fast path: PPO of a memoryless network on a reference task."""

from __future__ import annotations

from pydantic import Field

from navi_core.config.base import Count
from navi_core.config.fast_task import FastTaskConfig

__all__ = ["FastPPOConfig"]


class FastPPOConfig(FastTaskConfig):
    """PPO for a small network on a CPU; the defaults solve cart-pole."""

    rows: int = Field(64, ge=1, le=65536)
    """Environment rows B."""
    rollout: int = Field(32, ge=1, le=2**20)
    """Decisions per row between updates."""
    total_steps: Count = 200_000
    """Decisions summed over rows at which the run ends."""
    hidden: tuple[Count, ...] = Field((64, 64), min_length=1, max_length=8)
    """Widths of the hidden layers."""
    shared: bool = False
    """One trunk for policy and value; otherwise two networks."""
    epochs: int = Field(10, ge=1, le=100)
    """Passes over each rollout."""
    minibatch: int = Field(256, ge=1, le=2**30)
    """Decisions per gradient step."""
    learning_rate: float = Field(1e-3, gt=0, le=1)
    """Adam step size at the start."""
    learning_rate_end: float = Field(1e-4, ge=0, le=1)
    """Adam step size at the end; between them a straight line."""
    gamma: float = Field(0.98, ge=0, le=1)
    """Discount per decision."""
    gae_lambda: float = Field(0.8, ge=0, le=1)
    """λ of generalised advantage estimation."""
    clip: float = Field(0.2, gt=0, le=1)
    """Ratio clip ε."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of the entropy bonus."""
    value_coefficient: float = Field(0.5, ge=0)
    """Weight of the value loss."""
    reward_scale: float = Field(1.0, gt=0)
    """Multiplies rewards, so that returns are of the order of 1 to 100."""
    max_grad_norm: float = Field(0.5, gt=0)
    """Global gradient norm bound."""
