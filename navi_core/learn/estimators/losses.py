"""Losses of policy optimisation, advantage estimators (GAE, V-trace, group-relative), and Q-learning targets.

GAE follows Schulman et al. 2016 and distinguishes the two endings of an episode: a terminated episode has no future
value, a truncated one bootstraps from the critic's value of its final observation. `gae_reference` is the naive form of
`gae`, kept to test it.

With importance ratios the estimate is V-trace's (Espeholt et al. 2018): ρ weighs the temporal difference, c cuts the
trace behind a decision that is unlikely under the current policy.
"""

from typing import Literal

import torch
from torch import Tensor

from navi_core.errors import ConfigError
from navi_core.kernels.advantages import advantages_of


def policy_loss(log_ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Clipped surrogate loss, −mean(min(ρA, clip(ρ, 1−ε, 1+ε)A)) (Schulman et al. 2017, equation 7).

    Args:
        log_ratio: log π_new − log π_old, any shape.
        advantages: Same shape.
        clip: ε.
    """
    return -surrogate(log_ratio, torch.zeros_like(log_ratio), advantages, clip).mean()


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """Mean squared value loss; with `clip`, the larger error of the plain and the clipped prediction (PPO).

    Args:
        values: Current predictions, any shape.
        returns: Value targets.
        old_values: Predictions of the acting policy.
        clip: Largest step from `old_values` that may lower the loss; None switches it off.
    """
    error = (values - returns).square()
    if clip is not None:
        stepped = old_values + (values - old_values).clamp(-clip, clip)
        error = error.maximum((stepped - returns).square())
    return error.mean()


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Estimate KL(old‖new) by Schulman's low-variance estimator, mean(ρ − 1 − log ρ) ≥ 0."""
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def surrogate(log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, clip: float | None) -> Tensor:
    """Return the policy-gradient objective of every decision: clipped surrogate (PPO), or A·log π without clip.

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

    k1 = log π − log π_ref is unbiased, but its gradient has expectation zero (that of ∇log π): it measures the
    divergence and does not penalise it. k3 = ρ − 1 − log ρ with ρ = π_ref/π is unbiased, never negative, and penalises.

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
    """Compute Double DQN targets: reward + discount · Q_target(s′, argmax Q_online(s′, ·)); reward alone if terminated.

    The online network selects the action and the target network evaluates it (van Hasselt, Guez and Silver 2016,
    equation 4), which reduces the overestimation of plain Q-learning.

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
    """Compute n-step returns of every decision; fewer rewards where the episode or the rollout ends earlier.

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


def gae(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    bootstrap_values: Tensor,
    *,
    gamma: float,
    lam: float,
    rho: Tensor | None = None,
    c: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (GAE) over a rollout, V-trace with importance ratios.

    Args:
        rewards: (T,B) or (T,) reward of step t.
        values: (T,B) V(observation before step t).
        terminated: (T,B) bool, the episode ended for good at step t; its future is worth 0.
        truncated: (T,B) bool, the episode was cut off at step t. `terminated` wins over it.
        bootstrap_values: (T,B) V(observation after step t), read only where the episode is
            truncated at t and in the last row, where the rollout ends.
        gamma: Discount γ per step.
        lam: λ.
        rho: (T,B) clipped importance ratio on the temporal difference; None is 1.
        c: (T,B) clipped importance ratio on the trace behind decision t; None is 1.

    Returns:
        Advantages and returns (advantages + values), each shaped like `rewards`.

    Raises:
        ConfigError: The shapes differ, or the device has no kernel.
    """
    ratios = [x for x in (rho, c) if x is not None]
    _check_shapes(rewards, values, terminated, truncated, bootstrap_values, *ratios)
    shape = rewards.shape
    dtype = torch.float64 if torch.float64 in (rewards.dtype, values.dtype) else torch.float32
    flat = [x.detach().to(dtype).reshape(shape[0], -1) for x in (rewards, values, bootstrap_values)]
    ends = [x.bool().reshape(shape[0], -1) for x in (terminated, truncated)]
    weights: list[Tensor] = []
    if ratios:
        one = torch.ones_like(values)  # multiplying by it changes no bit
        weights = [(one if x is None else x).detach().to(dtype).reshape(shape[0], -1) for x in (rho, c)]
    found = advantages_of(*flat, *ends, *weights, gamma=gamma, lam=lam)
    advantages = found.to(values.dtype).reshape(shape)
    return advantages, advantages + values.detach()


def gae_reference(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    bootstrap_values: Tensor,
    *,
    gamma: float,
    lam: float,
    rho: Tensor | None = None,
    c: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Naive scalar implementation of `gae`, the reference in tests of the fast versions; slow."""
    _check_shapes(rewards, values, terminated, truncated, bootstrap_values)
    shape = rewards.shape
    one = torch.ones_like(values)
    weights = (one if rho is None else rho, one if c is None else c)
    r, v, end, cut, boot, on_difference, on_trace = (
        x.reshape(shape[0], -1).tolist() for x in (rewards, values, terminated, truncated, bootstrap_values, *weights)
    )
    steps, rows = shape[0], len(r[0])
    advantages = [[0.0] * rows for _ in range(steps)]
    for b in range(rows):
        for t in reversed(range(steps)):
            last = t == steps - 1
            if end[t][b]:
                next_value, later = 0.0, 0.0
            elif cut[t][b] or last:
                next_value, later = boot[t][b], 0.0
            else:
                next_value, later = v[t + 1][b], advantages[t + 1][b]
            difference = r[t][b] + gamma * next_value - v[t][b]
            advantages[t][b] = on_difference[t][b] * difference + gamma * lam * on_trace[t][b] * later
    result = torch.tensor(advantages, dtype=values.dtype, device=values.device).reshape(shape)
    return result, result + values


def group_advantages(returns: Tensor, mode: Literal["mean", "mean_std"] = "mean") -> Tensor:
    """Group-relative advantages: returns of K trajectories minus their mean (GRPO, Shao et al. 2024).

    Args:
        returns: (K,) undiscounted returns.
        mode: `mean` subtracts the mean; `mean_std` also divides by the population standard deviation.

    Returns:
        (K,) detached; exactly zero for a group whose spread is ≤ 1e-6 of its largest magnitude.

    Raises:
        ConfigError: `mode` is unknown, or `returns` is not one-dimensional.
    """
    if returns.ndim != 1:
        raise ConfigError(f"group returns have shape {tuple(returns.shape)}; expected (K,)")
    returns = returns.detach()
    centred = returns - returns.mean()
    spread = returns.max() - returns.min()
    centred = torch.where(spread <= 1e-6 * returns.abs().max(), torch.zeros_like(centred), centred)
    if mode == "mean":
        return centred
    if mode == "mean_std":
        return centred / (returns.std(correction=0) + 1e-8)
    raise ConfigError(f"no group normalisation {mode!r}; allowed: mean, mean_std")


def _check_shapes(rewards: Tensor, *others: Tensor) -> None:
    for other in others:
        if other.shape != rewards.shape:
            raise ConfigError(f"gae: shapes differ: {tuple(rewards.shape)} and {tuple(other.shape)}; expected (T,B)")
