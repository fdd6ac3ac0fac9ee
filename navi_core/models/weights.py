"""Identity of weights: one hash over names, shapes and bits, and nothing that changes by the hour."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["weights_hash"]


def weights_hash(weights: nn.Module | Mapping[str, Tensor]) -> str:
    """Return the SHA-256 (hex) of a module's state dict.

    Entries are taken in order of their names; each contributes name, dtype, shape and its values in
    row-major order, so device and memory format do not matter.

    Args:
        weights: A module, or its state dict.
    """
    state = weights.state_dict() if isinstance(weights, nn.Module) else weights
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
