"""Scene corpus: plan with splits and content hashes, compilation, spawn verdicts, manifest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.config import CorpusConfig, SpawnConfig
from navi_core.errors import ConfigError, MeshError, RecordError, SceneError, SceneTooLargeError
from navi_core.record import navi_home
from navi_pipeline.lib.records import content_key, pipeline_folder, pipeline_log, read_document, write_document
from navi_pipeline.lib.reports.pages import embedded_picture

if TYPE_CHECKING:
    from navi_core.config import CompileConfig
    from navi_core.scenes import Scene
    from navi_core.world import Field

RESOLUTION = 256
"""Default resolution of planned scenes [voxels along one edge]."""

_FIRST_SEED = {"train": 0, "validation": 5000, "test": 9000}
_MOST = {"train": 5000, "validation": 4000, "test": 10_000}
"""Maximum number of scenes per split, so that the splits' seeds never overlap."""


@dataclass(frozen=True)
class SceneSource:
    """Planned scene of the corpus: a generated family with seed, or a mesh file, with split and content hash.

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
    """Plan the corpus: generated scenes per split, and every mesh under `$NAVI_SCENES` as external.

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


def mesh_hash(path: Path) -> str:
    """Return the SHA-256 of a mesh file's content; of the error message if the file cannot be read.

    A broken file is planned like the others, and is due again when the file or its error changes.

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
    """Return the path of the plan, the JSON file that `scene_sources` writes."""
    return pipeline_folder() / "scene_sources.json"


def read_plan() -> dict[str, SceneSource]:
    """Load the planned scene sources by name.

    Raises:
        RecordError: `scene_sources` has not been materialized.
    """
    document = read_document(plan_path(), made_by="scene_sources")
    return {row["name"]: SceneSource(**row) for row in document["sources"]}


def write_plan(
    sources: list[SceneSource], family: str, counts: dict[str, int], chosen: dict[str, Any] | None = None
) -> None:
    """Write the scene plan together with the settings that produced it.

    Args:
        sources: The planned scenes.
        family: Generated family.
        counts: Split → number of generated scenes.
        chosen: Settings that a user set explicitly; the others follow Navi's defaults.

    Raises:
        RecordError: The file cannot be written.
    """
    settings = {"family": family, **{split: counts.get(split, 0) for split in _FIRST_SEED}}
    write_document(plan_path(), {"settings": settings, "chosen": chosen or {}, "sources": as_rows(sources)})


def chosen_settings() -> dict[str, Any]:
    """Return the explicitly set (non-default) settings of the last corpus plan: family, train, validation, test."""
    return dict(_last_plan().get("chosen", {}))


def plan_settings() -> dict[str, Any]:
    """Return the settings of the last plan (family, train, validation, test), to repeat it; empty if there is none."""
    return dict(_last_plan().get("settings", {}))


def _last_plan() -> dict[str, Any]:
    """Load the plan's JSON document; empty if there is none."""
    try:
        return read_document(plan_path(), made_by="scene_sources")
    except RecordError:
        return {}


def as_rows(sources: list[SceneSource]) -> list[dict[str, Any]]:
    """Convert the planned sources to dictionaries."""
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


_CARD = "3"
"""Version of the scene's JSON document (card); cards of another version are made again."""
_NO_SCENE: dict[str, Any] = {
    "key": None,
    "content_hash": None,
    "gmdag": None,
    "voxel_size": 0.0,
    "triangles": 0,
    "file_bytes": 0,
    "compile_seconds": 0.0,
    "verdict": "FAIL",
    "viable_spawns": 0,
    "best_starvation": 1.0,
    "floor_area_m2": 0.0,
    "picture": None,
}
"""Default row of a mesh that cannot be compiled."""


