"""Losses of policy optimisation, and targets of Q-learning, as plain functions of tensors."""

import torch
from torch import Tensor


def policy_loss(log_ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Clipped surrogate loss, −mean(min(ρA, clip(ρ, 1−ε, 1+ε)A)) (Schulman et al. 2017, equation 7).

    Args:
        log_ratio: log π_new − log π_old, any shape.
        advantages: Same shape.
        clip: ε.
    """
    return -surrogate(log_ratio, torch.zeros_like(log_ratio), advantages, clip).mean()


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """Mean squared error of the values; with `clip`, the larger of the plain and the clipped step's error.

    Args:
        values: Predicted now, any shape.
        returns: Targets.
        old_values: Predicted by the acting policy.
        clip: Largest step from `old_values` that may lower the loss; None switches it off.
    """
    error = (values - returns).square()
    if clip is not None:
        stepped = old_values + (values - old_values).clamp(-clip, clip)
        error = error.maximum((stepped - returns).square())
    return error.mean()


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Schulman's low-variance estimate of KL(old‖new), mean(ρ − 1 − log ρ) ≥ 0."""
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def surrogate(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, clip: float | None) -> Tensor:
    """Return what a policy gradient maximises, for every decision.

    Args:
        log_prob: log π(a) under the weights that learn, any shape.
        old_log_prob: log π(a) of the acting policy, same shape.
        advantages: Same shape.
        clip: ε of the clipped ratio (Schulman et al. 2017, equation 7); None is A·log π (Williams 1992).
    """
    if clip is None:
        return advantages * log_prob
    ratio = (log_prob - old_log_prob).exp()
    return (ratio * advantages).minimum(ratio.clamp(1.0 - clip, 1.0 + clip) * advantages)


def reference_kl(log_prob: Tensor, reference_log_prob: Tensor, estimator: str) -> Tensor:
    """Estimate KL(π‖π_ref) from actions of π, for every decision (Schulman 2020, "Approximating KL divergence").

    k1 = log π − log π_ref is unbiased, but the expectation of its gradient is that of ∇log π, which is zero: it
    measures and does not hold back. k3 = ρ − 1 − log ρ with ρ = π_ref/π is unbiased, never negative, and pulls.

    Args:
        log_prob: log π(a), any shape.
        reference_log_prob: log π_ref(a), same shape.
        estimator: `k3` or `k1`.
    """
    log_ratio = reference_log_prob - log_prob
    return -log_ratio if estimator == "k1" else log_ratio.exp() - 1.0 - log_ratio


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
