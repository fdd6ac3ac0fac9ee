"""Normalisation of returns and rewards by running moments.

Collisions make returns of −60 where seen floor makes +2. A critic in raw units then fills the shared, clipped
gradient, and the actor learns nothing.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from navi_core.learn.parallel import ALONE, Workers
from navi_core.policy.shaper import RunningMoments

_RATE = 0.2
_LEAST_DEVIATION = 1e-4


class ValueScale:
    """Return normalisation: running moments of returns, and the critic's last layer in their units.

    The layer is rescaled whenever the scale moves, so that its prediction in raw units stays what it was (PopArt, van
    Hasselt et al. 2016). The normalisation is undone before advantages are estimated.

    Args:
        layer: Last linear layer of the critic, (…) → 1.
        device: Where the moments are kept.
        workers: Processes whose rows share the scale.
    """

    def __init__(self, layer: nn.Linear, device: torch.device | str = "cpu", workers: Workers = ALONE) -> None:
        self.layer, self._workers = layer, workers
        self.mean = torch.zeros((), dtype=torch.float64, device=device)
        self.square = torch.ones((), dtype=torch.float64, device=device)
        self.updates = 0

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of the returns, a float64 scalar ≥ 1e-4."""
        return (self.square - self.mean.square()).clamp_min(_LEAST_DEVIATION**2).sqrt()

    def to_raw(self, values: Tensor) -> Tensor:
        """Turn predictions into returns; any shape, same dtype."""
        return (values.double() * self.deviation + self.mean).to(values.dtype)

    def to_scaled(self, returns: Tensor) -> Tensor:
        """Turn returns into the critic's units; any shape, same dtype."""
        return ((returns.double() - self.mean) / self.deviation).to(returns.dtype)

    @torch.no_grad()
    def follow(self, returns: Tensor) -> None:
        """Move toward the moments of `returns` and rescale the critic's last layer.

        The first call copies the moments; a later one goes a fifth of the way, because returns change as the policy
        learns.
        """
        mean, deviation = self.mean.clone(), self.deviation
        rate = 1.0 if self.updates == 0 else _RATE
        raw = returns.detach().double()
        self.mean += rate * (self._workers.mean(raw.mean()) - self.mean)
        self.square += rate * (self._workers.mean(raw.square().mean()) - self.square)
        self.updates += 1
        ratio = deviation / self.deviation
        shift = (mean - self.mean) / self.deviation
        dtype = self.layer.weight.dtype
        self.layer.weight.copy_((self.layer.weight.double() * ratio).to(dtype))
        self.layer.bias.copy_((self.layer.bias.double() * ratio + shift).to(dtype))

    @torch.no_grad()
    def dissolve(self) -> None:
        """Rescale the critic's last layer to raw units, so that this scale is not needed."""
        dtype = self.layer.weight.dtype
        self.layer.weight.copy_((self.layer.weight.double() * self.deviation).to(dtype))
        self.layer.bias.copy_((self.layer.bias.double() * self.deviation + self.mean).to(dtype))

    def state_dict(self) -> dict[str, Any]:
        """Return the moments; the layer is part of the policy."""
        return {"mean": self.mean.clone(), "square": self.square.clone(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])
        self.updates = int(state["updates"])


class RewardScale:
    """Reward normalisation by the running deviation of the discounted return (Engstrom et al. 2020, section 3).

    As in the reference implementation of PPO, a running discounted sum of every row's rewards is reset where an episode
    ends. Rewards are divided by its deviation over all rows and time, and clipped. The mean stays: a shift would change
    which actions are best.

    Args:
        rows: B.
        gamma: Discount per decision.
        clip: Bound of a normalised reward.
        device: Where it is kept.
        workers: Processes whose rows share the deviation.
    """

    def __init__(
        self, rows: int, gamma: float, clip: float, device: torch.device | str = "cpu", workers: Workers = ALONE
    ) -> None:
        self.gamma, self.clip, self._workers = gamma, clip, workers
        self.discounted = torch.zeros(rows, device=device)
        self.moments = RunningMoments().to(device)

    @torch.no_grad()
    def normalise_(self, rewards: Tensor, done: Tensor) -> None:
        """Normalise a rollout's rewards (T, B) in place, with done (T, B) bool where an episode ends."""
        returns = torch.empty_like(rewards)
        for t in range(rewards.shape[0]):
            torch.add(rewards[t], self.discounted, alpha=self.gamma, out=returns[t])
            self.discounted.copy_(returns[t]).masked_fill_(done[t], 0.0)
        self.moments.update(returns.flatten(), None if self._workers.size == 1 else self._workers.sum)
        scale = torch.rsqrt(self.moments.variance + 1e-8).to(rewards.dtype)
        rewards.mul_(scale).clamp_(-self.clip, self.clip)

    def begin_episodes(self) -> None:
        """Reset the discounted sums of all rows: their episodes were abandoned."""
        self.discounted.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the running sums and moments."""
        return {"discounted": self.discounted.clone(), "moments": dict(self.moments.state_dict())}

    def load_moments(self, state: dict[str, Any]) -> None:
        """Load the deviation of another run's state; the running sums of its rows are not this run's."""
        self.moments.load_state_dict(state["moments"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.discounted.copy_(state["discounted"])
        self.load_moments(state)


class CriticUnits:
    """Units of a critic that does not learn, kept for a later PPO run; empty where the parent had none.

    GRPO, DPO and cloning leave the critic's head as their parent had it. PPO learned it in units of the returns'
    spread, and perhaps of scaled rewards. A PPO run that goes on from their weights needs these units.
    """

    def __init__(self) -> None:
        self._scales: dict[str, Any] = {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the units by those of a learner's state.

        Args:
            state: `state_dict` of PPO or of a learner that carries units; of another one there is nothing to keep.
        """
        self._scales = {}
        if "value_scale" in state:
            self._scales["value_scale"] = dict(state["value_scale"])
        if "reward_scale" in state:
            # The parent's rows have no running sums here.
            self._scales["reward_scale"] = {"moments": dict(state["reward_scale"]["moments"])}

    begin_from = load_state_dict
    """Carry on the units of another run, whose weights the policy has been given."""

    def state_dict(self) -> dict[str, Any]:
        """Return the units by PPO's names."""
        return dict(self._scales)
