"""Corpus manifest: JSON file with one row per compiled scene, and the shared semantic vocabulary."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, StrictInt, ValidationError

from navi_core.config.base import format_error
from navi_core.errors import SceneError
from navi_core.machine.file_lock import wait_for_lock
from navi_core.scenes.gmdag.scene import sweep_left, write_atomically
from navi_core.scenes.naming import merge_vocabularies

_FORMAT = "navi-corpus"
_VERSION = 1


@dataclass(frozen=True)
class ManifestRow:
    """Manifest entry of one compiled scene."""

    source: str
    """Path of the mesh, or `family:seed`."""
    source_hash: str
    """SHA-256 (hex) of the source; empty where the compiled file does not keep it."""
    gmdag: Path
    """The compiled file."""
    gmdag_hash: str
    """SHA-256 (hex) of the compiled file's bytes."""
    dataset: str
    """Group of scenes it belongs to."""
    name: str
    """Name, unique within the manifest."""
    resolution: StrictInt
    """Voxels along an edge."""
    verdict: str | None
    """PASS, MARGINAL, FAIL, or None where nobody asked."""


@dataclass(frozen=True)
class Manifest:
    """Manifest of a compiled corpus: scene rows and semantic vocabulary."""

    rows: tuple[ManifestRow, ...]
    """One row per scene."""
    vocabulary: dict[int, str]
    """Corpus-wide semantic ids: 1 is "surface", the others sorted by name."""

    def updated(self, newer: Manifest) -> Manifest:
        """Merge with the rows of `newer`, which win by name; rows whose files are gone are dropped."""
        names = {row.name for row in newer.rows}
        kept = [row for row in self.rows if row.name not in names and row.gmdag.is_file()]
        rows = sorted([*kept, *newer.rows], key=lambda row: row.name)
        return Manifest(tuple(rows), merge_vocabularies([self.vocabulary, newer.vocabulary]))

    def write(self, path: Path) -> None:
        """Write the manifest to `path` and `vocabulary.json` beside it, each file atomically.

        Paths inside the manifest's folder are kept relative, so that the folder can move.

        Raises:
            SceneError: The folder cannot be written.
        """
        folder = path.parent.resolve()
        rows = []
        for row in self.rows:
            gmdag = row.gmdag.resolve()
            shown = gmdag.relative_to(folder) if gmdag.is_relative_to(folder) else gmdag
            rows.append(vars(row) | {"gmdag": str(shown)})
        names = {str(i): self.vocabulary[i] for i in sorted(self.vocabulary)}
        document = {"format": _FORMAT, "version": _VERSION, "vocabulary": names, "scenes": rows}
        sweep_left(path.parent)
        write_atomically(path.parent / "vocabulary.json", json.dumps(names, indent=1).encode())
        write_atomically(path, json.dumps(document, indent=1).encode())


class _Document(BaseModel):
    """Schema of the manifest's JSON file."""

    model_config = ConfigDict(extra="forbid")

    format: str
    version: int
    vocabulary: dict[int, str] = {}
    scenes: list[ManifestRow]


def read_manifest(path: Path) -> Manifest:
    """Load and validate a manifest file.

    Raises:
        SceneError: The file is missing, is not a manifest, or a row breaks its form; the row and the field are named.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise SceneError(f"{path}: no such manifest; make one with: navi scenes compile … --out DIR") from None
    except (OSError, ValueError) as error:
        raise SceneError(f"{path}: the manifest cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise SceneError(f"{path}: not a corpus manifest (its 'format' is not {_FORMAT!r})")
    if document.get("version") != _VERSION:
        raise SceneError(f"{path}: manifest version {document.get('version')!r} is not supported, only {_VERSION}")
    try:
        content = _Document.model_validate(document)
    except ValidationError as error:
        raise SceneError(f"{path}: the manifest is broken: {format_error(error)}") from None
    double = [name for name, uses in Counter(row.name for row in content.scenes).items() if uses > 1]
    if double:
        raise SceneError(
            f"{path}: the name {double[0]!r} occurs more than once; remove the manifest and compile again, which "
            "reuses the scenes"
        )
    rows = tuple(replace(row, gmdag=path.parent / row.gmdag) for row in content.scenes)
    return Manifest(rows, content.vocabulary)


def update_manifest(path: Path, newer: Manifest) -> Manifest:
    """Merge the rows of `newer` into the manifest at `path`, created if missing; return the merged manifest.

    A file lock serialises concurrent writers, so that no rows are lost.

    Raises:
        SceneError: The manifest that is there is broken, or the folder cannot be written.
    """
    with _turn(path):
        whole = read_manifest(path).updated(newer) if path.is_file() else newer
        whole.write(path)
    return whole


def note_verdict(gmdag: Path, verdict: str) -> None:
    """Update a compiled file's manifest row: a spawn check's result and the file's new hash.

    Without a manifest there, or without a row of this file in it, nothing is written.

    Raises:
        SceneError: The manifest is broken, or the folder cannot be written.
    """
    path = gmdag.parent / "manifest.json"
    if not path.is_file():
        return
    with _turn(path):
        manifest = read_manifest(path)
        here = {row.name for row in manifest.rows if row.gmdag.resolve() == gmdag.resolve()}
        known = file_hash(gmdag)
        rows = tuple(
            replace(row, verdict=verdict, gmdag_hash=known) if row.name in here else row for row in manifest.rows
        )
        if rows != manifest.rows:
            replace(manifest, rows=rows).write(path)


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Context manager that holds the inter-process lock of the manifest at `path`."""
    try:
        with wait_for_lock(path.with_name(f".{path.name}.lock")):
            yield
    except OSError as error:
        raise SceneError(f"{path}: cannot be written: {error}") from None


def file_hash(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
