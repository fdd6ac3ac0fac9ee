"""What a training run must have shown."""

import dagster as dg

from navi_pipeline.defs.training.assets import ppo_policy
from navi_pipeline.defs.training.partitions import profile_partitions

__all__ = ["metrics_are_finite", "reward_rises"]


@dg.asset_check(
    asset=ppo_policy,
    partitions_def=profile_partitions,
    blocking=True,
    description="No metric of the run is NaN or infinite, and no two rows share step and name.",
)
def metrics_are_finite(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Ask the warehouse."""
    from navi_pipeline.lib.policies import read_policy
    from navi_pipeline.lib.warehouse import Warehouse

    row = Warehouse().query(
        "select count(*) as n, count(*) filter (not isfinite(value)) as broken, "
        "count(*) - count(distinct (step, name)) as doubled from metrics where run_id = ?",
        [read_policy(context.partition_key)["run_id"]],
    )
    n, broken, doubled = (int(row[name][0]) for name in ("n", "broken", "doubled"))
    return dg.AssetCheckResult(
        passed=n > 0 and broken == 0 and doubled == 0, metadata={"rows": n, "not_finite": broken, "doubled": doubled}
    )


@dg.asset_check(
    asset=ppo_policy,
    partitions_def=profile_partitions,
    description="The last tenth of the run has a higher mean reward than the first.",
)
def reward_rises(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Compare the ends of the curve."""
    from navi_pipeline.lib.policies import curve_of, read_policy

    curve = curve_of(read_policy(context.partition_key)["run_id"])["reward_ema"]
    tenth = max(1, len(curve) // 10)
    first, last = (float(part.mean()) for part in (curve.iloc[:tenth], curve.iloc[-tenth:]))
    return dg.AssetCheckResult(
        passed=last > first, severity=dg.AssetCheckSeverity.WARN, metadata={"first_tenth": first, "last_tenth": last}
    )
