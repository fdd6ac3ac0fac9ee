"""Checks of a behaviour-cloning run."""

import dagster as dg

from navi_pipeline.defs.partitions import profile_partitions
from navi_pipeline.defs.pretraining.assets import bc_policy
from navi_pipeline.lib.orchestration.clock import worked
from navi_pipeline.lib.training.policies import cloning_curve_of, read_policy


@dg.asset_check(
    asset=bc_policy,
    partitions_def=profile_partitions,
    blocking=True,
    description="The held-out loss is finite (or nothing goes on from the clone), and falls after the first epoch.",
)
@worked
def clone_has_learned(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Compare the epochs."""
    import math

    losses = cloning_curve_of(read_policy(context.partition_key, "bc")["run_id"])["validation_nll"]
    first, best = float(losses.iloc[0]), float(losses.min())
    finite = bool(all(math.isfinite(loss) for loss in losses))
    return dg.AssetCheckResult(
        passed=finite and best < first,
        severity=dg.AssetCheckSeverity.WARN if finite else dg.AssetCheckSeverity.ERROR,
        metadata={"first": first, "best": best, "epochs": len(losses)},
    )
