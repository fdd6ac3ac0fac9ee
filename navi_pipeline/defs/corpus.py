"""Corpus assets and checks: planned scene sources, compiled scenes, the split into training, validation and test."""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from navi_core.config import CompileConfig, parse_config
from navi_core.terminal import print_status
from navi_pipeline.defs.partitions import WHEN_SETTLED, WHEN_UPDATED, scene_partitions
from navi_pipeline.lib.corpus.scenes import (
    RESOLUTION,
    SceneSource,
    as_rows,
    chosen_settings,
    compile_source,
    corpus_rows,
    due_scenes,
    plan_scenes,
    plan_settings,
    read_corpus,
    read_plan,
    scene_card,
    write_corpus,
    write_plan,
)
from navi_pipeline.lib.orchestration import materialized, record_check, rounded, worked, worked_as
from navi_pipeline.lib.records import content_key
from navi_pipeline.lib.reports.pages import embedded_charts, markdown_table, scatter_chart

OWNERS = ["team:navi"]

DEFAULT_SCENES: dict[str, Any] = {"family": "apartment", "train": 16, "validation": 12, "test": 16}
"""Default settings of the scene plan, used for a new home and by the demo."""


class SceneSettings(dg.Config):
    """Run config of `scene_sources`: generated scenes per split; meshes under $NAVI_SCENES are always added.

    Explicit values persist until another one is set; materializing with defaults does not reset them.
    """

    family: str | None = Field(
        default=None, description="Generated family: apartment, rooms, maze, …; at first apartment."
    )
    train: int | None = Field(default=None, description="Scenes to train on; at first 16.")
    validation: int | None = Field(default=None, description="Scenes on which the champion is challenged; at first 12.")
    test: int | None = Field(default=None, description="Scenes on which policies are measured; at first 16.")
    as_last: bool = Field(
        default=False, description="Leave what nobody chose as it was planned last, a night's numbers for instance."
    )


class CompileSettings(dg.Config):
    """Run config of the scene compiler; surfaces are exact triangles, so the resolution affects only speed."""

    resolution: int = Field(
        default=RESOLUTION, description="Voxels along one edge of the scene's cube; a power of two."
    )
    padding: float = Field(default=1.0, description="Free margin on each side of the mesh's bounds [m].")
    echo: bool = Field(default=False, description="Print the progress on the terminal, too.")

    def compile_config(self) -> CompileConfig:
        """Return the validated configuration of the scene compiler."""
        return parse_config(CompileConfig, self.model_dump(exclude={"echo"}))


@dg.asset(
    group_name="corpus",
    kinds={"python"},
    owners=OWNERS,
    code_version="1",
    required_resource_keys={"home"},
    description="Plan of the scenes, by name, with split and content hash: generated ones, and every mesh under "
    "$NAVI_SCENES. Registers one partition of compiled_scene for each.",
)
@worked
def scene_sources(context: dg.AssetExecutionContext, config: SceneSettings) -> dg.MaterializeResult[None]:
    """Plan the scenes of the corpus and register one dynamic partition for each."""
    earlier = chosen_settings()
    named = {name: value for name in DEFAULT_SCENES if (value := getattr(config, name)) is not None}
    if kept := {name: value for name, value in earlier.items() if name not in named}:
        context.log.info("as chosen earlier: %s", ", ".join(f"{name} {value}" for name, value in kept.items()))
    chosen = earlier | named
    settings = DEFAULT_SCENES | (plan_settings() if config.as_last else {}) | chosen
    family, counts = settings["family"], {split: settings[split] for split in ("train", "validation", "test")}
    sources = plan_scenes(family, counts)
    rows = as_rows(sources)
    write_plan(sources, family, counts, chosen)
    names, splits = [source.name for source in sources], [source.split for source in sources]
    context.instance.add_dynamic_partitions("scene", names)
    for gone in set(context.instance.get_dynamic_partitions("scene")) - set(names):
        context.instance.delete_dynamic_partition("scene", gone)
    return dg.MaterializeResult(
        metadata={
            "scenes": len(rows),
            "family": family,
            **{f"{split}_scenes": splits.count(split) for split in (*counts, "external")},
            "sources": dg.MetadataValue.md(
                markdown_table([row | {"source_hash": row["source_hash"][:12]} for row in rows])
            ),
        },
        data_version=dg.DataVersion(content_key(rows)),
    )


