"""The losses of proximal policy optimisation, as plain functions of tensors."""

from __future__ import annotations

from torch import Tensor

__all__ = ["approximate_kl", "policy_loss", "value_loss"]


def policy_loss(log_ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """Clipped surrogate loss, −mean(min(ρA, clip(ρ, 1−ε, 1+ε)A)) (Schulman et al. 2017, equation 7).

    Args:
        log_ratio: log π_new − log π_old, any shape.
        advantages: Same shape.
        clip: ε.
    """
    ratio = log_ratio.exp()
    return -(ratio * advantages).minimum(ratio.clamp(1.0 - clip, 1.0 + clip) * advantages).mean()


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
