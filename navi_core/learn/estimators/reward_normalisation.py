"""Reward normalisation: rewards in units of the discounted return's running deviation.

As in the reference implementation of PPO (Engstrom et al. 2020, section 3): a running discounted sum
of rewards for every row, reset where an episode ends; rewards are divided by its deviation over all
rows and time, and clipped. The mean is left alone, for a shift would change what is worth doing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from navi_core.learn.parallel import ALONE, Workers
from navi_core.policy.rnd import RunningMoments

__all__ = ["RewardScale"]


class RewardScale:
    """Running deviation of the discounted return.

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
        """Begin the discounted sums of all rows anew: the episodes that they are of are not gone on with."""
        self.discounted.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the running sums and moments."""
        return {"discounted": self.discounted.clone(), "moments": dict(self.moments.state_dict())}

    def take_moments(self, state: dict[str, Any]) -> None:
        """Take over the deviation of another run's state; its rows and their running sums are not this run's."""
        self.moments.load_state_dict(state["moments"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.discounted.copy_(state["discounted"])
        self.take_moments(state)
