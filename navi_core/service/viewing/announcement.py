"""How a viewer on this machine finds what runs: each publisher leaves a note of where it publishes.

    $NAVI_HOME/live/<name>.json    endpoint, process, scenes, semantic names

The note goes when the process ends in order; that of a process which was killed is recognised by its pid.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from navi_core.record import navi_home, write_durably

__all__ = ["Announcement", "announce", "announced", "withdraw"]

_MOST_BYTES = 1 << 20
_MOST_NOTES = 256


@dataclass(frozen=True)
class Announcement:
    """One publisher."""

    name: str
    """The run's name."""
    endpoint: str
    """Where it publishes observations and telemetry."""
    pid: int
    """Its process."""
    rows: int
    """Drones that may be selected."""
    scenes: list[str] = field(default_factory=list)
    """Names of the scenes, by number."""
    vocabulary: dict[str, int] = field(default_factory=dict)
    """Semantic ids by name."""

    @property
    def key(self) -> str:
        """Tells this publisher from others, and from one of the same name that was started later."""
        return f"{self.name}@{self.endpoint}"


def announce(note: Announcement) -> Path:
    """Write a publisher's note; returns the file."""
    folder = navi_home() / "live"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{note.name}.json"
    write_durably(path, json.dumps(asdict(note)).encode())
    return path


def withdraw(path: Path, pid: int) -> None:
    """Remove a note, unless a later process has written its own there."""
    found = _read(path)
    if found is not None and found.pid == pid:
        with contextlib.suppress(OSError):
            path.unlink()


def announced(home: Path | None = None) -> list[Announcement]:
    """Return the publishers that run on this machine, by name.

    Args:
        home: The Navi home; by default `$NAVI_HOME`.
    """
    folder = (home or navi_home()) / "live"
    notes = (_read(path) for path in sorted(folder.glob("*.json"))[:_MOST_NOTES])
    return [note for note in notes if note is not None and _alive(note.pid)]


def _read(path: Path) -> Announcement | None:
    """Return a note; None for a file that is none. Other processes write these, so nothing is believed."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        note = Announcement(**data)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    kinds = ((note.name, str), (note.endpoint, str), (note.pid, int), (note.rows, int), (note.scenes, list))
    good = all(isinstance(value, kind) for value, kind in kinds) and isinstance(note.vocabulary, dict)
    named = good and all(isinstance(k, str) and isinstance(v, int) for k, v in note.vocabulary.items())
    return note if named and all(isinstance(scene, str) for scene in note.scenes) else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        # Another user's process lives.
        return True
    return True
