"""Demonstration datasets: a folder of recordings with an index, loaded as arrays for training.

    <folder>/index.json      one row per recording, with content hashes
    <folder>/*.npz           recordings (`demonstration.py`)

In memory semantic ids take 16 bits and the valid mask one byte; depth stays float32. Arrays beyond the memory are
memory-mapped. Files with different vocabularies are merged into one; ids without a name become the unknown surface.
Where no file has names, ids stay as they are.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.demos.archive import array_allocator, require_memory
from navi_core.demos.demonstration import Demonstration, load_demonstration
from navi_core.demos.identity import MOST_IDS, SceneIdentity, canonical_names, id_table, require_one_scene
from navi_core.errors import DemoError, as_argument
from navi_core.record.durable import sweep_left, write_durably
from navi_core.record.home import navi_home, recordings_folder

_LOG = logging.getLogger("navi.demos")

INDEX = "index.json"
_FORMAT = 1
UNKNOWN = "surface"
"""Name of id 1, a surface that nothing names."""
SHARED_FIELDS = ("azimuth_bins", "elevation_bins", "decision_hz", "limits", "max_distance")
"""Fields on which all files of a dataset must agree."""


@dataclass(frozen=True)
class Episode:
    """Metadata of one episode in a demonstration dataset."""

    start: int
    """Its first decision."""
    stop: int
    """The decision after its last."""
    file: str
    """File of the episode; a training sequence never crosses files."""
    scene: str
    """Name of its scene; of a scene with several names the first."""

    @property
    def steps(self) -> int:
        """Number of decisions."""
        return self.stop - self.start


@dataclass(frozen=True)
class Dataset:
    """Demonstration dataset: all decisions (steps) of one or more folders, concatenated."""

    depth: npt.NDArray[np.float32]
    """(N, Az, El) normalised depth."""
    semantic: npt.NDArray[np.uint16]
    """(N, Az, El) ids of `vocabulary`."""
    valid: npt.NDArray[np.bool_]
    """(N, Az, El)."""
    actions: npt.NDArray[np.float32]
    """(N, 4) in [−1, 1]."""
    flown: npt.NDArray[np.float32]
    """(N, 4) executed actions; equal to `actions` where nothing disturbed them."""
    episodes: tuple[Episode, ...]
    """In the order of folders, files and time."""
    vocabulary: dict[str, int]
    """Semantic id by name."""
    scene_hashes: dict[str, str]
    """Content hash by scene name, where files hold it."""
    decision_hz: float
    """Decisions per second [Hz]."""
    limits: tuple[float, float, float, float]
    """Speeds of action 1 [m/s, rad/s]."""
    max_distance: float
    """Range of the sensor, M [m]."""
    content_hash: str
    """Hash of all content in order, dates excluded."""
    sources: frozenset[str] = frozenset()
    """Hashes of the scenes' sources, where files hold them, and of further contents under one name."""

    def __len__(self) -> int:
        """Return the number of decisions."""
        return len(self.actions)

    @property
    def azimuth_bins(self) -> int:
        """Number of azimuth bins (Az)."""
        return int(self.depth.shape[1])

    @property
    def elevation_bins(self) -> int:
        """Number of elevation bins (El)."""
        return int(self.depth.shape[2])

    def observations(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the observations (n, 3, Az, El) at decision indices (n,)."""
        return np.stack([self.depth[index], self.semantic[index], self.valid[index]], axis=1, dtype=np.float32)


def index_row(name: str, demo: Demonstration) -> dict[str, Any]:
    """Build the index row (metadata) of a demonstration file."""
    return {
        "file": name,
        "content_hash": demo.content_hash(),
        "decisions": len(demo.actions),
        "episodes": len(demo.episodes()),
        "scene": demo.scene,
        "pilot": demo.pilot,
        "scene_hash": demo.scene_hash,
        "source_hash": demo.source_hash,
        **shared_fields(demo),
    }


def write_index(folder: Path, found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Write the index file of a dataset folder.

    Args:
        folder: Where the files are.
        found: Row of each file by `index_row`, in order.

    Returns:
        The index.

    Raises:
        DemoError: No file, or files that do not fit each other.
    """
    rows: list[dict[str, Any]] = []
    for row in found:
        rows.append(row)
        _require_alike(rows[0], row, folder / row["file"])
    if not rows:
        raise DemoError("no recording to index; record some with `navi demos expert`", path=folder)
    index = {
        "format": _FORMAT,
        **{key: rows[0][key] for key in SHARED_FIELDS},
        "content_hash": _hash(rows),
        "files": rows,
    }
    sweep_left(folder)
    with DemoError.of_system("cannot be written", path=folder / INDEX):
        write_durably(folder / INDEX, (json.dumps(index, indent=1) + "\n").encode())
    return index


def read_index(folder: Path) -> dict[str, Any]:
    """Load the index file of a dataset folder.

    Raises:
        DemoError: There is none, or it is broken.
    """
    file = folder / INDEX
    try:
        index: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
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
            raise DemoError("a row lacks required keys; run `navi demos ingest` again", path=file)
        # A name must not lead out of the folder.
        if Path(row["file"]).name != row["file"] or row["decisions"] < 1:
            raise DemoError(f"bad row {row['file']!r}; run `navi demos ingest` again", path=file, field="files")
    return index


def known_datasets() -> list[Path]:
    """Return the dataset folders of the Navi home: recordings, then those below `demos/`, newest first."""
    recordings = recordings_folder()
    below = sorted((navi_home() / "demos").glob(f"*/{INDEX}"), key=lambda file: -file.stat().st_mtime_ns)
    return [recordings] * (recordings / INDEX).is_file() + [file.parent for file in below]


def home_dataset() -> Path:
    """Return the dataset to clone where none is named: the first of `known_datasets`.

    Raises:
        DemoError: The home holds none.
    """
    found = known_datasets()
    if not found:
        raise DemoError(
            f"holds no dataset, nor does {navi_home() / 'demos'}; fly yourself with `navi explore --record`, record a "
            "pilot with `navi demos expert --out DIR`, or name a dataset with --demos",
            path=recordings_folder(),
        )
    return found[0]


def stamp(path: Path) -> str:
    """Return a file's change-detection stamp (size and modification time); an equal stamp means an unchanged file.

    Raises:
        DemoError: It is not there.
    """
    with DemoError.of_system("cannot be read", path=path):
        stat = path.stat()
    return f"{stat.st_size}-{stat.st_mtime_ns}"


def stamped_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the index rows with a file stamp; an empty list without a valid index."""
    try:
        rows = read_index(folder)["files"]
    except DemoError:
        return []
    texts, keys = ("stamp", "scene_hash", "source_hash"), set(SHARED_FIELDS)
    return [row for row in rows if keys <= row.keys() and all(isinstance(row.get(key), str) for key in texts)]


def index_folder(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Index the files of a dataset folder incrementally: files with an unchanged stamp are not read again.

    Args:
        folder: The dataset.
        names: File names, in order.

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

    return write_index(folder, map(row, names))


# One pass over the files fills all arrays.
def load_dataset(folders: Sequence[Path], progress: Callable[[str], None] | None = None) -> Dataset:
    """Load and validate all recordings of some folders as one dataset.

    Args:
        folders: Datasets.
        progress: Called with the name of each file that was read.

    Raises:
        DemoError: A file is broken or differs from its index row, files do not fit each other, or all of
            them together fit neither into memory nor on the disk.
    """
    files = [(folder / row["file"], row) for folder in folders for row in read_index(folder)["files"]]
    if not files:
        raise DemoError("no dataset named", path=Path("."))
    for folder in folders:
        _warn_unindexed(folder, {path.name for path, _ in files if path.parent == folder})
    files = _without_duplicates(files)
    shared = shared_fields(load_demonstration(files[0][0]))
    azimuth, elevation = shared["azimuth_bins"], shared["elevation_bins"]
    total = sum(row["decisions"] for _, row in files)
    remedy = "name fewer folders, or record at a lower resolution"
    require_memory(32 * total, files[0][0].parent, remedy)
    empty = array_allocator(7 * azimuth * elevation * total, files[0][0].parent, remedy)
    depth = empty((total, azimuth, elevation), np.float32)
    semantic, valid = empty(depth.shape, np.uint16), empty(depth.shape, np.bool_)
    actions, flown = np.empty((total, 4), np.float32), np.empty((total, 4), np.float32)
    flights: list[tuple[int, int, int]] = []
    spans: list[tuple[int, int, dict[str, int]]] = []
    identities: list[SceneIdentity] = []
    known: dict[str, SceneIdentity] = {}
    at = 0
    for number, (path, row) in enumerate(files):
        demo = load_demonstration(path)
        _require_alike(shared, shared_fields(demo), path)
        if demo.content_hash() != row["content_hash"] or len(demo.actions) != row["decisions"]:
            # A replaced file can have the size and time of the former one, so the stamp alone proves nothing.
            raise DemoError(
                f"not the content that the index knows; remove {path.parent / INDEX}, then run `navi demos ingest "
                f"{as_argument(path.parent)}`",
                path=path,
            )
        identities.append((demo.scene, demo.scene_hash, demo.source_hash))
        require_one_scene(known, identities[-1], path)
        stop = at + len(demo.actions)
        depth[at:stop], actions[at:stop] = demo.observations[:, 0], demo.actions
        flown[at:stop] = demo.actions if demo.flown is None else demo.flown
        semantic[at:stop], valid[at:stop] = demo.observations[:, 1], demo.observations[:, 2]
        flights += [(at + a, at + b, number) for a, b in demo.episodes()]
        spans.append((at, stop, demo.vocabulary))
        at = stop
        # Freed before the next one is read.
        del demo
        if progress is not None:
            progress(path.name)
    vocabulary = _merge_vocabularies([own for *_, own in spans], folders[0])
    for begin, stop, own in spans:
        if own != vocabulary:
            semantic[begin:stop] = id_table(own, vocabulary)[semantic[begin:stop]]
    scenes = canonical_names(identities)
    hashes = {name: content for name, content, _ in known.values() if content}
    every = {digest for _, *both in identities for digest in both}
    return Dataset(
        depth=depth,
        semantic=semantic,
        valid=valid,
        actions=actions,
        flown=flown,
        episodes=tuple(Episode(a, b, str(files[number][0]), scenes[number]) for a, b, number in flights),
        vocabulary=vocabulary,
        scene_hashes=hashes,
        decision_hz=shared["decision_hz"],
        limits=tuple(shared["limits"]),
        max_distance=shared["max_distance"],
        content_hash=_hash([row for _, row in files]),
        sources=frozenset(every - {"", *hashes.values()}),
    )


def _without_duplicates(files: Sequence[tuple[Path, dict[str, Any]]]) -> list[tuple[Path, dict[str, Any]]]:
    """Deduplicate files by content hash, so that no copy of a held-out recording is trained on."""
    kept: dict[str, tuple[Path, dict[str, Any]]] = {}
    double: list[tuple[Path, Path]] = []
    for path, row in files:
        before, first = kept.setdefault(row["content_hash"], (path, row))
        if first is not row:
            double.append((path, before))
    if double:
        _LOG.warning("%d duplicate recordings are read once, among them %s, the same as %s", len(double), *double[0])
    return list(kept.values())


def _warn_unindexed(folder: Path, indexed: set[str]) -> None:
    """Warn of recordings in a folder that are missing in its index."""
    others = sorted(path.name for path in folder.glob("*.npz") if path.name not in indexed)
    if others:
        _LOG.warning(
            "%s: %d recordings are not in its index and are left out, among them %s; `navi demos ingest %s` adds them "
            "or names their fault", folder, len(others), others[0], folder,
        )  # fmt: skip


def _merge_vocabularies(names: list[dict[str, int]], folder: Path) -> dict[str, int]:
    """Merge semantic vocabularies: the common one, else all names, sorted after the unknown surface."""
    if all(own == names[0] for own in names):
        return dict(names[0])
    every = sorted({name for own in names for name in own} - {UNKNOWN})
    if len(every) >= MOST_IDS:
        raise DemoError(f"{len(every):,} semantic names in all; a dataset has {MOST_IDS:,} at most", path=folder)
    return {UNKNOWN: 1} | {name: number for number, name in enumerate(every, start=2)}


def shared_fields(demo: Demonstration) -> dict[str, Any]:
    """Return the metadata fields that must agree in all files of a dataset."""
    values = (demo.azimuth_bins, demo.elevation_bins, demo.decision_hz, list(demo.limits), demo.max_distance)
    return dict(zip(SHARED_FIELDS, values, strict=True))


def _require_alike(first: dict[str, Any], row: dict[str, Any], path: Path) -> None:
    """Refuse a file whose sensor or drone settings differ from those of the first file."""
    for key in SHARED_FIELDS:
        if first[key] != row[key]:
            raise DemoError(
                f"{key} is {row[key]}, {first[key]} in the first file; datasets hold one kind of recording",
                path=path,
                field=key,
            )


def _hash(rows: list[dict[str, Any]]) -> str:
    return hashlib.sha256("\n".join(row["content_hash"] for row in rows).encode()).hexdigest()
