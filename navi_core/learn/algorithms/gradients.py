"""Gradients as one thing: their norm, its bound, and which of them is not finite."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["clip_gradients"]


def clip_gradients(parameters: Sequence[Tensor], bound: float) -> tuple[Tensor, Tensor]:
    """Scale gradients in place so that their global norm is at most `bound` (Pascanu et al. 2013).

    The same arithmetic as `torch.nn.utils.clip_grad_norm_`, which keeps the norms of the single
    gradients to itself; they are what names the tensor when one is NaN. Nothing is read by the host.

    Args:
        parameters: Every one has a gradient.
        bound: Largest global norm.

    Returns:
        The norm before scaling, a scalar, and the norm of each gradient, (P,).
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(gradients))
    total = torch.linalg.vector_norm(norms)
    torch._foreach_mul_(gradients, (bound / (total + 1e-6)).clamp(max=1.0))
    return total, norms
