"""Actor and critic heads, and the diagonal Gaussian they parameterise."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["ACTION_AXES", "ActorCritic", "gaussian_entropy", "gaussian_log_prob"]

ACTION_AXES = 4
"""Forward, vertical, lateral, yaw."""

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def gaussian_log_prob(action: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log density (…,) of unclamped actions (…, A) under N(mean (…, A), exp(log_std (A,))²)."""
    z = (action - mean) * torch.exp(-log_std)
    return (-0.5 * z * z - log_std - _HALF_LOG_TWO_PI).sum(-1)


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Return the differential entropy [nat] of a Gaussian with log standard deviations (A,), a scalar."""
    return (log_std + 0.5 + _HALF_LOG_TWO_PI).sum(-1)


def _orthogonal(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class ActorCritic(nn.Module):
    """Actor D-64-A with tanh mean, critic D-64-1, state-independent log_std; 16,841 parameters at D 128.

    Orthogonal initialisation: gain √2 in hidden layers, 0.01 before the mean, 1 before the value.

    Args:
        width: Feature width D.
        log_std_init: Initial log standard deviation of every axis.
        stop_value_gradient: Detach the critic's input, so the trunk learns from the actor alone.
    """

    def __init__(self, width: int = 128, *, log_std_init: float = -0.5, stop_value_gradient: bool = False) -> None:
        super().__init__()
        hidden = 64
        self.actor = nn.Sequential(
            _orthogonal(width, hidden, math.sqrt(2)), nn.Tanh(), _orthogonal(hidden, ACTION_AXES, 0.01), nn.Tanh()
        )
        self.critic = nn.Sequential(_orthogonal(width, hidden, math.sqrt(2)), nn.Tanh(), _orthogonal(hidden, 1, 1.0))
        self.log_std = nn.Parameter(torch.full((ACTION_AXES,), float(log_std_init)))
        self.stop_value_gradient = stop_value_gradient

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return action means (…, A) in (−1, 1) and values (…,) of features (…, D)."""
        return self.actor(features), self.value(features)

    def value(self, features: Tensor) -> Tensor:
        """Return values (…,) of features (…, D)."""
        if self.stop_value_gradient:
            features = features.detach()
        return self.critic(features).squeeze(-1)
