"""What must hold of a registry's book (`registry.json`) before anything is looked up in it."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from typing import Any

from navi_core.models.model_version import ModelVersion

__all__ = ["book_fault"]

_VERSION = re.compile(r"v\d{3,18}")
_MOVE = ("action", "version", "at")
_OWN = {"version", "path", "aliases"}
"""Fields of a version that follow from its place in the book."""
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


def book_fault(book: dict[str, Any]) -> str | None:
    """Say what is broken in a book, None where nothing is.

    Args:
        book: The parsed JSON object.
    """
    versions, aliases = book.get("versions"), book.get("aliases")
    if not isinstance(versions, dict) or not isinstance(aliases, dict):
        return "it lacks its versions or its aliases"
    names = ({field.name for field in fields(ModelVersion)} - _OWN) | {"file"}
    for version, entry in versions.items():
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
        for parent in entry["parents"]:
            # A version is registered after its parents; anything else could be a cycle.
            if parent not in versions or int(parent[1:]) >= int(version[1:]):
                return f"version {version}: {parent!r} cannot be its parent"
    for alias, state in aliases.items():
        held = state.get("versions") if isinstance(state, dict) else None
        moves = state.get("history") if isinstance(state, dict) else None
        if not isinstance(held, list) or not held or not isinstance(moves, list):
            return f"alias {alias!r} points at nothing"
        if any(not isinstance(name, str) or name not in versions for name in held):
            return f"alias {alias!r} points at versions that do not exist"
        if any(not isinstance(move, dict) or not all(isinstance(move.get(k), str) for k in _MOVE) for move in moves):
            return f"alias {alias!r} has a broken history"
    return None
