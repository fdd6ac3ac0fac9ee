"""Targets of Q-learning: n-step returns and Double DQN targets."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["double_dqn_targets", "n_step_returns"]


def double_dqn_targets(
    q_online_next: Tensor, q_target_next: Tensor, reward: Tensor, terminated: Tensor, discount: float | Tensor
) -> Tensor:
    """Return reward + discount · Q_target(s′, argmax Q_online(s′, ·)), without the second term where terminated.

    The online network chooses and the target network values (van Hasselt, Guez and Silver 2016, equation 4), because
    one network that does both prefers its own overestimates.

    Args:
        q_online_next: (…, A) online values of the next observation.
        q_target_next: (…, A) target values of the next observation.
        reward: (…,) reward, over n decisions the n-step return.
        terminated: (…,) bool; nothing follows. A truncated episode is not terminated: it bootstraps.
        discount: γ, or γ^n, a number or (…,).

    Returns:
        (…,) targets, without gradient.
    """
    with torch.no_grad():
        choice = q_online_next.argmax(-1, keepdim=True)
        following = q_target_next.gather(-1, choice).squeeze(-1)
        return torch.where(terminated, reward, reward + discount * following)


def n_step_returns(
    rewards: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum up to n rewards from every decision on; fewer where the episode or the rollout ends before.

    Args:
        rewards: (T, …).
        terminated: (T, …) bool, the episode is over after this decision.
        truncated: (T, …) bool, it is cut off.
        gamma: Discount γ.
        n: Decisions, at least 1.

    Returns:
        Returns Σ_{i<k} γ^i r_{t+i}, (T, …); the last decision t+k−1 that each sums, (T, …) int64, after whose
        observation the bootstrap is taken; and its discount γ^k, 0 where that decision terminated, (T, …).
    """
    steps = rewards.shape[0]
    done = terminated | truncated
    last = torch.arange(steps, device=rewards.device).view(-1, *[1] * (rewards.ndim - 1)).expand(rewards.shape).clone()
    returns, discount = rewards.clone(), torch.full_like(rewards, gamma)
    running = ~done
    for ahead in range(1, min(n, steps)):
        on = running[: steps - ahead]
        later = rewards[ahead:]
        returns[: steps - ahead] += torch.where(on, gamma**ahead * later, 0.0)
        discount[: steps - ahead] = torch.where(on, gamma ** (ahead + 1), discount[: steps - ahead])
        last[: steps - ahead] += on
        running = on & ~done[ahead:]
    return returns, last, torch.where(terminated.gather(0, last), 0.0, discount)
