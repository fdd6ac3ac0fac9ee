"""Models: version 3 checkpoints, the registry of versions and aliases, export of weights."""

from __future__ import annotations

from navi_core.models.checkpoint import (
    CHECKPOINT_VERSION,
    Checkpoint,
    load_checkpoint,
    load_policy,
    save_checkpoint,
)
from navi_core.models.export import export_safetensors
from navi_core.models.model_version import ModelVersion
from navi_core.models.registry import Registry
from navi_core.models.weights import weights_hash

__all__ = [
    "CHECKPOINT_VERSION",
    "Checkpoint",
    "ModelVersion",
    "Registry",
    "export_safetensors",
    "load_checkpoint",
    "load_policy",
    "save_checkpoint",
    "weights_hash",
]
