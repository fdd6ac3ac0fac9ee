"""Taking in demonstrations from elsewhere: every file is checked, and what is refused is told with its reason.

Files are read one by one and of a Minari dataset one episode at a time, so that memory does not grow with what is taken
in. A row of the index says which file it was made from; what has not changed since is not read again.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navi_core.demos.dataset import FACTS, facts_of, index_row, stamp, stamped_rows, write_rows
from navi_core.demos.demonstration import Demonstration, load_demonstration, save_beside
from navi_core.demos.minari import import_minari, minari_file
from navi_core.demos.scene_lookup import Place, require_one_scene
from navi_core.errors import DemoError

__all__ = ["IngestedFile", "ingest"]

Progress = Callable[[str, int, int], None]
_STEM = 160
"""Bytes of what a file of the dataset is called after: subfolders and name together may be more than a name can be."""


@dataclass(frozen=True)
class IngestedFile:
    """What became of one file."""

    file: str
    """Its name, within the source."""
    accepted: bool
    """Whether it is part of the dataset."""
    reason: str
    """Why not; empty if it is."""
    decisions: int = 0
    """Decisions taken in."""
    episodes: int = 0
    """Episodes taken in."""
    known: bool = False
    """Not accepted for no fault: what it holds is part of the dataset already."""


def ingest(
    source: Path,
    folder: Path,
    progress: Progress | None = None,
    *,
    earlier: Path | None = None,
    may_be_empty: bool = False,
) -> list[IngestedFile]:
    """Check recordings and make a dataset of those that are good.

    What the folder holds already stays part of the dataset. The first good file decides resolution, rate, limits and
    range; others are refused, and so is content that is there already. Killed and given again, it goes on with what is
    missing. A file is not read again while its size and time are those that the index knows; without `index.json` all
    are.

    Args:
        source: A folder of `.npz` files and Minari datasets, in it or in its subfolders, or one of these.
        folder: The dataset; may be `source` itself, whose files then stay where they are, and whose subfolders are not
            looked into. Links to folders are not followed.
        progress: Called as progress(file, files done, files in all).
        earlier: A dataset that was made of this source before; what has not changed since is linked from there.
        may_be_empty: That nothing is found or good is no fault; no dataset is made then.

    Returns:
        One row per file of the source, and one per file of the folder that is no part of the dataset.

    Raises:
        DemoError: The source does not exist or holds nothing to take in, nothing is good, or writing failed.
    """
    in_place = source.resolve() == folder.resolve()
    folder = source if in_place else folder
    found = list(_candidates(source, folder, deep=not in_place))
    if not found and not may_be_empty:
        raise DemoError("holds neither .npz files nor Minari datasets", path=source)
    stock = _Stock(folder, earlier)
    held = [] if in_place or not folder.is_dir() else sorted(folder.glob("*.npz"))
    rows: list[IngestedFile] = []
    for number, path in enumerate([*held, *found]):
        name = path.name if path.parent == folder or path == source else str(path.relative_to(source))
        if progress is not None:
            progress(name, number, len(held) + len(found))
        row = stock.take(path, name, _told(progress, name, number, len(held) + len(found)))
        if number >= len(held) or not row.accepted:
            rows.append(row)
    if stock.rows:
        write_rows(folder, sorted(stock.rows.values(), key=lambda row: str(row["file"])))
    elif not may_be_empty:
        first = next(row for row in rows if not row.accepted)
        raise DemoError(f"not one good recording; {first.file}: {first.reason}", path=source)
    return rows


def _candidates(source: Path, folder: Path, *, deep: bool) -> Iterator[Path]:
    """Yield what may be a recording, by name; what is hidden is being written, or was left by a kill."""
    if source.suffix == ".npz" or minari_file(source) is not None:
        yield source
        return
    if not source.is_dir():
        raise DemoError("no such folder or file", path=source)
    for path in sorted(source.iterdir()):
        if path.suffix == ".npz" or minari_file(path) is not None:
            yield path
        elif deep and path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            # A link may lead back to a folder above; the pipeline's sensor does not follow them either.
            if path.resolve() == folder.resolve():
                continue
            yield from _candidates(path, folder, deep=True)


def _told(progress: Progress | None, name: str, done: int, total: int) -> Callable[[int], None]:
    def tell(episode: int) -> None:
        if progress is not None and episode:
            progress(f"{name}, episode {episode}", done, total)

    return tell


class _Episodes:
    """The episodes of a Minari dataset; they can be walked more than once, and one is in memory at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Demonstration]:
        return import_minari(self._path)


