"""Rows of the registry for the warehouse: versions, and moves of aliases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.models.registry import Registry
from navi_core.record import MetricLog, navi_home, row_context

if TYPE_CHECKING:
    from navi_core.models.registry_schema import ModelVersion

_COPIED = (
    "version", "run_id", "weights_hash", "file_hash", "parents", "training_source", "encoder_backend", "temporal_core",
    "decision_hz", "episode_count", "reward_ema", "metrics", "notes", "tags", "created_at", "config_hash",
)  # fmt: skip


def record_registry(registry: Registry, home: Path | None = None) -> list[dict[str, Any]]:
    """Write every version to the table `models` and every move of an alias to `alias_moves`.

    A row that was written before is replaced by the same row. All are durable when this returns. A registry outside of
    the home has no warehouse, and nothing is written.

    Args:
        registry: Whose versions and moves.
        home: The Navi home; by default `$NAVI_HOME`.

    Returns:
        The rows of `models`.

    Raises:
        RecordError: The rows could not be written.
    """
    rows = [_row(entry) for entry in registry.list()]
    home = home or navi_home()
    if registry.path.absolute() != (home / "models").absolute():
        return rows
    log = MetricLog(home / "outbox", "registry", row_context())
    for row in rows:
        log.row("models", row)
    for alias in registry.aliases():
        for move in registry.history(alias):
            moved = {"alias": alias, "version": move["version"], "moved_at": move["at"], "action": move["action"]}
            log.row("alias_moves", moved)
    log.flush()
    return rows


def _row(entry: ModelVersion) -> dict[str, Any]:
    data = entry.as_dict()
    row = {name: data[name] for name in _COPIED}
    return row | {"step": entry.step_id, "checkpoint": str(entry.path), "revision": entry.code_revision}
