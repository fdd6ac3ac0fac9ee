"""Weights in the safetensors format, for other programs."""

from __future__ import annotations

import json
from pathlib import Path

from navi_core.errors import CheckpointError
from navi_core.models.checkpoint import load_checkpoint
from navi_core.record import write_durably

__all__ = ["export_safetensors"]


def export_safetensors(checkpoint: Path | str, path: Path | str) -> Path:
    """Write a checkpoint's policy weights as a safetensors file.

    Its metadata name run, step, encoder, core, decision rate and weights hash, and hold the policy
    configuration as JSON. Optimizer and random states stay behind: this is an export, not a format
    that training resumes from.

    Args:
        checkpoint: The checkpoint file.
        path: File to write, in one piece.

    Returns:
        `path`.

    Raises:
        CheckpointError: The checkpoint cannot be read, or the file not be written.
    """
    from safetensors.torch import save

    source, path = load_checkpoint(checkpoint), Path(path)
    metadata = {
        "format": "pt",
        "run_id": source.run_id,
        "step_id": str(source.step_id),
        "encoder_backend": source.encoder_backend,
        "temporal_core": source.temporal_core,
        "decision_hz": str(source.decision_hz),
        "weights_hash": source.weights_hash,
        "policy_config": json.dumps(source.config["policy"], sort_keys=True),
    }
    tensors = {name: tensor.contiguous() for name, tensor in source.policy_state.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, save(tensors, metadata=metadata))
    except OSError as error:
        raise CheckpointError(f"{path}: the export cannot be written: {error.strerror or error}") from error
    return path
