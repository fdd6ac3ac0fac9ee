"""Whether a run can begin with the weights of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from navi_core.config import PolicyConfig
    from navi_core.models.checkpoint import Checkpoint

__all__ = ["same_network"]


def same_network(config: PolicyConfig, checkpoint: Checkpoint) -> bool:
    """Tell whether the network of a configuration takes a checkpoint's weights: same parts, same names, same shapes."""
    from navi_core.policy import build_policy

    if (checkpoint.encoder_backend, checkpoint.temporal_core) != (config.encoder, config.core):
        return False
    theirs = {name: value.shape for name, value in checkpoint.policy_state.items()}
    return theirs == {name: value.shape for name, value in build_policy(config, 0).state_dict().items()}
