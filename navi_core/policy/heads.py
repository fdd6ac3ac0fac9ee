"""Policy heads: actor-critic, or a Q head with ε-greedy exploration."""

import math

import torch
from torch import Tensor, nn

from navi_core.config.policy import Spaces
from navi_core.config.world import MOTION_PRIMITIVES
from navi_core.errors import ConfigError
from navi_core.policy.distributions import ActionDistribution, Categorical, DiagonalGaussian, ScaledBeta, table_index

ACTION_AXES = 4
"""Number of action axes: forward, vertical, lateral, yaw."""

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
    """Actor-critic head: actor MLP D → 64 → n, critic MLP D → 64 → 1; 16,841 parameters at D 128, Gaussian.

    The actor's outputs are a tanh mean beside a state-independent log_std (gaussian), α and β of every
    axis (beta), or a logit for every motion primitive (discrete). Orthogonal initialisation: gain √2 in
    hidden layers, 0.01 before the action, 1 before the value.

    Args:
        width: Feature width D.
        distribution: `gaussian`, `beta` or `discrete`.
        log_std_init: Initial log standard deviation of every axis (gaussian).
        stop_value_gradient: Detach the critic's input, so the trunk gets gradients from the actor alone.
        privileged: The critic also has privileged inputs, see `PRIVILEGED`; not for reference tasks.
        spaces: Action space of a reference task; with choices the distribution is discrete. None for flight.

    Raises:
        ConfigError: The distribution is unknown.
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
        # A parameter for the Gaussian alone; the other distributions have none.
        log_std = torch.full((axes,), float(log_std_init))
        self.log_std = nn.Parameter(log_std) if distribution == "gaussian" else None
        self.register_buffer("table", torch.tensor(choices), persistent=False)
        self.stop_value_gradient = stop_value_gradient

    @property
    def value_layer(self) -> nn.Linear:
        """Last linear layer of the critic, the output of the value."""
        layer = self.critic[-1]
        assert isinstance(layer, nn.Linear)
        return layer

    def forward(self, features: Tensor) -> tuple[ActionDistribution, Tensor]:
        """Compute the action distribution and the values (…,) of features (…, D)."""
        return self.distribution(features), self.value(features)

    def distribution(self, features: Tensor) -> ActionDistribution:
        """Build the action distribution of features (…, D)."""
        outputs = self.actor(features)
        if self.log_std is not None:
            return DiagonalGaussian(outputs, self.log_std)
        return ScaledBeta(outputs) if self.kind == "beta" else Categorical(outputs, self.table)

    def value(self, features: Tensor, privileged: Tensor | None = None) -> Tensor:
        """Compute the critic's values (…,) of features (…, D).

        Args:
            features: Features of the trunk.
            privileged: Privileged inputs (…, 3), see `PRIVILEGED`. None, outside training, is all zeros: a flight
                that has just begun with nothing left to see.
        """
        if self.stop_value_gradient:
            features = features.detach()
        if self.privileged:
            features = torch.cat((features, _scaled(privileged, features)), dim=-1)
        out: Tensor = self.critic(features).squeeze(-1)
        return out


def _scaled(privileged: Tensor | None, features: Tensor) -> Tensor:
    """Scale the privileged inputs (…, 3) to network inputs (…, 4) of the order of 1."""
    if privileged is None:
        return features.new_zeros((*features.shape[:-1], _SCALED))
    area, share, decisions = privileged.unbind(-1)
    return torch.stack((area / 100.0, torch.log1p(area) / 4.0, share, torch.log1p(decisions) / 4.0), dim=-1)


class EpsilonGreedy(ActionDistribution):
    """ε-greedy action distribution: the greedy action, or with probability ε a uniformly random one.

    Args:
        values: Q values (…, K).
        table: Actions (K, A), all different.
        epsilon: ε, a scalar or one of every row (B,), the first axis of `values`.
    """

    def __init__(self, values: Tensor, table: Tensor, epsilon: Tensor) -> None:
        self.values, self.table = values, table
        self.epsilon = epsilon.view(-1, *[1] * (values.ndim - 2)) if epsilon.ndim else epsilon

    def typical(self) -> Tensor:
        """Return the greedy action (…, A)."""
        return self.table[self.values.argmax(-1)]

    def sample(self, noise: Tensor) -> Tensor:
        """Sample ε-greedily; one normal of the noise decides both whether to explore and the action.

        A quantile below ε is uniform on [0, ε), so its position there selects one of K actions.
        """
        quantile = torch.special.ndtr(noise[..., 0].double())
        count = len(self.table)
        place = (quantile * count / self.epsilon.clamp_min(1e-300)).clamp_max(count - 1).long()
        return self.table[torch.where(quantile < self.epsilon, place, self.values.argmax(-1))]

    def probabilities(self) -> Tensor:
        """Return the probability of every action (…, K)."""
        best = torch.nn.functional.one_hot(self.values.argmax(-1), len(self.table))
        epsilon = self.epsilon[..., None] if self.epsilon.ndim else self.epsilon
        return ((1 - epsilon) * best + epsilon / len(self.table)).to(self.values.dtype)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log probability (…,) of actions of the table; −∞ for non-greedy ones without exploration."""
        index = table_index(actions, self.table)
        return self.probabilities().gather(-1, index[..., None]).squeeze(-1).log()

    def entropy(self) -> Tensor:
        """Return the entropy (…,) [nat]."""
        out: Tensor = torch.special.entr(self.probabilities()).sum(-1)
        return out


