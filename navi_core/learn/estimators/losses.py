"""The losses of policy optimisation, as plain functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["approximate_kl", "policy_loss", "reference_kl", "surrogate", "value_loss"]


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
