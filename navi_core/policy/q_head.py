"""Q head: a value for every choice, flown greedily, explored with probability ε."""

import math

import torch
from torch import Tensor, nn

from navi_core.config.policy import Spaces
from navi_core.config.world import MOTION_PRIMITIVES
from navi_core.errors import ConfigError
from navi_core.policy.distributions import ActionDistribution, table_index


class EpsilonGreedy(ActionDistribution):
    """The best choice, or with probability ε any.

    Args:
        values: Q values (…, K).
        table: Actions (K, A), all different.
        epsilon: ε, a scalar or one of every row (B,), the first axis of `values`.
    """

    def __init__(self, values: Tensor, table: Tensor, epsilon: Tensor) -> None:
        self.values, self.table = values, table
        self.epsilon = epsilon.view(-1, *[1] * (values.ndim - 2)) if epsilon.ndim else epsilon

    def typical(self) -> Tensor:
        """Return the best action."""
        return self.table[self.values.argmax(-1)]

    def sample(self, noise: Tensor) -> Tensor:
        """Return the best action, or any: one normal of the noise decides whether, and which.

        Below its quantile ε the draw is uniform on [0, ε), so its place there names one of K.
        """
        quantile = torch.special.ndtr(noise[..., 0].double())
        count = len(self.table)
        place = (quantile * count / self.epsilon.clamp_min(1e-300)).clamp_max(count - 1).long()
        return self.table[torch.where(quantile < self.epsilon, place, self.values.argmax(-1))]

    def probabilities(self) -> Tensor:
        """Return the probability of every choice (…, K)."""
        best = torch.nn.functional.one_hot(self.values.argmax(-1), len(self.table))
        epsilon = self.epsilon[..., None] if self.epsilon.ndim else self.epsilon
        return ((1 - epsilon) * best + epsilon / len(self.table)).to(self.values.dtype)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log probability (…,) of actions of the table; −∞ for others than the best without exploration."""
        index = table_index(actions, self.table)
        return self.probabilities().gather(-1, index[..., None]).squeeze(-1).log()

    def entropy(self) -> Tensor:
        """Return the entropy (…,)."""
        out: Tensor = torch.special.entr(self.probabilities()).sum(-1)
        return out


class QHead(nn.Module):
    """Features → hidden layer → a value for every choice; with `dueling` a value and centred advantages.

    Orthogonal initialisation with gain √2 in the hidden layer and 0.01 before the values, so that at first no choice
    is better than another.

    Args:
        width: Feature width D.
        hidden: Width of the hidden layer, whose activations are the latents of drift smoothing.
        dueling: Sum a value and advantages less their mean (Wang et al. 2016).
        spaces: A reference task's actions; None for the motion primitives of flight.

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
        """Return hidden activations (…, H) of features (…, D)."""
        return torch.relu(self.hidden(features))

    def values_of(self, latents: Tensor) -> Tensor:
        """Return Q values (…, K) of latents (…, H)."""
        values: Tensor = self.values(latents)
        if self.state_value is None:
            return values
        out: Tensor = self.state_value(latents) + values - values.mean(-1, keepdim=True)
        return out

    def forward(self, features: Tensor) -> Tensor:
        """Return Q values (…, K) of features (…, D)."""
        return self.values_of(self.latents(features))

    def distribution(self, features: Tensor) -> EpsilonGreedy:
        """Return the distribution of actions at features (…, D), with the ε that the learner has set."""
        return EpsilonGreedy(self(features), self.table, self.epsilon)

    def value(self, features: Tensor, _privileged: Tensor | None = None) -> Tensor:
        """Return the value (…,) of the best choice at features (…, D); there is no privileged critic."""
        out: Tensor = self(features).amax(-1)
        return out
