"""Ingest of external demonstrations: validate every file, and keep the reason of each refusal.

Files are read one by one, Minari datasets one episode at a time, so memory does not grow with their number. An index
row names the file it was made from; an unchanged file is not read again.
"""

import hashlib
import itertools
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navi_core.demos.dataset import SHARED_FIELDS, index_row, shared_fields, stamp, stamped_rows, write_index
from navi_core.demos.demonstration import Demonstration, load_demonstration, save_beside
from navi_core.demos.identity import SceneIdentity, require_one_scene
from navi_core.demos.minari import import_minari, minari_file
from navi_core.errors import DemoError

Progress = Callable[[str, int, int], None]
_STEM = 160
"""Longest stem of a dataset file [B]; subfolders and name together may exceed what a file system allows."""


@dataclass(frozen=True)
class IngestedFile:
    """Ingest result of one file: accepted, or refused with the reason."""

    file: str
    """Its name within the source."""
    accepted: bool
    """Whether it is part of the dataset."""
    reason: str
    """Fault of a refused file, else empty."""
    decisions: int = 0
    """Decisions added."""
    episodes: int = 0
    """Episodes added."""
    known: bool = False
    """Not accepted because the dataset holds the content already."""


def ingest(
    source: Path,
    folder: Path,
    progress: Progress | None = None,
    *,
    earlier: Path | None = None,
    may_be_empty: bool = False,
) -> list[IngestedFile]:
    """Validate recordings and build a demonstration dataset from the valid ones.

    Recordings already in the folder stay part of the dataset. The first valid file fixes resolution, rate, limits and
    range; files that differ and duplicates are refused. After a kill the same call goes on with the missing files. A
    file with the size and time that `index.json` holds is not read again.

    Args:
        source: A folder of `.npz` files and Minari datasets, also in subfolders, or one of these.
        folder: The dataset. It may be `source` itself: files then stay in place and subfolders are skipped. Links to
            folders are not followed.
        progress: Called as progress(file, files done, files in all).
        earlier: A dataset made of this source before; its unchanged files are linked from there.
        may_be_empty: Accept a source without valid recordings; no dataset is made then.

    Returns:
        One row per file of the source, and one per file of the folder that is refused.

    Raises:
        DemoError: The source does not exist or holds no recording, none is valid, or writing failed.
    """
    in_place = source.resolve() == folder.resolve()
    folder = source if in_place else folder
    found = list(_candidates(source, folder, deep=not in_place))
    if not found and not may_be_empty:
        raise DemoError("holds neither .npz files nor Minari datasets", path=source)
    builder = _DatasetBuilder(folder, earlier)
    held = [] if in_place or not folder.is_dir() else sorted(folder.glob("*.npz"))
    rows: list[IngestedFile] = []
    for number, path in enumerate([*held, *found]):
        name = path.name if path.parent == folder or path == source else str(path.relative_to(source))
        if progress is not None:
            progress(name, number, len(held) + len(found))
        row = builder.ingest(path, name, _episode_progress(progress, name, number, len(held) + len(found)))
        if number >= len(held) or not row.accepted:
            rows.append(row)
    if builder.rows:
        write_index(folder, sorted(builder.rows.values(), key=lambda row: str(row["file"])))
    elif not may_be_empty:
        first = next(row for row in rows if not row.accepted)
        raise DemoError(f"not one good recording; {first.file}: {first.reason}", path=source)
    return rows


def _candidates(source: Path, folder: Path, *, deep: bool) -> Iterator[Path]:
    """Yield the files that may be recordings, by file name; hidden files are unfinished and skipped."""
    if source.suffix == ".npz" or minari_file(source) is not None:
        yield source
        return
    if not source.is_dir():
        raise DemoError("no such folder or file", path=source)
    for path in sorted(source.iterdir()):
        if path.suffix == ".npz" or minari_file(path) is not None:
            yield path
        elif deep and path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
            # A link may lead back to a parent folder; the pipeline's sensor follows none either.
            if path.resolve() == folder.resolve():
                continue
            yield from _candidates(path, folder, deep=True)


def _episode_progress(progress: Progress | None, name: str, done: int, total: int) -> Callable[[int], None]:
    def report(episode: int) -> None:
        if progress is not None and episode:
            progress(f"{name}, episode {episode}", done, total)

    return report


