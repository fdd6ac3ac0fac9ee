"""Folders of all runs: their sizes, and removal.

A run's rows stay in the warehouse, and its registered versions in the registry, which has copies of their files. The
folder is needed to continue the run, and for its checkpoints, log and TensorBoard files.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from navi_core.errors import RunError
from navi_core.machine.file_lock import hold_lock, is_locked
from navi_core.record.run_directory import run_lock

_ASIDE = ".old-"
_REMOVED = ".removed-"


@dataclass(frozen=True)
class RunFolder:
    """One run's folder.

    Attributes:
        name: Of the folder: the run's id, with `.old-<time>` behind it where a fresh start put it aside.
        created_at: When the run began, UTC; None where its config.json is broken.
        changed: When its newest file was written [s since 1970].
        size: Bytes of all its files.
        replays: Bytes of replays among them, needed only to continue the run.
        in_use: Whether a process works on it.
    """

    name: str
    created_at: str | None
    changed: float
    size: int
    replays: int
    in_use: bool


def run_folders(root: Path) -> list[RunFolder]:
    """Return the folders of runs, the largest first."""
    found = [_facts(root, path) for path in root.iterdir() if _is_run(path)] if root.is_dir() else []
    return sorted(found, key=lambda folder: (-folder.size, folder.name))


def find_run_folder(root: Path, name: str) -> RunFolder:
    """Return a run's folder.

    Args:
        root: Folder of all runs.
        name: Of the folder.

    Raises:
        RunError: There is no such run.
    """
    return _facts(root, _find(root, name))


def remove_run_folder(root: Path, name: str) -> int:
    """Remove a run's folder and return its size [bytes].

    It is renamed before it is emptied, so that a kill leaves no partial run; the next removal deletes the rest.

    Args:
        root: Folder of all runs.
        name: Of the folder, as in `run_folders`.

    Raises:
        RunError: There is no such run, a process holds it, or it cannot be removed.
    """
    path = _find(root, name)
    run_id = name.partition(_ASIDE)[0]
    try:
        with hold_lock(run_lock(root, run_id), f"run {run_id}"):
            size = _facts(root, path).size
            path.rename(root / f".{name}{_REMOVED}{os.getpid()}")
            for rest in root.glob(f".*{_REMOVED}*"):
                shutil.rmtree(rest)
    except OSError as error:
        raise RunError(f"{path}: cannot be removed: {error.strerror or error}") from error
    return size


def _find(root: Path, name: str) -> Path:
    path = root / name
    if Path(name).name != name or not _is_run(path):
        raise RunError(f"no run {name!r} in {root}; see them with: navi runs list")
    return path


def _is_run(path: Path) -> bool:
    # Not a link: its target may not be removed.
    return not path.name.startswith(".") and path.is_dir() and not path.is_symlink() and (path / "config.json").exists()


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            else:
                yield entry


def _facts(root: Path, path: Path) -> RunFolder:
    sizes = [(entry.name, entry.stat(follow_symlinks=False)) for entry in _files(path)]
    try:
        created = str(json.loads((path / "config.json").read_text())["created_at"])
    except (OSError, ValueError, KeyError, TypeError):
        created = None
    return RunFolder(
        name=path.name,
        created_at=created,
        changed=max(stat.st_mtime for _, stat in sizes),
        size=sum(stat.st_size for _, stat in sizes),
        replays=sum(stat.st_size for name, stat in sizes if name.endswith(".replay")),
        in_use=_ASIDE not in path.name and is_locked(run_lock(root, path.name)),
    )
