"""Actor and critic heads."""

import math

import torch
from torch import Tensor, nn

from navi_core.config.policy import Spaces
from navi_core.config.world import MOTION_PRIMITIVES
from navi_core.errors import ConfigError
from navi_core.policy.distributions import ActionDistribution, Categorical, DiagonalGaussian, ScaledBeta

ACTION_AXES = 4
"""Forward, vertical, lateral, yaw."""

_HIDDEN = 64
PRIVILEGED = 3
"""Privileged inputs of the critic: floor left to see [m²], its fraction of all floor, decisions since the episode
began; in flight to goals the way left [m], whether the goal is near enough to stop at (0 or 1), and decisions."""
_SCALED = 4


def _orthogonal(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class ActorCritic(nn.Module):
    """Actor D-64-n and critic D-64-1, with a Gaussian 16,841 parameters at D 128.

    The actor's outputs are a tanh mean beside a state-independent log_std (gaussian), α and β of every
    axis (beta), or a logit for every motion primitive (discrete). Orthogonal initialisation: gain √2 in
    hidden layers, 0.01 before the action, 1 before the value.

    Args:
        width: Feature width D.
        distribution: `gaussian`, `beta` or `discrete`.
        log_std_init: Initial log standard deviation of every axis (gaussian).
        stop_value_gradient: Detach the critic's input, so the trunk learns from the actor alone.
        privileged: The critic also has privileged inputs, see `PRIVILEGED`; not for reference tasks.
        spaces: A reference task's actions; with choices the distribution is discrete. None for flight.

    Raises:
        ConfigError: No such distribution.
    """

    table: Tensor
    log_std: nn.Parameter | None

    def __init__(
        self,
        width: int = 128,
        *,
        distribution: str = "gaussian",
        log_std_init: float = -0.5,
        stop_value_gradient: bool = False,
        privileged: bool = False,
        spaces: Spaces | None = None,
    ) -> None:
        super().__init__()
        axes = ACTION_AXES
        choices: tuple[tuple[float, ...], ...] = tuple(MOTION_PRIMITIVES.values())
        if spaces is not None:
            axes, choices = spaces.axes, spaces.choices
            distribution = "discrete" if choices else distribution
        outputs = {"gaussian": axes, "beta": 2 * axes, "discrete": len(choices)}
        if distribution not in outputs:
            raise ConfigError(f"no action distribution {distribution!r}; allowed: {', '.join(outputs)}")
        self.kind = distribution
        layers = [
            _orthogonal(width, _HIDDEN, math.sqrt(2)),
            nn.Tanh(),
            _orthogonal(_HIDDEN, outputs[distribution], 0.01),
        ]
        self.actor = nn.Sequential(*layers, *([nn.Tanh()] if distribution == "gaussian" else []))
        self.privileged = privileged and spaces is None
        read = width + _SCALED * self.privileged
        self.critic = nn.Sequential(_orthogonal(read, _HIDDEN, math.sqrt(2)), nn.Tanh(), _orthogonal(_HIDDEN, 1, 1.0))
        # A parameter for the Gaussian alone: nothing else has one to learn or to freeze.
        log_std = torch.full((axes,), float(log_std_init))
        self.log_std = nn.Parameter(log_std) if distribution == "gaussian" else None
        self.register_buffer("table", torch.tensor(choices), persistent=False)
        self.stop_value_gradient = stop_value_gradient

    @property
    def value_layer(self) -> nn.Linear:
        """Last layer of the critic."""
        layer = self.critic[-1]
        assert isinstance(layer, nn.Linear)
        return layer

    def forward(self, features: Tensor) -> tuple[ActionDistribution, Tensor]:
        """Return the distribution of actions and the values (…,) of features (…, D)."""
        return self.distribution(features), self.value(features)

    def distribution(self, features: Tensor) -> ActionDistribution:
        """Return the distribution of actions at features (…, D)."""
        outputs = self.actor(features)
        if self.log_std is not None:
            return DiagonalGaussian(outputs, self.log_std)
        return ScaledBeta(outputs) if self.kind == "beta" else Categorical(outputs, self.table)

    def value(self, features: Tensor, privileged: Tensor | None = None) -> Tensor:
        """Return values (…,) of features (…, D).

        Args:
            features: Features.
            privileged: Privileged inputs (…, 3), see `PRIVILEGED`. Without them, outside training, its
                values are those of a flight that has just begun with nothing left to see.
        """
        if self.stop_value_gradient:
            features = features.detach()
        if self.privileged:
            features = torch.cat((features, _scaled(privileged, features)), dim=-1)
        out: Tensor = self.critic(features).squeeze(-1)
        return out


def _scaled(privileged: Tensor | None, features: Tensor) -> Tensor:
    """Return the scaled privileged inputs (…, 4), of the order of 1."""
    if privileged is None:
        return features.new_zeros((*features.shape[:-1], _SCALED))
    area, share, decisions = privileged.unbind(-1)
    return torch.stack((area / 100.0, torch.log1p(area) / 4.0, share, torch.log1p(decisions) / 4.0), dim=-1)
