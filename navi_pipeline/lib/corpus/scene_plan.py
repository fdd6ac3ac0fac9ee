"""Scene plan: sources of the corpus with split and content hash."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config import CorpusConfig
from navi_core.errors import ConfigError, MeshError, RecordError, SceneError
from navi_pipeline.lib.records.documents import pipeline_folder, read_document, write_document

if TYPE_CHECKING:
    from navi_core.scenes import Mesh

RESOLUTION = 256
"""Resolution that planned scenes are compiled with, where nobody names another."""

_FIRST_SEED = {"train": 0, "validation": 5000, "test": 9000}
_MOST = {"train": 5000, "validation": 4000, "test": 10_000}
"""Scenes of a split."""


@dataclass(frozen=True)
class SceneSource:
    """One scene to be compiled.

    Attributes:
        name: Partition key: letters and digits of any script, `_`, `.` and `-`.
        split: `train`, `validation`, `test`, or `external` (meshes of the user, evaluated apart).
        family: Generated family, or None for a mesh file.
        seed: Seed within the family, or None.
        path: Mesh file, or None.
        source_hash: SHA-256 of the content; of a file that cannot be read, of the reason.
    """

    name: str
    split: str
    family: str | None
    seed: int | None
    path: str | None
    source_hash: str


def plan_scenes(family: str, counts: dict[str, int]) -> list[SceneSource]:
    """Plan generated scenes per split, and every mesh under `$NAVI_SCENES`.

    Args:
        family: Generated family.
        counts: Split → number of scenes, few enough that the splits' seeds never overlap.

    Raises:
        ConfigError: A number of scenes is negative, or reaches into the seeds of the next split.
        SceneError: `$NAVI_SCENES` is set and not a folder or file, or holds two meshes of one name.
    """
    from navi_core.scenes import generate_scene

    sources = []
    for split, count in counts.items():
        if not 0 <= count <= _MOST[split]:
            raise ConfigError(f"{split}={count} scenes; allowed: 0 to {_MOST[split]}")
    for split, count in counts.items():
        for seed in range(_FIRST_SEED[split], _FIRST_SEED[split] + count):
            mesh = generate_scene(family, seed)
            sources.append(SceneSource(mesh.name, split, family, seed, None, mesh.source_hash))
    return sources + _external()


def load_source(source: SceneSource) -> Mesh | Path:
    """Return what the compiler reads: the generated mesh, or the mesh file's path."""
    if source.path is not None:
        return Path(source.path)
    from navi_core.scenes import generate_scene

    assert source.family is not None
    assert source.seed is not None
    return generate_scene(source.family, source.seed)


def mesh_hash(path: Path) -> str:
    """Return the hash of a mesh file's content; where it cannot be read, of the reason.

    A broken file is planned like the others, so that they go on, and is due again when it, or its fault, changes.

    Raises:
        MeshError: It is no mesh file.
    """
    from navi_core.scenes.readers.mesh_file import hash_source, is_mesh_file

    try:
        return hash_source(path)
    except MeshError as error:
        if not is_mesh_file(path):
            raise
        return hashlib.sha256(str(error).encode(errors="surrogateescape")).hexdigest()


def plan_path() -> Path:
    """Return the file that `scene_sources` writes."""
    return pipeline_folder() / "scene_sources.json"


def read_plan() -> dict[str, SceneSource]:
    """Return the planned sources by name.

    Raises:
        RecordError: `scene_sources` has not been materialized.
    """
    document = read_document(plan_path(), made_by="scene_sources")
    return {row["name"]: SceneSource(**row) for row in document["sources"]}


def write_plan(
    sources: list[SceneSource], family: str, counts: dict[str, int], chosen: dict[str, Any] | None = None
) -> None:
    """Write the plan, with what it was made with.

    Args:
        sources: The planned scenes.
        family: Generated family.
        counts: Split → number of generated scenes.
        chosen: Which of these settings people named; the others follow Navi's defaults.

    Raises:
        RecordError: The file cannot be written.
    """
    settings = {"family": family, **{split: counts.get(split, 0) for split in _FIRST_SEED}}
    write_document(plan_path(), {"settings": settings, "chosen": chosen or {}, "sources": as_rows(sources)})


def chosen_settings() -> dict[str, Any]:
    """Return what people named of the plan: family, train, validation, test; neither defaults nor a night's numbers."""
    try:
        return dict(read_document(plan_path(), made_by="scene_sources").get("chosen", {}))
    except RecordError:
        return {}


def plan_settings() -> dict[str, Any] | None:
    """Return what the plan was made with (family, train, validation, test), to plan alike again.

    None where there is no plan, or one of an earlier Navi that holds several families.
    """
    try:
        document = read_document(plan_path(), made_by="scene_sources")
    except RecordError:
        return None
    if "settings" in document:
        return dict(document["settings"])
    # Earlier versions kept the sources alone.
    generated = [row for row in document["sources"] if row["family"] is not None]
    families = {row["family"] for row in generated}
    if len(families) != 1:
        return None
    counts = {split: sum(row["split"] == split for row in generated) for split in _FIRST_SEED}
    return {"family": families.pop(), **counts}


def as_rows(sources: list[SceneSource]) -> list[dict[str, Any]]:
    """Return the sources as plain data."""
    return [asdict(source) for source in sources]


def _external() -> list[SceneSource]:
    from navi_core.scenes import discover, discover_root

    named = os.environ.get("NAVI_SCENES")
    if not named:
        return []
    root = Path(named).expanduser().absolute()
    if not root.exists():
        raise SceneError(f"NAVI_SCENES names {root}, which does not exist; set it to a folder of meshes, or unset it")
    found = discover(CorpusConfig(scenes=(str(root),))) if root.is_file() else discover_root(root)
    return [
        SceneSource(source.name, "external", None, None, str(source.path), mesh_hash(source.path))
        for source in found
        if source.path is not None
    ]
