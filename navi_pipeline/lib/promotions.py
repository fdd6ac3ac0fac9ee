"""The champion's gate: challenger against champion on the validation scenes, each pair once."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from navi_core.config import EvalConfig
from navi_core.errors import EvaluationError
from navi_core.record import navi_home
from navi_pipeline.lib.documents import content_key, pipeline_folder, read_document, write_document
from navi_pipeline.lib.pipeline_log import pipeline_log
from navi_pipeline.lib.scoring import SplitScenes, flown, flown_policy

if TYPE_CHECKING:
    from navi_core.models import ModelVersion, Registry

__all__ = ["ALIAS", "challenge", "open_registry", "record_models"]

ALIAS = "champion"
"""The alias that policies challenge."""

_COPIED = (
    "version", "run_id", "weights_hash", "file_hash", "parents", "training_source", "encoder_backend", "temporal_core",
    "decision_hz", "episode_count", "reward_ema", "metrics", "notes", "tags", "created_at", "config_hash",
)  # fmt: skip


def open_registry() -> Registry:
    """Return the registry of the Navi home."""
    from navi_core.models import Registry

    return Registry(navi_home() / "models")


def challenge(policy: dict[str, Any], config: EvalConfig) -> dict[str, Any]:
    """Let a policy's version challenge the champion, and move the alias if it wins.

    Both fly the same frozen starts of the validation scenes; the first champion has to beat random
    flight. A pair that was decided before is not decided again.

    Args:
        policy: The policy's document.
        config: The protocol.

    Returns:
        The decision's row, with `champion` (who holds the alias now) and `reused`.

    Raises:
        EvaluationError: The corpus has no validation scene.
    """
    from navi_core.evaluate import decide, record_decision

    registry = open_registry()
    version = policy["version"]
    holder = _holder(registry)
    held = pipeline_folder() / "decisions"
    if holder is not None and holder.version == version:
        known = held / f"{version}.json"
        row = read_document(known, made_by="promoted_model") if known.exists() else {"reason": f"{version} holds it"}
        return row | {"version": version, "promoted": True, "champion": version, "reused": True}
    scenes = SplitScenes("validation")
    if not scenes.names:
        raise EvaluationError("the corpus has no validation scene; materialize scene_sources with validation above 0")
    challenger, _ = flown_policy(policy, scenes, config)
    if holder is None:
        opponent, _ = flown("random", scenes, config)
    else:
        opponent, _ = flown(
            holder, scenes, config, name=holder.version, weights=holder.weights_hash,
            columns={"model_version": holder.version},
        )  # fmt: skip
    pair = content_key(version, None if holder is None else holder.version, challenger.evaluation_id)
    file = held / f"pair-{pair}.json"
    if file.exists():
        row = read_document(file, made_by="promoted_model")
        return row | {"champion": None if holder is None else holder.version, "reused": True}
    decision = decide(
        version, challenger, opponent, previous_version=None if holder is None else holder.version, alias=ALIAS
    )
    if decision.promoted:
        registry.promote(version, ALIAS)
    record_decision(decision, challenger)
    row = decision.to_row() | {
        "coverage": asdict(decision.coverage),
        "collisions": asdict(decision.collisions),
    }
    write_document(file, row)
    write_document(held / f"{version}.json", row)
    champion = version if decision.promoted else (None if holder is None else holder.version)
    return row | {"champion": champion, "reused": False}


def record_models(registry: Registry) -> list[dict[str, Any]]:
    """Record every version of the registry; a version recorded before is replaced by the same row."""
    rows = [model_row(entry) for entry in registry.list()]
    with pipeline_log("registry") as log:
        for row in rows:
            log.row("models", row)
    return rows


def model_row(entry: ModelVersion) -> dict[str, Any]:
    """Return a registry entry as a row of `models`."""
    data = entry.as_dict()
    row = {name: data[name] for name in _COPIED}
    row |= {"step": entry.step_id, "checkpoint": str(entry.path), "revision": entry.code_revision}
    return row


def _holder(registry: Registry) -> ModelVersion | None:
    return next((entry for entry in registry.list() if ALIAS in entry.aliases), None)