# Above 60 lines: the row of a scene is written out column by column.
def compile_source(source: SceneSource, config: CompileConfig) -> dict[str, Any]:
    """Compile one planned scene, or reuse its .gmdag file, and compute its spawn verdict.

    An unusable mesh file becomes a scene of verdict FAIL with the reason, so that the others can continue.

    Args:
        source: The planned scene.
        config: Settings of the compiler.

    Returns:
        The scene's row (name, hashes, verdict, size, …) with `skipped` and `picture` (markdown, or None); `gmdag` and
        `content_hash` are None where there is no scene.

    Raises:
        SceneError: The scene cannot be written.
    """
    from navi_core.scenes import compile_hash, compile_to_file, generate_scene
    from navi_core.world import Field, scene_verdict

    mesh = Path(source.path) if source.path else generate_scene(str(source.family), source.seed or 0)
    try:
        # The planned name: two meshes of one file name are distinguished by it.
        compiled = compile_to_file(mesh, navi_home() / "scenes", config, name=source.name)
    except (MeshError, SceneTooLargeError) as error:
        if source.path is None:
            raise
        row = _NO_SCENE | {
            "source_hash": mesh_hash(Path(source.path)),
            "compile_hash": compile_hash(config),
            "resolution": config.resolution,
            "verdict_reason": str(error),
            # Another time there may be more memory; a broken file is broken until it changes.
            "passing": isinstance(error, SceneTooLargeError),
        }
        return _recorded(source, row) | {"skipped": False}
    scene, card = compiled.scene, _card(source.name)
    key = _key(scene.content_hash(), scene.compile_hash, source.split)
    if compiled.skipped and card.exists():
        known = read_document(card, made_by="compiled_scene")
        if known.get("key") == key and known["gmdag"] == str(compiled.path):
            return known | {"skipped": True}
    field = Field([scene])
    verdict = scene_verdict(field, 0, SpawnConfig())
    picture, area = (None, 0.0) if verdict.verdict == "FAIL" else _floor_plan(field, source.name)
    row = {
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
    return _recorded(source, row) | {"skipped": compiled.skipped}


def _floor_plan(field: Field, name: str) -> tuple[str, float]:
    """Return the scene's top-down map as Markdown, and its reachable floor area [m²]."""
    from navi_core.evaluate import top_down_map
    from navi_core.world import FloorMap

    floor = FloorMap(field, 0, 0.1, 0.2)
    return embedded_picture(top_down_map(field, 0, {}, floor), name), floor.area


def _key(content_hash: str | None, compile_hash: str | None, split: str) -> str:
    """Return the cache key (hash) of a scene's JSON card: content, compiler settings, split, version of the card."""
    return content_key(_CARD, content_hash, compile_hash, split)


def _recorded(source: SceneSource, measured: dict[str, Any]) -> dict[str, Any]:
    """Write a scene's row to the outbox and to its JSON file (card); return the row."""
    row = {
        "name": source.name,
        "split": source.split,
        "family": source.family,
        "family_seed": source.seed,
        "source": source.path or f"{source.family}:{source.seed}",
        **measured,
    }
    with pipeline_log("compiled_scene", seed=source.seed, config_hash=row["compile_hash"]) as log:
        log.row("scenes", {name: value for name, value in row.items() if name not in ("picture", "key", "passing")})
    # The card comes last: while it is missing the scene counts as not done.
    write_document(_card(source.name), row)
    return row


def unchanged(source: SceneSource, config: CompileConfig) -> bool:
    """Return whether a planned scene is compiled, with a verdict, and up to date; no mesh is loaded."""
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
    """Return the planned scenes that need compilation (new, outdated, not still broken); no mesh is read.

    Args:
        known: Names that were materialized as compiled_scene.
        config: Settings of the compiler.

    Raises:
        RecordError: There is no plan yet.
    """
    return [
        source
        for name, source in read_plan().items()
        if not unchanged(source, config) or (name not in known and scene_card(name)["gmdag"] is not None)
    ]


def corpus_rows() -> list[dict[str, Any]]:
    """Load the rows of all planned scenes, in the order of the plan.

    Raises:
        RecordError: A planned scene has not been compiled, or was another one then.
    """
    plan = read_plan()
    cards = {name: scene_card(name) for name in plan if _card(name).exists()}
    # Of another mesh than the planned one, a card is of a scene that is no more.
    rows = {name: row for name, row in cards.items() if row["source_hash"] == plan[name].source_hash}
    if missing := [name for name in plan if name not in rows]:
        raise RecordError(
            f"{len(missing)} of {len(plan)} scenes are not compiled as they are planned ({', '.join(missing[:3])}"
            f"{', …' if len(missing) > 3 else ''}); materialize scene_sources, then these partitions of compiled_scene"
        )
    return list(rows.values())


def scene_card(name: str) -> dict[str, Any]:
    """Load the JSON row (card) of one compiled scene.

    Raises:
        RecordError: The scene has not been compiled.
    """
    return read_document(_card(name), made_by=f"compiled_scene, partition {name},")


def corpus_path() -> Path:
    """Return the path of the corpus manifest, the JSON file that `corpus` writes."""
    return pipeline_folder() / "corpus.json"


def write_corpus(rows: list[dict[str, Any]]) -> Path:
    """Write the corpus manifest of the scenes in use and return its path."""
    kept = [{name: value for name, value in row.items() if name not in ("picture", "key")} for row in rows]
    write_document(corpus_path(), {"scenes": kept})
    return corpus_path()


def read_corpus() -> list[dict[str, Any]]:
    """Load the rows of the corpus manifest.

    Raises:
        RecordError: `corpus` has not been materialized.
    """
    return list(read_document(corpus_path(), made_by="corpus, as `navi demo` does,")["scenes"])


def scene_paths(split: str) -> list[Path]:
    """Return the `.gmdag` files of one split, in the manifest's order."""
    return [Path(row["gmdag"]) for row in read_corpus() if row["split"] == split]


def load_split(split: str) -> list[Scene]:
    """Load the scenes of one split."""
    from navi_core.scenes import load_gmdag

    return [load_gmdag(path) for path in scene_paths(split)]


def _card(name: str) -> Path:
    from navi_core.scenes.naming import own_stem

    return pipeline_folder() / "compiled" / f"{own_stem(name)}.json"