class _Stock:
    """What is part of the dataset so far.

    Args:
        folder: The dataset.
        earlier: One that was made of the same source before, or None.

    Attributes:
        rows: Rows of the index by content hash.
    """

    def __init__(self, folder: Path, earlier: Path | None) -> None:
        self.folder, self._resolved = folder, folder.resolve()
        self.rows: dict[str, dict[str, Any]] = {}
        self._facts: dict[str, Any] = {}
        self._places: dict[str, Place] = {}
        self._known: dict[tuple[str, str], dict[str, Any]] = {}
        self._made: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
        for place in (folder, earlier):
            for row in [] if place is None else stamped_rows(place):
                self._known[row["file"], row["stamp"]] = row
                if "origin" in row:
                    self._made.setdefault(row["origin"], []).append((Path(place or ""), row))

    def take(self, path: Path, name: str, tell: Callable[[int], None]) -> IngestedFile:
        """Check one file and take over what it holds; a file is taken whole or not at all.

        Raises:
            DemoError: It cannot be written.
        """
        stays = path.suffix == ".npz" and path.parent.resolve() == self._resolved
        try:
            # Before it is read: what changes meanwhile is read again next time.
            was = stamp(path) if stays else _origin(path)
            if stays and (row := self._known.get((path.name, was))) is not None:
                self._fit(path, row, self._places)
                return self._keep(name, [row])
            made = None if stays else self._made.get(was)
            if made is not None and (rows := self._linked(made)) is not None:
                return self._keep(name, rows)
            parts, found = self._check(path, tell)
        except DemoError as error:
            return IngestedFile(name, False, str(error).removeprefix(f"{path}: "))
        if stays:
            return self._keep(name, [found[0] | {"file": path.name, "stamp": was}])
        return self._take_over(path, was, name, parts, found, tell)

    def _linked(self, made: list[tuple[Path, dict[str, Any]]]) -> list[dict[str, Any]] | None:
        """Return the rows of what was made of an unchanged file; None where some of it is not there any more."""
        try:
            changed = any(stamp(place / row["file"]) != row["stamp"] for place, row in made)
        except DemoError:
            return None
        # A row that was left out of the index, with its file, leaves none that tells of it.
        if changed or len({row["content_hash"] for _, row in made}) != made[0][1].get("parts"):
            return None
        rows = []
        for place, row in made:
            self._fit(place / row["file"], row, self._places)
            if row["content_hash"] not in self.rows and place != self.folder:
                self.folder.mkdir(parents=True, exist_ok=True)
                target = next(path for path in _names(self.folder / row["file"]) if not path.exists())
                try:
                    # Files of a dataset are replaced and never written into, so two folders can share one.
                    os.link(place / row["file"], target)
                except OSError:
                    return None
                row = row | {"file": target.name}
            rows.append(row)
        return rows

    def _check(self, path: Path, tell: Callable[[int], None]) -> tuple[Iterable[Demonstration], list[dict[str, Any]]]:
        """Return the recordings of a file and a row of each, all of which fit."""
        parts: Iterable[Demonstration] = [load_demonstration(path)] if path.suffix == ".npz" else _Episodes(path)
        places: ChainMap[str, Place] = ChainMap({}, self._places)
        facts = dict(self._facts)
        found: list[dict[str, Any]] = []
        for number, demo in enumerate(parts):
            tell(number)
            facts = facts or facts_of(demo)
            found.append(index_row("", demo))
            self._fit(path, found[-1], places, facts)
        self._places.update(places.maps[0])
        return parts, found

    def _take_over(
        self,
        path: Path,
        origin: str,
        name: str,
        parts: Iterable[Demonstration],
        found: list[dict[str, Any]],
        tell: Callable[[int], None],
    ) -> IngestedFile:
        """Write what is new into the folder."""
        stem = "-".join(Path(name).parts).removesuffix(".npz").removesuffix(".hdf5")
        if len(os.fsencode(stem)) > _STEM:
            stem = os.fsencode(stem)[-_STEM:].decode(errors="ignore").lstrip("-.")
        made = {"origin": origin, "parts": len({row["content_hash"] for row in found})}
        rows: dict[str, dict[str, Any]] = {}
        # It is walked once more, and may be shorter or longer by now.
        for number, (demo, row) in enumerate(zip(parts, found)):
            tell(number)
            content = row["content_hash"]
            if content in self.rows:
                # A killed start has left it, or this file held it before it grew.
                self.rows[content] = self.rows[content] | made
            elif content not in rows:
                npz = demo.source.suffix == ".npz"
                wanted = f"{stem}.npz" if npz else f"{stem}-{number:05d}.npz"
                target = save_beside(_names(self.folder / wanted), demo, copied=demo.source if npz else None)
                rows[content] = row | made | {"file": target.name, "stamp": stamp(target)}
        if not _is_still(path, origin):
            for row in rows.values():
                (self.folder / row["file"]).unlink()
            return IngestedFile(name, False, "changed while it was read; take it in when it is whole")
        return self._keep(name, list(rows.values()) or found)

    def _fit(self, path: Path, row: dict[str, Any], places: Any, facts: dict[str, Any] | None = None) -> None:
        """Refuse what does not fit the dataset.

        Raises:
            DemoError: Another sensor or drone, or another scene of the same name.
        """
        for key, there in (facts or self._facts).items():
            if row[key] != there:
                raise DemoError(f"{row[key]}, the dataset has {there}", path=path, field=key)
        require_one_scene(places, (row["scene"], row["scene_hash"], row["source_hash"]), path)

    def _keep(self, name: str, rows: list[dict[str, Any]]) -> IngestedFile:
        """Make rows part of the dataset, and say what became of their file."""
        new = [row for row in rows if row["content_hash"] not in self.rows]
        if not new:
            same = self.rows[rows[0]["content_hash"]]["file"]
            return IngestedFile(name, False, f"the same content as {same}", known=True)
        self._facts = self._facts or {key: new[0][key] for key in FACTS}
        self.rows |= {row["content_hash"]: row for row in new}
        return IngestedFile(name, True, "", sum(r["decisions"] for r in new), sum(r["episodes"] for r in new))


def _origin(path: Path) -> str:
    """Return what an index says of the file that a row was made from; where it lies is nobody's business."""
    file = minari_file(path) or path
    return hashlib.sha256(f"{file.resolve()}\n{stamp(file)}".encode()).hexdigest()


def _is_still(path: Path, origin: str) -> bool:
    try:
        return _origin(path) == origin
    except DemoError:  # It is gone.
        return False


def _names(path: Path) -> Iterator[Path]:
    """Yield a name and others like it: another folder's file may be called the same."""
    yield path
    for number in itertools.count(1):
        yield path.with_name(f"{path.stem}.{number}.npz")
