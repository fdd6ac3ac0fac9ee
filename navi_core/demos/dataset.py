"""Datasets: a folder of recordings with an index, and what learning reads of it.

    <folder>/index.json      what is in the folder, with content hashes
    <folder>/*.npz           recordings (`demonstration.py`)

In memory the semantic ids are 16-bit and the valid mask is one byte; depth stays as it was recorded, so that nothing is
lost. What memory does not hold lies in a file and is read from there as learning walks through it. Ids of files with
different vocabularies are brought to one that names them all; those of a file without names are then surfaces that
nothing names. Where no file has names, ids stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.demos.demonstration import Demonstration, load_demonstration
from navi_core.demos.memory import arrays_of, require_memory
from navi_core.demos.scene_lookup import Place, one_name_each, require_one_scene
from navi_core.demos.semantic_ids import MOST_IDS, id_table
from navi_core.errors import DemoError, as_argument
from navi_core.record.durable import sweep_left, write_durably

__all__ = [
    "FACTS",
    "INDEX",
    "Dataset",
    "Episode",
    "facts_of",
    "index_row",
    "load_dataset",
    "read_index",
    "write_index",
    "write_rows",
]

_LOG = logging.getLogger("navi.demos")

INDEX = "index.json"
_FORMAT = 1
UNKNOWN = "surface"
"""Name of id 1, a surface that nothing names."""
FACTS = ("azimuth_bins", "elevation_bins", "decision_hz", "limits", "max_distance")
"""What all files of a dataset must agree on."""


@dataclass(frozen=True)
class Episode:
    """One flight of a dataset."""

    start: int
    """Its first decision."""
    stop: int
    """The decision after its last."""
    file: str
    """File it is in; a sequence never leaves it."""
    scene: str
    """Scene it was flown in; one that files name differently has the first of its names."""

    @property
    def steps(self) -> int:
        """Number of decisions."""
        return self.stop - self.start


@dataclass(frozen=True)
class Dataset:
    """All decisions of some folders, one after the other."""

    depth: npt.NDArray[np.float32]
    """(N, Az, El) normalised depth."""
    semantic: npt.NDArray[np.uint16]
    """(N, Az, El) ids of `vocabulary`."""
    valid: npt.NDArray[np.bool_]
    """(N, Az, El)."""
    actions: npt.NDArray[np.float32]
    """(N, 4) in [−1, 1]."""
    flown: npt.NDArray[np.float32]
    """(N, 4) what the drone did; the actions, where nothing disturbed them."""
    episodes: tuple[Episode, ...]
    """In the order of folders, files and time."""
    vocabulary: dict[str, int]
    """Semantic id by name."""
    scene_hashes: dict[str, str]
    """Content hash by scene name, where files tell it."""
    decision_hz: float
    """Decisions per second [Hz]."""
    limits: tuple[float, float, float, float]
    """Speeds of action 1 [m/s, rad/s]."""
    max_distance: float
    """Range of the sensor, M [m]."""
    content_hash: str
    """Hash of all content, in its order; dates do not count."""
    sources: frozenset[str] = frozenset()
    """Hashes of what scenes were compiled from, where files tell it, and of content behind the first of a name."""

    def __len__(self) -> int:
        """Return the number of decisions."""
        return len(self.actions)

    @property
    def azimuth_bins(self) -> int:
        """Az."""
        return self.depth.shape[1]

    @property
    def elevation_bins(self) -> int:
        """El."""
        return self.depth.shape[2]

    def observations(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the observations (n, 3, Az, El) of decisions (n,)."""
        return np.stack([self.depth[index], self.semantic[index], self.valid[index]], axis=1, dtype=np.float32)


def index_row(name: str, demo: Demonstration) -> dict[str, Any]:
    """Return what an index says of a file with this name and content."""
    return {
        "file": name,
        "content_hash": demo.content_hash(),
        "decisions": len(demo.actions),
        "episodes": len(demo.episodes()),
        "scene": demo.scene,
        "pilot": demo.pilot,
        "scene_hash": demo.scene_hash,
        "source_hash": demo.source_hash,
        **facts_of(demo),
    }


def write_index(folder: Path, demos: Iterable[tuple[str, Demonstration]]) -> dict[str, Any]:
    """Write the index of a folder.

    Args:
        folder: Where the files are.
        demos: Name and content of each file, in order.

    Returns:
        The index.

    Raises:
        DemoError: No file, or files that do not fit each other.
    """
    return write_rows(folder, (index_row(name, demo) for name, demo in demos))


