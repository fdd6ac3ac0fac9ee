"""Schema of the registry: one version, validation of `registry.json`, and rows for the warehouse."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.record import MetricLog, navi_home, row_context

if TYPE_CHECKING:
    from navi_core.models.registry import Registry


@dataclass(frozen=True)
class ModelVersion:
    """An immutable entry of the registry; only the aliases that point to it change."""

    version: str
    """`v001`, `v002`, …"""
    path: Path
    """The registry's own copy of the checkpoint."""
    parents: tuple[str, ...]
    """Versions it was trained from."""
    run_id: str
    """Run that wrote the checkpoint."""
    step_id: int
    """Decisions it was trained for."""
    episode_count: int
    """Episodes it was trained for."""
    reward_ema: float | None
    """Smoothed shaped reward; None where it was not finite."""
    training_source: str
    """`rl`, `bc` or `inference`."""
    encoder_backend: str
    """Name of the encoder."""
    temporal_core: str
    """Name of the temporal core."""
    decision_hz: float
    """Decisions per second of flight [Hz]."""
    weights_hash: str
    """SHA-256 of the weights."""
    file_hash: str
    """SHA-256 of the checkpoint file."""
    config_hash: str
    """Hash of the run's configuration."""
    code_revision: str | None
    """Git commit of the code that trained it."""
    created_at: str
    """Time of registration, UTC, ISO 8601."""
    metrics: dict[str, float | None]
    """Numbers given at registration."""
    notes: str
    """Free text."""
    tags: tuple[str, ...]
    """Free labels."""
    aliases: tuple[str, ...] = ()
    """Aliases that point here now."""

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as JSON-ready data."""
        return asdict(self) | {
            "path": str(self.path),
            "parents": list(self.parents),
            "tags": list(self.tags),
            "aliases": list(self.aliases),
        }


_VERSION = re.compile(r"v\d{3,18}")
_MOVE = ("action", "version", "at")
_OWN = {"version", "path", "aliases"}
"""Fields of a version that are derived, not stored."""
_KINDS: dict[str, type | tuple[type, ...]] = {
    "file": str,
    "parents": list,
    "step_id": int,
    "episode_count": int,
    "reward_ema": (int, float, type(None)),
    "decision_hz": (int, float),
    "code_revision": (str, type(None)),
    "metrics": dict,
    "tags": list,
}
"""Types of the entries that are not text."""


def validate(book: dict[str, Any]) -> str | None:
    """Return the first fault of a parsed `registry.json`, None if it is valid.

    Args:
        book: The parsed JSON object.
    """
    versions, aliases = book.get("versions"), book.get("aliases")
    if not isinstance(versions, dict) or not isinstance(aliases, dict):
        return "it has no versions or no aliases"
    faults = chain(
        (_version_fault(version, entry, versions) for version, entry in versions.items()),
        (_alias_fault(alias, state, versions) for alias, state in aliases.items()),
    )
    return next((fault for fault in faults if fault is not None), None)


def _version_fault(version: str, entry: object, versions: dict[str, Any]) -> str | None:
    names = ({field.name for field in fields(ModelVersion)} - _OWN) | {"file"}
    if not _VERSION.fullmatch(version) or not isinstance(entry, dict):
        return f"{version!r} is no version"
    if set(entry) != names:
        return f"version {version} lacks or adds {', '.join(sorted(names ^ set(entry)))}"
    for name in sorted(names):
        if not isinstance(entry[name], _KINDS.get(name, str)):
            return f"version {version}: {name} is {entry[name]!r}"
    for name, value in (*entry["metrics"].items(), *((n, entry[n]) for n in ("reward_ema", "decision_hz"))):
        if value is not None and not (isinstance(value, int | float) and abs(value) <= sys.float_info.max):
            return f"version {version}: {name} is {value!r}"
    if "/" in entry["file"] or entry["file"] in ("", ".", ".."):
        return f"version {version}: its file {entry['file']!r} lies outside the registry"
    # A version is registered after its parents; anything else could be a cycle.
    wrong = [p for p in entry["parents"] if p not in versions or int(p[1:]) >= int(version[1:])]
    return f"version {version}: {wrong[0]!r} cannot be its parent" if wrong else None


def _alias_fault(alias: str, state: object, versions: dict[str, Any]) -> str | None:
    held, moves = (state.get("versions"), state.get("history")) if isinstance(state, dict) else (None, None)
    if not isinstance(held, list) or not held or not isinstance(moves, list):
        return f"alias {alias!r} points at nothing"
    if any(not isinstance(name, str) or name not in versions for name in held):
        return f"alias {alias!r} points at versions that do not exist"
    if any(not isinstance(move, dict) or not all(isinstance(move.get(k), str) for k in _MOVE) for move in moves):
        return f"alias {alias!r} has a broken history"
    return None


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