class _Episodes:
    """Re-iterable stream of the episodes of a Minari dataset; one episode in memory at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Demonstration]:
        return import_minari(self._path)


class _DatasetBuilder:
    """Builder of a demonstration dataset in a folder.

    Args:
        folder: The dataset.
        earlier: A dataset made of the same source before, or None.

    Attributes:
        rows: Index rows by content hash.
    """

    def __init__(self, folder: Path, earlier: Path | None) -> None:
        self.folder, self._resolved = folder, folder.resolve()
        self.rows: dict[str, dict[str, Any]] = {}
        self._facts: dict[str, Any] = {}
        self._scenes: dict[str, SceneIdentity] = {}
        self._known: dict[tuple[str, str], dict[str, Any]] = {}
        self._made: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
        for dataset in (folder, earlier):
            for row in [] if dataset is None else stamped_rows(dataset):
                self._known[row["file"], row["stamp"]] = row
                if "origin" in row:
                    self._made.setdefault(row["origin"], []).append((Path(dataset or ""), row))

    def ingest(self, path: Path, name: str, report: Callable[[int], None]) -> IngestedFile:
        """Validate one file and add its recordings to the dataset, all or nothing.

        Raises:
            DemoError: It cannot be written.
        """
        stays = path.suffix == ".npz" and path.parent.resolve() == self._resolved
        try:
            # The stamp is taken before reading: a change meanwhile is read again next time.
            before = stamp(path) if stays else _origin(path)
            if stays and (row := self._known.get((path.name, before))) is not None:
                self._require_fit(path, row, self._scenes)
                return self._add(name, [row])
            made = None if stays else self._made.get(before)
            if made is not None and (rows := self._linked(made)) is not None:
                return self._add(name, rows)
            parts, found = self._check(path, report)
        except DemoError as error:
            return IngestedFile(name, False, str(error).removeprefix(f"{path}: "))
        if stays:
            return self._add(name, [found[0] | {"file": path.name, "stamp": before}])
        return self._write(path, before, name, parts, found, report)

    def _linked(self, made: list[tuple[Path, dict[str, Any]]]) -> list[dict[str, Any]] | None:
        """Reuse the recordings of an unchanged file; return their rows, None if one of them is gone."""
        try:
            changed = any(stamp(dataset / row["file"]) != row["stamp"] for dataset, row in made)
        except DemoError:
            return None
        # `parts` reveals rows that were removed from the index together with their files.
        if changed or len({row["content_hash"] for _, row in made}) != made[0][1].get("parts"):
            return None
        rows = []
        for dataset, row in made:
            self._require_fit(dataset / row["file"], row, self._scenes)
            if row["content_hash"] not in self.rows and dataset != self.folder:
                self.folder.mkdir(parents=True, exist_ok=True)
                target = next(path for path in _names(self.folder / row["file"]) if not path.exists())
                try:
                    # Dataset files are replaced, never modified, so two folders can share one.
                    os.link(dataset / row["file"], target)
                except OSError:
                    return None
                row = row | {"file": target.name}
            rows.append(row)
        return rows

    def _check(self, path: Path, report: Callable[[int], None]) -> tuple[Iterable[Demonstration], list[dict[str, Any]]]:
        """Validate a file: return its recordings and index rows, all compatible with the dataset."""
        parts: Iterable[Demonstration] = [load_demonstration(path)] if path.suffix == ".npz" else _Episodes(path)
        scenes: ChainMap[str, SceneIdentity] = ChainMap({}, self._scenes)
        facts = dict(self._facts)
        found: list[dict[str, Any]] = []
        for number, demo in enumerate(parts):
            report(number)
            facts = facts or shared_fields(demo)
            found.append(index_row("", demo))
            self._require_fit(path, found[-1], scenes, facts)
        self._scenes.update(scenes.maps[0])
        return parts, found

    def _write(
        self,
        path: Path,
        origin: str,
        name: str,
        parts: Iterable[Demonstration],
        found: list[dict[str, Any]],
        report: Callable[[int], None],
    ) -> IngestedFile:
        """Write the file's new recordings into the dataset folder."""
        stem = "-".join(Path(name).parts).removesuffix(".npz").removesuffix(".hdf5")
        if len(os.fsencode(stem)) > _STEM:
            stem = os.fsencode(stem)[-_STEM:].decode(errors="ignore").lstrip("-.")
        made = {"origin": origin, "parts": len({row["content_hash"] for row in found})}
        rows: dict[str, dict[str, Any]] = {}
        # A second pass over the file, which may have grown or shrunk since the first.
        for number, (demo, row) in enumerate(zip(parts, found, strict=False)):
            report(number)
            content = row["content_hash"]
            if content in self.rows:
                # Left by a killed call, or by an earlier state of this file.
                self.rows[content] = self.rows[content] | made
            elif content not in rows:
                npz = demo.source.suffix == ".npz"
                wanted = f"{stem}.npz" if npz else f"{stem}-{number:05d}.npz"
                target = save_beside(_names(self.folder / wanted), demo, copied=demo.source if npz else None)
                rows[content] = row | made | {"file": target.name, "stamp": stamp(target)}
        if not _is_still(path, origin):
            for row in rows.values():
                (self.folder / row["file"]).unlink()
            return IngestedFile(name, False, "changed while it was read; ingest it again when it is complete")
        return self._add(name, list(rows.values()) or found)

    def _require_fit(
        self,
        path: Path,
        row: dict[str, Any],
        scenes: MutableMapping[str, SceneIdentity],
        facts: dict[str, Any] | None = None,
    ) -> None:
        """Refuse a recording that is incompatible with the dataset.

        Raises:
            DemoError: Another sensor or drone, or another scene of the same name.
        """
        for key, there in (facts or self._facts).items():
            if row[key] != there:
                raise DemoError(f"{row[key]}, the dataset has {there}", path=path, field=key)
        require_one_scene(scenes, (row["scene"], row["scene_hash"], row["source_hash"]), path)

    def _add(self, name: str, rows: list[dict[str, Any]]) -> IngestedFile:
        """Add index rows to the dataset, deduplicated by content hash; return the file's ingest result."""
        new = [row for row in rows if row["content_hash"] not in self.rows]
        if not new:
            same = self.rows[rows[0]["content_hash"]]["file"]
            return IngestedFile(name, False, f"the same content as {same}", known=True)
        self._facts = self._facts or {key: new[0][key] for key in SHARED_FIELDS}
        self.rows |= {row["content_hash"]: row for row in new}
        return IngestedFile(name, True, "", sum(r["decisions"] for r in new), sum(r["episodes"] for r in new))


def _origin(path: Path) -> str:
    """Return a digest of a row's source file, so that the index reveals no path."""
    file = minari_file(path) or path
    return hashlib.sha256(f"{file.resolve()}\n{stamp(file)}".encode()).hexdigest()


def _is_still(path: Path, origin: str) -> bool:
    try:
        return _origin(path) == origin
    except DemoError:  # The file is gone.
        return False


def _names(path: Path) -> Iterator[Path]:
    """Yield a file name and its numbered variants, for files of one name in several folders."""
    yield path
    for number in itertools.count(1):
        yield path.with_name(f"{path.stem}.{number}.npz")
