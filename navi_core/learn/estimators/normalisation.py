"""Normalisation of returns (PopArt) and rewards by running moments.

A collision can give a return of −60, newly seen floor only +2. In raw units the critic's loss then dominates the
shared, clipped gradient, and the actor learns nothing.
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
    """PopArt return normalisation: running moments of returns, and the critic's last layer rescaled to them.

    The layer is rescaled with every update of the moments, so its prediction in raw units is preserved (van Hasselt et
    al. 2016). Values are denormalised before advantages are estimated.

    Args:
        layer: Last linear layer of the critic, (…) → 1.
        device: Device of the moments.
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
        """Denormalise critic predictions to raw returns; any shape, same dtype."""
        return (values.double() * self.deviation + self.mean).to(values.dtype)

    def to_scaled(self, returns: Tensor) -> Tensor:
        """Normalise raw returns to the critic's units; any shape, same dtype."""
        return ((returns.double() - self.mean) / self.deviation).to(returns.dtype)

    @torch.no_grad()
    def follow(self, returns: Tensor) -> None:
        """Update the running moments with `returns`; rescale the critic's last layer to keep its raw predictions.

        The first call copies the batch moments. Later calls move a fifth of the way (exponential moving average),
        because returns change as the policy learns.
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
        """Fold the normalisation into the critic's last layer: it predicts raw returns, and this scale is unused."""
        dtype = self.layer.weight.dtype
        self.layer.weight.copy_((self.layer.weight.double() * self.deviation).to(dtype))
        self.layer.bias.copy_((self.layer.bias.double() * self.deviation + self.mean).to(dtype))

    def state_dict(self) -> dict[str, Any]:
        """Return the running moments; the rescaled layer is part of the policy."""
        return {"mean": self.mean.clone(), "square": self.square.clone(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the running moments from a `state_dict`."""
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
        device: Device of the running sums and moments.
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
        """Reset the discounted sums of all rows, whose episodes were abandoned."""
        self.discounted.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the discounted sums and running moments."""
        return {"discounted": self.discounted.clone(), "moments": dict(self.moments.state_dict())}

    def load_moments(self, state: dict[str, Any]) -> None:
        """Restore the running moments from another run's state; discounted sums stay, as its rows differ."""
        self.moments.load_state_dict(state["moments"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore discounted sums and running moments from a `state_dict`."""
        self.discounted.copy_(state["discounted"])
        self.load_moments(state)


class CriticUnits:
    """Pass-through state of a PPO run's return and reward normalisers in learners without a critic; may be empty.

    GRPO, DPO and cloning leave the parent's critic head unchanged. PPO trained it on normalised returns, and perhaps on
    scaled rewards. A PPO run that continues from their weights needs these units (`ValueScale`, `RewardScale`).
    """

    def __init__(self) -> None:
        self._scales: dict[str, Any] = {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the carried normalisation state by that of a learner's `state_dict`.

        Args:
            state: `state_dict` of PPO or of a learner that carries units; other states leave it empty.
        """
        self._scales = {}
        if "value_scale" in state:
            self._scales["value_scale"] = dict(state["value_scale"])
        if "reward_scale" in state:
            # The parent's rows have no running sums here.
            self._scales["reward_scale"] = {"moments": dict(state["reward_scale"]["moments"])}

    begin_from = load_state_dict
    """Carry over the normalisation state of the run whose weights the policy starts from."""

    def state_dict(self) -> dict[str, Any]:
        """Return the carried normalisation state under PPO's keys."""
        return dict(self._scales)
