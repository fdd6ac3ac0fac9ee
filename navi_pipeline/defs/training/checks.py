"""Checks of a training run."""

import dagster as dg

from navi_pipeline.defs.partitions import profile_partitions
from navi_pipeline.defs.training.assets import POLICIES
from navi_pipeline.lib.orchestration.clock import worked_as
from navi_pipeline.lib.training.policies import curve_of, read_policy
from navi_pipeline.lib.warehouse.warehouse import Warehouse


def _metrics_are_finite(algorithm: str, asset: dg.AssetsDefinition) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset,
        name="metrics_are_finite",
        partitions_def=profile_partitions,
        blocking=True,
        description="No metric of the run is NaN or infinite, and no two rows share step and name.",
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Ask the warehouse."""
        with worked_as("metrics_are_finite"):
            row = Warehouse().query(
                "select count(*) as n, count(*) filter (not isfinite(value)) as broken, "
                "count(*) - count(distinct (step, name)) as doubled from metrics where run_id = ?",
                [read_policy(context.partition_key, algorithm)["run_id"]],
            )
        n, broken, doubled = (int(row[name][0]) for name in ("n", "broken", "doubled"))
        return dg.AssetCheckResult(
            passed=n > 0 and broken == 0 and doubled == 0,
            metadata={"rows": n, "not_finite": broken, "doubled": doubled},
        )

    return check


def _reward_rises(algorithm: str, asset: dg.AssetsDefinition) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset,
        name="reward_rises",
        partitions_def=profile_partitions,
        description="The last tenth of the run has a higher mean reward than the first.",
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Compare the ends of the curve."""
        with worked_as("reward_rises"):
            curve = curve_of(read_policy(context.partition_key, algorithm)["run_id"])["reward_ema"]
        tenth = max(1, len(curve) // 10)
        first, last = (float(part.mean()) for part in (curve.iloc[:tenth], curve.iloc[-tenth:]))
        return dg.AssetCheckResult(
            passed=last > first,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"first_tenth": first, "last_tenth": last},
        )

    return check


FINITE = [_metrics_are_finite(algorithm, asset) for algorithm, asset in POLICIES.items()]
RISES = [_reward_rises(algorithm, asset) for algorithm, asset in POLICIES.items()]
