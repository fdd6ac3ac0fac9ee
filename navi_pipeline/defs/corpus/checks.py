"""Checks of the corpus."""

import dagster as dg

from navi_pipeline.defs.corpus.assets import compiled_scene, corpus, scene_quality
from navi_pipeline.defs.partitions import scene_partitions
from navi_pipeline.lib.corpus.compiled_scenes import corpus_rows, read_corpus, scene_card
from navi_pipeline.lib.orchestration.clock import worked


@dg.asset_check(
    asset=compiled_scene,
    partitions_def=scene_partitions,
    description="The scene has enough places to start from; FAIL keeps it out of the corpus.",
)
@worked
def spawn_verdict(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Read the verdict of the scene that was compiled."""
    row = scene_card(context.partition_key)
    return dg.AssetCheckResult(
        passed=row["verdict"] == "PASS",
        severity=dg.AssetCheckSeverity.ERROR if row["verdict"] == "FAIL" else dg.AssetCheckSeverity.WARN,
        metadata={name: row[name] for name in ("verdict", "viable_spawns", "best_starvation")},
    )


@dg.asset_check(asset=scene_quality, description="At least four scenes of five have the verdict PASS.")
@worked
def most_scenes_pass() -> dg.AssetCheckResult:
    """Count the verdicts."""
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
    description="There are training and test scenes, none is in two splits (by content), and none has failed.",
)
@worked
def corpus_is_split_by_scene() -> dg.AssetCheckResult:
    """Check the manifest."""
    rows = read_corpus()
    splits: dict[str, set[str]] = {}
    for row in rows:
        splits.setdefault(row["split"], set()).add(row["content_hash"])
    shared = sum(len(hashes) for hashes in splits.values()) - len(set().union(*splits.values())) if splits else 0
    failed = sum(row["verdict"] == "FAIL" for row in rows)
    return dg.AssetCheckResult(
        passed=bool(splits.get("train")) and bool(splits.get("test")) and shared == 0 and failed == 0,
        metadata={"scenes": len(rows), "in_two_splits": shared, "failed": failed},
    )
