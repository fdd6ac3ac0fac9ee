"""Models: checkpoints (version 3), the model registry with versions and aliases, export to ONNX and AOTInductor."""

from navi_core.models.checkpoint import (
    CHECKPOINT_VERSION,
    Checkpoint,
    load_checkpoint,
    load_policy,
    save_checkpoint,
)
from navi_core.models.exported import ExportedPolicy, load_exported
from navi_core.models.imports import register_file
from navi_core.models.lineage import add_scenes, add_scenes_of, corpus_of, trained_on, weights_hash
from navi_core.models.programs import export_checkpoint, export_policy, export_safetensors
from navi_core.models.registry import Registry, record_registry
from navi_core.models.registry_schema import ModelVersion

__all__ = [
    "CHECKPOINT_VERSION",
    "Checkpoint",
    "ExportedPolicy",
    "ModelVersion",
    "Registry",
    "add_scenes",
    "add_scenes_of",
    "corpus_of",
    "export_checkpoint",
    "export_policy",
    "export_safetensors",
    "load_checkpoint",
    "load_exported",
    "load_policy",
    "record_registry",
    "register_file",
    "save_checkpoint",
    "trained_on",
    "weights_hash",
]
