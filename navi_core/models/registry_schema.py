"""Schema of the model registry: one model version, and validation of `registry.json`."""

import re
from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Strict, ValidationError
from pydantic.dataclasses import dataclass

from navi_core.config.base import format_error
from navi_core.models.checkpoint import TrainedFacts

_Names = Annotated[tuple[str, ...], Strict(False)]
"""Names that the registry stores as a list."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class ModelVersion(TrainedFacts):
    """Model version: an immutable registry entry; only the aliases that point to it change."""

    version: str
    """`v001`, `v002`, …"""
    path: Path
    """The registry's own copy of the checkpoint."""
    parents: _Names
    """Versions it was trained from."""
    reward_ema: float | None
    """Smoothed shaped reward; None where it was not finite."""
    file_hash: str
    """SHA-256 of the checkpoint file."""
    config_hash: str
    """Hash of the run's configuration."""
    created_at: str
    """Time of registration, UTC, ISO 8601."""
    metrics: dict[str, float | None]
    """Numbers given at registration."""
    notes: str
    """Note, free text."""
    tags: _Names
    """Free labels."""
    aliases: tuple[str, ...] = ()
    """Aliases that point here now."""

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as JSON-serialisable data."""
        lists = {name: list(getattr(self, name)) for name in ("parents", "tags", "aliases")}
        return {"version": self.version} | asdict(self) | {"path": str(self.path)} | lists


_VERSION = re.compile(r"v\d{3,18}")
_MOVE = ("action", "version", "at")


def read_version(folder: Path, version: str, entry: dict[str, Any], aliases: Iterable[str] = ()) -> ModelVersion:
    """Parse a model version from its entry in `registry.json`.

    Args:
        folder: The registry.
        version: Its number.
        entry: The entry.
        aliases: Aliases that point to it.

    Raises:
        ValidationError: The entry lacks or adds a field, or one has another type.
    """
    derived = {"version": version, "path": folder / entry["file"], "aliases": tuple(sorted(aliases))}
    return ModelVersion(**derived, **{name: value for name, value in entry.items() if name != "file"})


def validate(book: dict[str, Any]) -> str | None:
    """Validate a parsed `registry.json`: return its first error, None if it is valid.

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
    if not _VERSION.fullmatch(version) or not isinstance(entry, dict) or entry.keys() & {"version", "path", "aliases"}:
        return f"{version!r} is no version"
    file = entry.get("file")
    if not isinstance(file, str) or "/" in file or file in ("", ".", ".."):
        return f"version {version}: its file {file!r} lies outside the registry"
    try:
        read_version(Path(), version, entry)
    except ValidationError as error:
        return f"version {version}: {format_error(error)}"
    except TypeError as error:
        return f"version {version}: {error}"
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
