"""Discovery of publishers on this machine: each writes a note with its endpoint.

    $NAVI_HOME/live/<name>.json    endpoint, process, scenes, semantic names

The publisher holds the lock of its note while it lives; the next publisher removes notes without a lock. The pid of a
killed publisher may belong to another process by now.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from navi_core.machine.file_lock import create_locked, is_locked, try_lock
from navi_core.record import navi_home

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
    """Number of drones that may be selected."""
    scenes: list[str] = field(default_factory=list)
    """Names of the scenes, by number."""
    vocabulary: dict[str, int] = field(default_factory=dict)
    """Semantic ids by name."""

    @property
    def key(self) -> str:
        """Identity of the publisher; one of the same name that was started later has another."""
        return f"{self.name}@{self.endpoint}"


class PublisherNote:
    """Note of a publisher of this process, until it is withdrawn.

    Args:
        announcement: Its content.

    Raises:
        OSError: The folder cannot be written.
    """

    def __init__(self, announcement: Announcement) -> None:
        folder = navi_home() / "live"
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        self._path = folder / f"{announcement.name}.json"
        self._file = self._written(announcement)

    def change(self, announcement: Announcement) -> None:
        """Replace the content, under the same name."""
        before, self._file = self._file, self._written(announcement)
        os.close(before)

    def withdraw(self) -> None:
        """Remove the note, unless a later publisher of the same name has replaced it."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._file), self._path.stat()):
                self._path.unlink()
        os.close(self._file)

    def _written(self, announcement: Announcement) -> int:
        # Where files cannot be locked, readers go by the pid.
        return create_locked(self._path, json.dumps(asdict(announcement)).encode(), without_locks=True)


def announced() -> list[Announcement]:
    """Return the publishers that run on this machine and share this `$NAVI_HOME`, by name."""
    folder = navi_home() / "live"
    living = (note for path in sorted(folder.glob("*.json")) if (note := _read(path)) is not None)
    return list(islice(living, _MOST_NOTES))


def _sweep(folder: Path) -> None:
    """Remove notes of killed publishers; one whose pid lives may be of a version without locks, and stays."""
    for path in folder.glob("*.json"):
        # Where files cannot be locked a note stays, too: its publisher may live on another machine.
        with contextlib.suppress(OSError):
            note = None if is_locked(path) else _read(path, living=False)
            if note is not None and not _alive(note.pid):
                path.unlink()


def _read(path: Path, *, living: bool = True) -> Announcement | None:
    """Return a note, None for an invalid file: other processes write these.

    Args:
        path: The file.
        living: Also return None where the publisher is gone.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                return None
            data: Any = json.loads(file.read())
            note = Announcement(**data)
            if living and not _locked(file.fileno(), note.pid):
                return None
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    kinds = ((note.name, str), (note.endpoint, str), (note.pid, int), (note.rows, int), (note.scenes, list))
    good = all(isinstance(value, kind) for value, kind in kinds) and isinstance(note.vocabulary, dict)
    named = good and all(isinstance(k, str) and isinstance(v, int) for k, v in note.vocabulary.items())
    return note if named and all(isinstance(scene, str) for scene in note.scenes) else None


def _locked(file: int, pid: int) -> bool:
    """Return whether a publisher holds its note; where files cannot be locked, whether the process lives."""
    try:
        return not try_lock(file, shared=True)
    except OSError:
        return _alive(pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        # Another user's process lives.
        return True
    return True
