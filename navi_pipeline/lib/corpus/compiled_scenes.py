"""Compilation and verdicts of planned scenes, and the corpus manifest."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config import SpawnConfig
from navi_core.errors import MeshError, RecordError, SceneTooLargeError
from navi_core.record import navi_home
from navi_pipeline.lib.corpus.scene_plan import SceneSource, load_source, mesh_hash, read_plan
from navi_pipeline.lib.records.documents import content_key, pipeline_folder, read_document, write_document
from navi_pipeline.lib.records.logs import pipeline_log
from navi_pipeline.lib.reports.pages import embedded_picture

if TYPE_CHECKING:
    from navi_core.config import CompileConfig
    from navi_core.scenes import Scene
    from navi_core.world import Field

_CARD = "3"
"""Another one where the card of the same scene changes; older cards are made again."""


def compile_source(source: SceneSource, config: CompileConfig) -> dict[str, Any]:
    """Compile one planned scene, or reuse its file, and judge it.

    A mesh file that cannot be used is a scene with the verdict FAIL and the reason: the others go on without it.

    Args:
        source: The planned scene.
        config: How to compile.

    Returns:
        The scene's row (name, hashes, verdict, size, …) with `skipped` and `picture` (markdown, or None); `gmdag` and
        `content_hash` are None where there is no scene.

    Raises:
        SceneError: The scene cannot be written.
    """
    from navi_core.scenes import compile_to_file
    from navi_core.world import Field, scene_verdict

    try:
        # The planned name: two meshes of one file name are distinguished by it.
        compiled = compile_to_file(load_source(source), navi_home() / "scenes", config, name=source.name)
    except (MeshError, SceneTooLargeError) as error:
        if source.path is None:
            raise
        return _unusable(source, config, error)
    scene, card = compiled.scene, _card(source.name)
    key = _key(scene.content_hash(), scene.compile_hash, source.split)
    if compiled.skipped and card.exists():
        known = read_document(card, made_by="compiled_scene")
        if known.get("key") == key and known["gmdag"] == str(compiled.path):
            return known | {"skipped": True}
    field = Field([scene])
    verdict = scene_verdict(field, 0, SpawnConfig())
    picture, area = (None, 0.0) if verdict.verdict == "FAIL" else _floor_plan(field, source.name)
    row = _planned(source) | {
        "key": key,
        "source_hash": scene.source_hash,
        "compile_hash": scene.compile_hash,
        "content_hash": scene.content_hash(),
        "gmdag": str(compiled.path),
        "resolution": scene.resolution,
        "voxel_size": scene.voxel_size,
        "triangles": 0 if scene.triangles is None else len(scene.triangles),
        "file_bytes": compiled.path.stat().st_size,
        "compile_seconds": compiled.seconds,
        "verdict": verdict.verdict,
        "verdict_reason": verdict.reason,
        "viable_spawns": verdict.viable,
        "best_starvation": verdict.best_starvation,
        "floor_area_m2": area,
        "picture": picture,
    }
    _record(source, row)
    return row | {"skipped": compiled.skipped}


def _floor_plan(field: Field, name: str) -> tuple[str, float]:
    """Return the scene's map as markdown and its floor area [m²]."""
    from navi_core.evaluate import top_down_map
    from navi_core.world import FloorMap

    floor = FloorMap(field, 0, 0.1, 0.2)
    return embedded_picture(top_down_map(field, 0, {}, floor), name), floor.area


def _unusable(source: SceneSource, config: CompileConfig, error: Exception) -> dict[str, Any]:
    """Return the row of a scene that there is none of, after recording it."""
    from navi_core.scenes import compile_hash

    assert source.path is not None
    row = _planned(source) | {
        "key": None,
        "source_hash": mesh_hash(Path(source.path)),
        "compile_hash": compile_hash(config),
        "content_hash": None,
        "gmdag": None,
        "resolution": config.resolution,
        "voxel_size": 0.0,
        "triangles": 0,
        "file_bytes": 0,
        "compile_seconds": 0.0,
        "verdict": "FAIL",
        "verdict_reason": str(error),
        # Another time there may be more memory; a broken file is broken until it changes.
        "passing": isinstance(error, SceneTooLargeError),
        "viable_spawns": 0,
        "best_starvation": 1.0,
        "floor_area_m2": 0.0,
        "picture": None,
    }
    _record(source, row)
    return row | {"skipped": False}


