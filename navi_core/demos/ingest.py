"""Taking in demonstrations from elsewhere: every file is checked, and what is refused is told with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from navi_core.demos.dataset import write_index
from navi_core.demos.demonstration import Demonstration, load_demonstration, save_demonstration
from navi_core.demos.minari import import_minari, minari_file
from navi_core.errors import DemoError

__all__ = ["IngestedFile", "ingest"]


@dataclass(frozen=True)
class IngestedFile:
    """What became of one file."""

    file: str
    """Its name."""
    accepted: bool
    """Whether it is part of the dataset."""
    reason: str
    """Why not; empty if it is."""
    decisions: int = 0
    """Decisions taken in."""
    episodes: int = 0
    """Episodes taken in."""


def ingest(
    source: Path,
    folder: Path,
    progress: Callable[[str, int, int], None] | None = None,
    *,
    may_be_empty: bool = False,
) -> list[IngestedFile]:
    """Check recordings and make a dataset of those that are good.

    What the folder holds already stays part of the dataset. The first good file decides resolution, rate, limits and
    range; others are refused, and so is content that is there already.

    Args:
        source: A folder of `.npz` files and Minari datasets, or one of these.
        folder: The dataset; may be `source` itself, whose files then stay where they are.
        progress: Called as progress(file, files done, files in all).
        may_be_empty: That nothing is found or good is no fault; no dataset is made then.

    Returns:
        One row per file.

    Raises:
        DemoError: The source does not exist or holds nothing to take in, nothing is good, or writing failed.
    """
    found = _candidates(source)
    if not found and not may_be_empty:
        raise DemoError("holds neither .npz files nor Minari datasets", path=source)
    in_place = source.resolve() == folder.resolve()
    kept: dict[str, Path] = {}
    shape: list[Demonstration] = []
    if not in_place and folder.is_dir():
        for path in sorted(folder.glob("*.npz")):
            demo = load_demonstration(path)
            kept[demo.content_hash()] = path
            shape = shape or [_outline(demo)]
    rows: list[IngestedFile] = []
    for number, path in enumerate(found):
        if progress is not None:
            progress(path.name, number, len(found))
        rows.append(_take(path, folder, in_place, kept, shape))
    if not kept:
        if may_be_empty:
            return rows
        first = next(row for row in rows if not row.accepted)
        raise DemoError(f"not one good recording; {first.file}: {first.reason}", path=source)
    names = sorted(path.name for path in kept.values())
    write_index(folder, ((name, load_demonstration(folder / name)) for name in names))
    return rows


def _candidates(source: Path) -> list[Path]:
    if source.suffix == ".npz" or minari_file(source) is not None:
        return [source]
    if not source.is_dir():
        raise DemoError("no such folder or file", path=source)
    return sorted(p for p in source.iterdir() if p.suffix == ".npz" or minari_file(p) is not None)


def _take(path: Path, folder: Path, in_place: bool, kept: dict[str, Path], shape: list[Demonstration]) -> IngestedFile:
    """Check one file and take over what it holds; a file is taken whole or not at all."""
    npz = path.suffix == ".npz"
    try:
        parts = [load_demonstration(path)] if npz else list(import_minari(path))
        hashes = [demo.content_hash() for demo in parts]
        for demo, content in zip(parts, hashes, strict=True):
            if content in kept:
                raise DemoError(f"the same content as {kept[content].name}", path=path)
            reference = shape[0] if shape else parts[0]
            for name in ("azimuth_bins", "elevation_bins", "decision_hz", "limits", "max_distance"):
                here, there = getattr(demo, name), getattr(reference, name)
                if here != there:
                    raise DemoError(f"{here}, the dataset has {there}", path=path, field=name)
    except DemoError as error:
        return IngestedFile(path.name, False, str(error).removeprefix(f"{path}: "))
    for number, (demo, content) in enumerate(zip(parts, hashes, strict=True)):
        stem = path.stem if npz else f"{path.name.removesuffix('.hdf5')}-{number:05d}"
        target = path if npz and in_place else _free(folder / f"{stem}.npz")
        if target != path:
            save_demonstration(target, demo)
        kept[content] = target
    if not shape:
        shape.append(_outline(parts[0]))
    return IngestedFile(path.name, True, "", sum(len(d.actions) for d in parts), sum(len(d.episodes()) for d in parts))


def _free(path: Path) -> Path:
    """Return a name that is not taken: another folder's file may be called the same."""
    number, candidate = 1, path
    while candidate.exists():
        candidate = path.with_name(f"{path.stem}.{number}.npz")
        number += 1
    return candidate


def _outline(demo: Demonstration) -> Demonstration:
    """Return a demonstration of one decision with the same facts, so that no whole one is kept for comparing."""
    return Demonstration(
        observations=demo.observations[:1].copy(),
        actions=demo.actions[:1].copy(),
        episode_starts=demo.episode_starts[:1].copy(),
        scene=demo.scene,
        decision_hz=demo.decision_hz,
        limits=demo.limits,
        recording_date=demo.recording_date,
        max_distance=demo.max_distance,
    )