class QHead(nn.Module):
    """Q head: features → hidden layer → a Q value per action; with `dueling` a state value and centred advantages.

    Orthogonal initialisation with gain √2 in the hidden layer and 0.01 before the values, so that all actions start
    with nearly equal values.

    Args:
        width: Feature width D.
        hidden: Width of the hidden layer, whose activations are the latents of drift smoothing.
        dueling: Sum a value and advantages less their mean (Wang et al. 2016).
        spaces: Action space of a reference task; None for the motion primitives of flight.

    Raises:
        ConfigError: The task's actions are continuous.
    """

    table: Tensor
    epsilon: Tensor
    privileged = False

    def __init__(
        self, width: int = 128, hidden: int = 64, *, dueling: bool = False, spaces: Spaces | None = None
    ) -> None:
        super().__init__()
        choices = tuple(MOTION_PRIMITIVES.values()) if spaces is None else spaces.choices
        if not choices:
            raise ConfigError("a Q head chooses among actions and this task's are continuous; use ppo")
        self.hidden = nn.Linear(width, hidden)
        self.values = nn.Linear(hidden, len(choices))
        self.state_value = nn.Linear(hidden, 1) if dueling else None
        for layer, gain in ((self.hidden, math.sqrt(2)), (self.values, 0.01), (self.state_value, 0.01)):
            if layer is not None:
                nn.init.orthogonal_(layer.weight, gain)
                nn.init.zeros_(layer.bias)
        self.register_buffer("table", torch.tensor(choices), persistent=False)
        self.register_buffer("epsilon", torch.tensor(0.0, dtype=torch.float64), persistent=False)

    def latents(self, features: Tensor) -> Tensor:
        """Compute the hidden activations (…, H) of features (…, D)."""
        return torch.relu(self.hidden(features))

    def values_of(self, latents: Tensor) -> Tensor:
        """Compute Q values (…, K) from hidden activations (…, H)."""
        values: Tensor = self.values(latents)
        if self.state_value is None:
            return values
        out: Tensor = self.state_value(latents) + values - values.mean(-1, keepdim=True)
        return out

    def forward(self, features: Tensor) -> Tensor:
        """Compute Q values (…, K) of features (…, D)."""
        return self.values_of(self.latents(features))

    def distribution(self, features: Tensor) -> EpsilonGreedy:
        """Build the ε-greedy action distribution of features (…, D), with the ε set by the learner."""
        return EpsilonGreedy(self(features), self.table, self.epsilon)

    def value(self, features: Tensor, _privileged: Tensor | None = None) -> Tensor:
        """Return the greedy state value max Q (…,) of features (…, D); there is no privileged critic."""
        out: Tensor = self(features).amax(-1)
        return out