def _key(content_hash: str | None, compile_hash: str | None, split: str) -> str:
    """Return what a card was made of: the scene, its split, and the version of the card."""
    return content_key(_CARD, content_hash, compile_hash, split)


def _planned(source: SceneSource) -> dict[str, Any]:
    return {
        "name": source.name,
        "split": source.split,
        "family": source.family,
        "family_seed": source.seed,
        "source": source.path or f"{source.family}:{source.seed}",
    }


def _record(source: SceneSource, row: dict[str, Any]) -> None:
    with pipeline_log("compiled_scene", seed=source.seed, config_hash=row["compile_hash"]) as log:
        log.row("scenes", {name: value for name, value in row.items() if name not in ("picture", "key", "passing")})
    # The card comes last: while it is missing the scene counts as not done.
    write_document(_card(source.name), row)


def unchanged(source: SceneSource, config: CompileConfig) -> bool:
    """Return, without loading anything, whether a planned scene is compiled, judged and up to date."""
    from navi_core.scenes.compiler import compile_hash, is_current, output_path

    try:
        row = scene_card(source.name)
    except RecordError:
        return False
    same = (row["source_hash"], row["split"]) == (source.source_hash, source.split)
    if row["gmdag"] is None:
        return same and row["compile_hash"] == compile_hash(config) and not row["passing"]
    gmdag = Path(row["gmdag"])
    named = gmdag.name == output_path(source.name, source.source_hash, gmdag.parent, config).name
    judged = row.get("key") == _key(row.get("content_hash"), row.get("compile_hash"), row["split"])
    return same and named and judged and is_current(gmdag, source.source_hash, config)


def due_scenes(known: Collection[str], config: CompileConfig) -> list[SceneSource]:
    """Return the planned scenes that are to be compiled: those not known yet, and those not up to date.

    The hashes of meshes stand in the plan: a look reads two small documents a scene, and no mesh.

    Args:
        known: Names that were materialized as compiled_scene.
        config: How scenes are compiled.

    Raises:
        RecordError: There is no plan yet.
    """
    return [source for name, source in read_plan().items() if name not in known or not unchanged(source, config)]


def corpus_rows() -> list[dict[str, Any]]:
    """Return the rows of all planned scenes, in the order of the plan.

    Raises:
        RecordError: A planned scene has not been compiled, or was another one then.
    """
    plan = read_plan()
    cards = {name: scene_card(name) if _card(name).exists() else None for name in plan}
    # Of another mesh than the planned one, a card is of a scene that is no more.
    rows = [row for name, row in cards.items() if row is not None and row["source_hash"] == plan[name].source_hash]
    if len(rows) < len(plan):
        there = {row["name"] for row in rows}
        missing = [name for name in plan if name not in there]
        raise RecordError(
            f"{len(missing)} of {len(plan)} scenes are not compiled as they are planned ({_few(missing)}); materialize "
            "scene_sources, then these partitions of compiled_scene"
        )
    return rows


def scene_card(name: str) -> dict[str, Any]:
    """Return the row of one compiled scene.

    Raises:
        RecordError: The scene has not been compiled.
    """
    return read_document(_card(name), made_by=f"compiled_scene, partition {name},")


def corpus_path() -> Path:
    """Return the file that `corpus` writes."""
    return pipeline_folder() / "corpus.json"


def write_corpus(rows: list[dict[str, Any]]) -> Path:
    """Write the manifest of the scenes in use."""
    kept = [{name: value for name, value in row.items() if name not in ("picture", "key")} for row in rows]
    write_document(corpus_path(), {"scenes": kept})
    return corpus_path()


def read_corpus() -> list[dict[str, Any]]:
    """Return the manifest's rows.

    Raises:
        RecordError: `corpus` has not been materialized.
    """
    return list(read_document(corpus_path(), made_by="corpus")["scenes"])


def scene_paths(split: str) -> list[Path]:
    """Return the `.gmdag` files of one split, in the manifest's order."""
    return [Path(row["gmdag"]) for row in read_corpus() if row["split"] == split]


def load_split(split: str) -> list[Scene]:
    """Load the scenes of one split."""
    from navi_core.scenes import load_gmdag

    return [load_gmdag(path) for path in scene_paths(split)]


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _card(name: str) -> Path:
    from navi_core.scenes.naming import own_stem

    folder = pipeline_folder() / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{own_stem(name)}.json"