def write_rows(folder: Path, found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Write an index of rows by `index_row`; returns and raises as `write_index`."""
    rows: list[dict[str, Any]] = []
    for row in found:
        rows.append(row)
        fault = _differing(rows[0], row)
        if fault is not None:
            raise DemoError(
                f"{fault}; datasets hold one kind of recording", path=folder / row["file"], field=fault.split()[0]
            )
    if not rows:
        raise DemoError("no recording to index; record some with `navi demos expert`", path=folder)
    index = {"format": _FORMAT, **{key: rows[0][key] for key in FACTS}, "content_hash": _hash(rows), "files": rows}
    sweep_left(folder)
    try:
        write_durably(folder / INDEX, (json.dumps(index, indent=1) + "\n").encode())
    except OSError as error:
        raise DemoError(f"cannot be written: {error.strerror or error}", path=folder / INDEX) from error
    return index


def read_index(folder: Path) -> dict[str, Any]:
    """Read the index of a dataset.

    Raises:
        DemoError: There is none, or it is broken.
    """
    file = folder / INDEX
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DemoError(
            "no dataset (it has no index.json); make one with `navi demos ingest` or `navi demos expert`", path=folder
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DemoError(f"cannot be read ({error}); run `navi demos ingest` again", path=file) from None
    keys = {"file": str, "content_hash": str, "decisions": int, "episodes": int, "scene": str}
    good = isinstance(index, dict) and index.get("format") == _FORMAT and isinstance(index.get("files"), list)
    if not good or not index["files"]:
        raise DemoError(f"no index of format {_FORMAT}; run `navi demos ingest` again", path=file)
    for row in index["files"]:
        if not isinstance(row, dict) or not all(isinstance(row.get(key), kind) for key, kind in keys.items()):
            raise DemoError("a row lacks what an index says of a file; run `navi demos ingest` again", path=file)
        # A name must not lead out of the folder.
        if Path(row["file"]).name != row["file"] or row["decisions"] < 1:
            raise DemoError(f"bad row {row['file']!r}; run `navi demos ingest` again", path=file, field="files")
    return index


def stamp(path: Path) -> str:
    """Return size and time of a file, by which it is known to be unchanged.

    Raises:
        DemoError: It is not there.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise DemoError(f"cannot be read ({error.strerror or error})", path=path) from None
    return f"{stat.st_size}-{stat.st_mtime_ns}"


def stamped_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of an index that tell how their file was then, none without a good index."""
    try:
        rows = read_index(folder)["files"]
    except DemoError:
        return []
    texts, keys = ("stamp", "scene_hash", "source_hash"), set(FACTS)
    return [row for row in rows if keys <= row.keys() and all(isinstance(row.get(key), str) for key in texts)]


def index_folder(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Index files of a folder; those that are as the index knows them are not read again.

    Args:
        folder: Where they are.
        names: Which, in order.

    Returns:
        The index.

    Raises:
        DemoError: No file, a broken one, or files that do not fit each other.
    """
    known = {(row["file"], row["stamp"]): row for row in stamped_rows(folder)}

    def row(name: str) -> dict[str, Any]:
        # Before it is read: what changes meanwhile is read again next time.
        now = stamp(folder / name)
        return known.get((name, now)) or index_row(name, load_demonstration(folder / name)) | {"stamp": now}

    return write_rows(folder, map(row, names))


def load_dataset(folders: Sequence[Path], progress: Callable[[str], None] | None = None) -> Dataset:
    """Read and check all recordings of some folders.

    Args:
        folders: Datasets.
        progress: Called with the name of each file that was read.

    Raises:
        DemoError: A file is broken or not what the index says, files do not fit each other, or all of
            them together fit neither into memory nor on the disk.
    """
    files = [(folder / row["file"], row) for folder in folders for row in read_index(folder)["files"]]
    if not files:
        raise DemoError("no dataset named", path=Path("."))
    for folder in folders:
        _tell_unindexed(folder, {path.name for path, _ in files if path.parent == folder})
    files = _once(files)
    facts = facts_of(load_demonstration(files[0][0]))
    azimuth, elevation, total = (
        facts["azimuth_bins"],
        facts["elevation_bins"],
        sum(row["decisions"] for _, row in files),
    )
    remedy = "name fewer folders, or record at a lower resolution"
    require_memory(32 * total, files[0][0].parent, remedy)
    empty = arrays_of(7 * azimuth * elevation * total, files[0][0].parent, remedy)
    depth = empty((total, azimuth, elevation), np.float32)
    semantic, valid = empty(depth.shape, np.uint16), empty(depth.shape, np.bool_)
    actions, flown = np.empty((total, 4), np.float32), np.empty((total, 4), np.float32)
    flights: list[tuple[int, int, int]] = []
    names: list[dict[str, int]] = []
    spans: list[tuple[int, int]] = []
    places: list[Place] = []
    known: dict[str, Place] = {}
    at = 0
    for number, (path, row) in enumerate(files):
        demo = load_demonstration(path)
        fault = _differing(facts, facts_of(demo))
        if fault is not None:
            raise DemoError(f"{fault}, other than {files[0][0].name}", path=path, field=fault.split()[0])
        if demo.content_hash() != row["content_hash"] or len(demo.actions) != row["decisions"]:
            # The index itself may hold it for unchanged: who replaces a file can give it the former's size and time.
            raise DemoError(
                f"not the content that the index knows; remove {path.parent / INDEX}, then run `navi demos ingest "
                f"{as_argument(path.parent)}`",
                path=path,
            )
        places.append((demo.scene, demo.scene_hash, demo.source_hash))
        require_one_scene(known, places[-1], path)
        stop = at + len(demo.actions)
        depth[at:stop], actions[at:stop] = demo.observations[:, 0], demo.actions
        flown[at:stop] = demo.actions if demo.flown is None else demo.flown
        semantic[at:stop], valid[at:stop] = demo.observations[:, 1], demo.observations[:, 2]
        flights += [(at + a, at + b, number) for a, b in demo.episodes()]
        names.append(demo.vocabulary)
        spans.append((at, stop))
        at = stop
        # Before the next one is read: two of them need not be in memory.
        del demo
        if progress is not None:
            progress(path.name)
    vocabulary = _unite(names, folders[0])
    for (begin, stop), own in zip(spans, names, strict=True):
        if own != vocabulary:
            semantic[begin:stop] = id_table(own, vocabulary)[semantic[begin:stop]]
    scenes = one_name_each(places)
    hashes = {name: content for name, content, _ in known.values() if content}
    every = {told for _, *both in places for told in both}
    return Dataset(
        depth=depth,
        semantic=semantic,
        valid=valid,
        actions=actions,
        flown=flown,
        episodes=tuple(Episode(a, b, str(files[number][0]), scenes[number]) for a, b, number in flights),
        vocabulary=vocabulary,
        scene_hashes=hashes,
        decision_hz=facts["decision_hz"],
        limits=tuple(facts["limits"]),
        max_distance=facts["max_distance"],
        content_hash=_hash([row for _, row in files]),
        sources=frozenset(every - {"", *hashes.values()}),
    )


def _once(files: Sequence[tuple[Path, dict[str, Any]]]) -> list[tuple[Path, dict[str, Any]]]:
    """Return the files of different content: of two alike one could be held out and the other learned from."""
    kept: dict[str, tuple[Path, dict[str, Any]]] = {}
    double: list[tuple[Path, Path]] = []
    for path, row in files:
        before, first = kept.setdefault(row["content_hash"], (path, row))
        if first is not row:
            double.append((path, before))
    if double:
        _LOG.warning(
            "%d recordings are there twice and are read once, among them %s, the same as %s", len(double), *double[0]
        )
    return list(kept.values())


def _tell_unindexed(folder: Path, indexed: set[str]) -> None:
    """Warn of recordings that lie in a folder and are no part of its dataset."""
    others = sorted(path.name for path in folder.glob("*.npz") if path.name not in indexed)
    if others:
        _LOG.warning(
            "%s: %d recordings are not in its index and are left out, among them %s; `navi demos ingest %s` takes them "
            "in, or tells what is wrong with them", folder, len(others), others[0], folder,
        )  # fmt: skip


def _unite(names: list[dict[str, int]], folder: Path) -> dict[str, int]:
    """Return one vocabulary for all: the common one, or all names sorted behind the unknown surface."""
    if all(own == names[0] for own in names):
        return dict(names[0])
    every = sorted({name for own in names for name in own} - {UNKNOWN})
    if len(every) >= MOST_IDS:
        raise DemoError(f"{len(every):,} semantic names in all; a dataset has {MOST_IDS:,} at most", path=folder)
    return {UNKNOWN: 1} | {name: number for number, name in enumerate(every, start=2)}


def facts_of(demo: Demonstration) -> dict[str, Any]:
    """Return what all files of a dataset must agree on."""
    values = (demo.azimuth_bins, demo.elevation_bins, demo.decision_hz, list(demo.limits), demo.max_distance)
    return dict(zip(FACTS, values, strict=True))


def _differing(one: dict[str, Any], two: dict[str, Any]) -> str | None:
    for key in FACTS:
        if one[key] != two[key]:
            return f"{key} is {two[key]}, expected {one[key]}"
    return None


def _hash(rows: list[dict[str, Any]]) -> str:
    return hashlib.sha256("\n".join(row["content_hash"] for row in rows).encode()).hexdigest()
