"""Checks of evaluations, the gates before a promotion."""

from itertools import pairwise
from typing import Any

import dagster as dg

from navi_core.config import BASELINES
from navi_pipeline.defs.evaluation.assets import baseline_evaluation, leaderboard, policy_evaluation
from navi_pipeline.defs.partitions import profile_partitions
from navi_pipeline.lib.evaluation.baselines import ranking, read_baselines
from navi_pipeline.lib.evaluation.scoring import read_verdict
from navi_pipeline.lib.orchestration.clock import worked


def _comparison(context: dg.AssetCheckExecutionContext, pilot: str, metric: str) -> dict[str, Any]:
    return dict(read_verdict(context.partition_key)["test"]["comparisons"][pilot][metric])


def _result(row: dict[str, Any], passed: bool, severity: dg.AssetCheckSeverity) -> dg.AssetCheckResult:
    numbers = {name: row[name] for name in ("policy", "pilot", "difference", "low", "high")}
    return dg.AssetCheckResult(passed=passed, severity=severity, description=row["sentence"], metadata=numbers)


@dg.asset_check(
    asset=policy_evaluation,
    partitions_def=profile_partitions,
    blocking=True,
    description="Gate of the promotion: more area seen than random flight, with the paired interval above 0.",
)
@worked
def beats_random(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Read the paired comparison."""
    row = _comparison(context, "random", "c_vis_auc")
    return _result(row, row["better"], dg.AssetCheckSeverity.ERROR)


@dg.asset_check(
    asset=policy_evaluation,
    partitions_def=profile_partitions,
    description="More area seen than forward-plus, with the paired interval above 0.",
)
@worked
def beats_forward_plus(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Read the paired comparison."""
    row = _comparison(context, "forward-plus", "c_vis_auc")
    return _result(row, row["better"], dg.AssetCheckSeverity.WARN)


@dg.asset_check(
    asset=policy_evaluation,
    partitions_def=profile_partitions,
    blocking=True,
    description="Gate of the promotion: fewer collisions per minute than random flight.",
)
@worked
def collides_less_than_random(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Read the comparison."""
    row = _comparison(context, "random", "collisions_per_minute")
    return _result(row, row["difference"] < 0, dg.AssetCheckSeverity.ERROR)


@dg.asset_check(
    asset=baseline_evaluation,
    description="The scale is a scale: random below forward-plus, that below frontier, that below the planner.",
)
@worked
def baselines_keep_their_order() -> dg.AssetCheckResult:
    """Compare their coverage."""
    coverage = read_baselines()
    order = [coverage[name] for name in ("random", "forward-plus", "frontier", "planner")]
    return dg.AssetCheckResult(
        passed=all(low < high for low, high in pairwise(order)),
        severity=dg.AssetCheckSeverity.WARN,
        metadata=coverage,
    )


@dg.asset_check(asset=leaderboard, description="Policies and pilots stand in one ranking, each with its interval.")
@worked
def everybody_is_ranked() -> dg.AssetCheckResult:
    """Read the ranking."""
    rows = ranking()
    missing = sorted(set(BASELINES) - {row["subject"] for row in rows})
    policies = sum(row["kind"] != "pilot" for row in rows)
    whole = all(row["low"] is not None and row["high"] is not None for row in rows)
    return dg.AssetCheckResult(
        passed=not missing and policies > 0 and whole,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"missing: {', '.join(missing)}" if missing else f"{policies} policies and every pilot",
        metadata={"pilots": len(rows) - policies, "policies": policies},
    )