@dg.asset(
    group_name="corpus",
    kinds={"numba"},
    owners=OWNERS,
    code_version="1",
    deps=[scene_sources],
    partitions_def=scene_partitions,
    backfill_policy=dg.BackfillPolicy.single_run(),
    automation_condition=WHEN_UPDATED,
    output_required=False,
    required_resource_keys={"home"},
    description="Compiled scene: a .gmdag file, its spawn verdict and its map from above. It is reused while source "
    "and settings are unchanged. A run over several scenes, or over all that are due, reports each scene "
    "when it is done.",
)
def compiled_scene(context: dg.AssetExecutionContext, config: CompileSettings) -> Iterator[Any]:
    """Compile a partition's scene, those of a range that are due, or all that are due in a run without a partition."""
    with worked_as("compiled_scene"):
        yield from _compile(context, config)


def _compile(
    context: dg.AssetExecutionContext, config: CompileSettings
) -> Iterator[dg.MaterializeResult[None] | dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    plan, settings = read_plan(), config.compile_config()
    if context.has_partition_key:
        if (source := plan.get(context.partition_key)) is None:
            raise dg.Failure(
                f"scene {context.partition_key!r} is not among the {len(plan)} planned; materialize scene_sources again"
            )
        yield _compiled(context, source, settings)[0]
        return
    due = due_scenes(context.instance.get_materialized_partitions(context.asset_key), settings)
    if context.has_partition_key_range:
        due = [source for source in due if source.name in context.partition_keys]
    report = print_status if config.echo else context.log.info
    report(f"  {len(plan)} scenes, {len(due)} to compile")
    failed = 0
    for number, source in enumerate(due, start=1):
        made, row = _compiled(context, source, settings)
        # Dagster would mark the whole range at the end; a scene without a file counts as not done.
        if row["gmdag"] is None:
            failed += 1
        else:
            yield dg.AssetMaterialization(
                context.asset_key,
                partition=source.name,
                metadata=made.metadata,
                tags={"dagster/data_version": made.data_version.value if made.data_version else ""},
            )
        found = dg.AssetCheckEvaluation(
            asset_key=context.asset_key, check_name="spawn_verdict", partition=source.name, **_verdict(row)
        )
        record_check(found)
        yield found
        if number % 7 == 0 or number == len(due):
            report(f"  compiled_scene {number}/{len(due)}")
    if not context.has_partition_key_range:
        yield materialized(
            {"scenes": len(plan), "compiled": len(due) - failed, "unchanged": len(plan) - len(due), "failed": failed},
            content_key([[source.name, source.source_hash] for source in plan.values()]),
        )


def _compiled(
    context: dg.AssetExecutionContext, source: SceneSource, settings: CompileConfig
) -> tuple[dg.MaterializeResult[None], dict[str, Any]]:
    """Compile a planned scene; return its materialization and its row."""
    start = time.perf_counter()
    made = compile_source(source, settings)
    if made["gmdag"] is None:
        context.log.warning("%s is left out: %s", source.name, made["verdict_reason"])
    shown = ("triangles", "resolution", "voxel_size", "floor_area_m2", "file_bytes", "verdict", "viable_spawns")
    metadata = {
        **{name: made[name] for name in shown},
        "split": source.split,
        "reused": made["skipped"],
        "seconds": time.perf_counter() - start,
        "gmdag": dg.MetadataValue.path(made["gmdag"]) if made["gmdag"] else None,
        "verdict_reason": made["verdict_reason"] if made["verdict"] == "FAIL" else None,
        "map": dg.MetadataValue.md(made["picture"]) if made["picture"] else None,
    }
    return materialized(metadata, (made["content_hash"] or made["source_hash"])[:16]), made


def _verdict(row: dict[str, Any]) -> dict[str, Any]:
    """Return outcome, severity and metadata of the check of a scene's spawn verdict."""
    return {
        "passed": row["verdict"] == "PASS",
        "severity": dg.AssetCheckSeverity.ERROR if row["verdict"] == "FAIL" else dg.AssetCheckSeverity.WARN,
        "metadata": rounded({name: row[name] for name in ("verdict", "viable_spawns", "best_starvation")}),
    }


@dg.asset(
    group_name="corpus",
    kinds={"json"},
    owners=OWNERS,
    code_version="1",
    automation_condition=WHEN_SETTLED,
    deps=[scene_sources, compiled_scene],
    required_resource_keys={"home"},
    description="Quality of all compiled scenes: verdict, floor area, free starts and size side by side.",
)
@worked
def scene_quality() -> dg.MaterializeResult[None]:
    """Summarise verdicts, floor areas and sizes of all compiled scenes."""
    rows = corpus_rows()
    verdicts = {word: sum(row["verdict"] == word for row in rows) for word in ("PASS", "MARGINAL", "FAIL")}
    shown = ("name", "split", "verdict", "viable_spawns", "best_starvation", "floor_area_m2", "triangles", "file_bytes")
    points = {
        split: [(row["floor_area_m2"], row["triangles"] / 1e3) for row in rows if row["split"] == split]
        for split in dict.fromkeys(row["split"] for row in rows)
    }
    chart = scatter_chart(points, x="reachable floor [m²]", y="triangles [thousand]")
    return dg.MaterializeResult(
        metadata={
            "scenes": len(rows),
            **{f"verdict_{word}": number for word, number in verdicts.items()},
            "floor_area_m2": sum(row["floor_area_m2"] for row in rows),
            "table": dg.MetadataValue.md(markdown_table([{name: row[name] for name in shown} for row in rows])),
            "picture": dg.MetadataValue.md(embedded_charts([chart], "floor and triangles")),
        },
        data_version=dg.DataVersion(content_key([[row["name"], row["content_hash"], row["verdict"]] for row in rows])),
    )


@dg.asset(
    group_name="corpus",
    kinds={"json"},
    owners=OWNERS,
    code_version="1",
    automation_condition=WHEN_SETTLED,
    freshness_policy=dg.FreshnessPolicy.time_window(warn_window=timedelta(days=30), fail_window=timedelta(days=90)),
    deps=[compiled_scene, scene_quality],
    required_resource_keys={"home"},
    description="Corpus of all later stages: the compiled scenes by split, without those whose spawn verdict is FAIL.",
)
@worked
def corpus(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """Write the corpus manifest: all compiled scenes by split, without those of verdict FAIL."""
    rows = corpus_rows()
    used = [row for row in rows if row["verdict"] != "FAIL"]
    left_out = {
        row["name"]: row.get("verdict_reason") or "it was judged before reasons were kept"
        for row in rows
        if row["verdict"] == "FAIL"
    }
    for name, why in left_out.items():
        context.log.warning("scene %s is left out, verdict FAIL: %s", name, why)
    path = write_corpus(used)
    shown = ("name", "split", "verdict", "triangles", "floor_area_m2")
    return dg.MaterializeResult(
        metadata={
            "scenes": len(used),
            "left_out": len(left_out),
            "left_out_because": dg.MetadataValue.json(left_out),
            "floor_area_m2": sum(row["floor_area_m2"] for row in used),
            "manifest": dg.MetadataValue.path(str(path)),
            "table": dg.MetadataValue.md(markdown_table([{name: row[name] for name in shown} for row in used])),
        },
        data_version=dg.DataVersion(content_key([[row["name"], row["split"], row["content_hash"]] for row in used])),
    )


@dg.asset_check(
    asset=compiled_scene,
    partitions_def=scene_partitions,
    required_resource_keys={"home"},
    description="The scene has enough places to start from; FAIL keeps it out of the corpus.",
)
@worked
def spawn_verdict(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Check that the spawn verdict of the compiled scene is PASS."""
    return dg.AssetCheckResult(**_verdict(scene_card(context.partition_key)))


@dg.asset_check(
    asset=scene_quality,
    required_resource_keys={"home"},
    description="At least four scenes of five have the verdict PASS.",
)
@worked
def most_scenes_pass() -> dg.AssetCheckResult:
    """Check that at least 80 % of the scenes have the verdict PASS."""
    verdicts = [row["verdict"] for row in corpus_rows()]
    share = verdicts.count("PASS") / len(verdicts)
    return dg.AssetCheckResult(
        passed=share >= 0.8,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"scenes": len(verdicts), "share_of_pass": share},
    )


@dg.asset_check(
    asset=corpus,
    blocking=True,
    required_resource_keys={"home"},
    description="There are training and test scenes, none is in two splits (by content), and none has failed.",
)
@worked
def corpus_is_split_by_scene() -> dg.AssetCheckResult:
    """Check that the manifest has training and test scenes, no content in two splits, and no failed scene."""
    rows = read_corpus()
    contents = {(row["split"], row["content_hash"]) for row in rows}
    shared = len(contents) - len({content for _, content in contents})
    failed = sum(row["verdict"] == "FAIL" for row in rows)
    return dg.AssetCheckResult(
        passed={"train", "test"} <= {split for split, _ in contents} and shared == 0 and failed == 0,
        metadata={"scenes": len(rows), "in_two_splits": shared, "failed": failed},
    )
