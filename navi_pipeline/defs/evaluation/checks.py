"""Gates between an evaluation and a promotion."""

from typing import Any

import dagster as dg

from navi_pipeline.defs.evaluation.assets import policy_evaluation
from navi_pipeline.defs.training.partitions import profile_partitions

__all__ = ["beats_forward_plus", "beats_random", "collides_less_than_random"]


def _comparison(context: dg.AssetCheckExecutionContext, pilot: str, metric: str) -> dict[str, Any]:
    from navi_pipeline.lib.verdicts import read_verdict

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
def beats_random(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Read the paired comparison."""
    row = _comparison(context, "random", "c_vis_auc")
    return _result(row, row["low"] > 0, dg.AssetCheckSeverity.ERROR)


@dg.asset_check(
    asset=policy_evaluation,
    partitions_def=profile_partitions,
    description="More area seen than forward-plus, with the paired interval above 0.",
)
def beats_forward_plus(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Read the paired comparison."""
    row = _comparison(context, "forward-plus", "c_vis_auc")
    return _result(row, row["low"] > 0, dg.AssetCheckSeverity.WARN)


@dg.asset_check(
    asset=policy_evaluation,
    partitions_def=profile_partitions,
    blocking=True,
    description="Gate of the promotion: fewer collisions per minute than random flight.",
)
def collides_less_than_random(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Read the comparison."""
    row = _comparison(context, "random", "collisions_per_minute")
    return _result(row, row["difference"] < 0, dg.AssetCheckSeverity.ERROR)
