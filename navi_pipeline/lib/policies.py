"""Training a profile's policy on the corpus, and the document that says which checkpoint it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config import TrainConfig, config_hash
from navi_core.errors import RunError
from navi_core.presets import resolve_config
from navi_pipeline.lib.compiled import scene_paths
from navi_pipeline.lib.documents import pipeline_folder, read_document, write_document
from navi_pipeline.lib.trainer_client import train_in_child
from navi_pipeline.lib.warehouse import Warehouse

if TYPE_CHECKING:
    import pandas

__all__ = ["ASSET", "curve_of", "read_policy", "train_policy", "training_config"]

ASSET = "ppo_policy"
"""Asset name in the run directory's key."""

_RESULT = ("checkpoint", "run_id", "version", "steps", "reward_ema", "wall_time_hours")
_STEPS = {"quick": 294_912}
_DEFAULT_STEPS = 2_000_000


def training_config(profile: str, *, seed: int, total_steps: int | None) -> TrainConfig:
    """Return the full configuration of a profile on the corpus' training scenes.

    Args:
        profile: Preset name.
        seed: Seed of the run.
        total_steps: Decisions summed over rows; None takes the preset's, or a bounded default: an asset ends.

    Raises:
        RecordError: The corpus has not been materialized.
        RunError: The corpus has no training scene.
    """
    scenes = [str(path) for path in scene_paths("train")]
    if not scenes:
        raise RunError("the corpus has no training scene; materialize scene_sources with train above 0")
    config = resolve_config(preset=profile, flags={"seed": seed, "corpus": {"scenes": scenes}})
    steps = total_steps or config.total_steps or _STEPS.get(profile, _DEFAULT_STEPS)
    return config.model_copy(update={"total_steps": steps})


def train_policy(profile: str, *, seed: int, total_steps: int | None, on_line: Callable[[str], None]) -> dict[str, Any]:
    """Train a profile, or reuse the finished run of the same configuration, and fold its rows in.

    Args:
        profile: Preset name.
        seed: Seed of the run.
        total_steps: Decisions summed over rows, or None.
        on_line: Called with every line the trainer says.

    Returns:
        The policy's document: checkpoint, run_id, weights_hash, steps, …, and `reused`.

    Raises:
        RunError: The trainer failed, or was stopped before its last step.
    """
    config = training_config(profile, seed=seed, total_steps=total_steps)
    known = _path(profile, config_hash(config))
    if known.exists():
        document = read_document(known, made_by=ASSET)
        if Path(document["checkpoint"]).exists():
            write_document(_path(profile), document)
            return document | {"reused": True}
    result = train_in_child(config, asset=ASSET, partition=profile, on_line=on_line)
    Warehouse().ingest()
    if result.get("reason") != "total_steps":
        raise RunError(f"training stopped at step {result['steps']:,} ({result.get('reason')}); it resumes next time")
    document = {
        **{name: result[name] for name in _RESULT},
        "profile": profile,
        "seed": seed,
        "config_hash": config_hash(config),
        "train_scenes": len(config.corpus.scenes),
        "weights_hash": _weights_hash(Path(result["checkpoint"])),
    }
    write_document(known, document)
    write_document(_path(profile), document)
    return document | {"reused": False}


def read_policy(profile: str) -> dict[str, Any]:
    """Return the document of a profile's policy.

    Raises:
        RecordError: The policy has not been trained.
    """
    return read_document(_path(profile), made_by=f"{ASSET}, partition {profile},")


def curve_of(run_id: str) -> pandas.DataFrame:
    """Return the training curve of a run, by step."""
    return Warehouse().query("select * from training_curve where run_id = ? order by step", [run_id])


def _path(profile: str, digest: str | None = None) -> Path:
    folder = pipeline_folder() / "policies"
    return folder / (f"{profile}.json" if digest is None else f"{profile}-{digest}.json")


def _weights_hash(checkpoint: Path) -> str:
    from navi_core.models import load_checkpoint

    return load_checkpoint(checkpoint).weights_hash
