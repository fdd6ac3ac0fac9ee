"""Identity of weights, and whether a network takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from navi_core.config import PolicyConfig
    from navi_core.models.checkpoint import Checkpoint


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


def same_network(config: PolicyConfig, checkpoint: Checkpoint) -> bool:
    """Return whether a configuration's network takes a checkpoint's weights: same parts, names and shapes."""
    from navi_core.policy import build_policy

    if (checkpoint.encoder_backend, checkpoint.temporal_core) != (config.encoder, config.core):
        return False
    theirs = {name: value.shape for name, value in checkpoint.policy_state.items()}
    return theirs == {name: value.shape for name, value in build_policy(config, 0).state_dict().items()}
