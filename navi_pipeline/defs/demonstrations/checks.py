"""Checks of demonstrations."""

import dagster as dg

from navi_pipeline.defs.demonstrations.assets import demonstrations, expert_demonstrations, recorded_demonstrations
from navi_pipeline.defs.partitions import profile_partitions
from navi_pipeline.lib.corpus.demonstrations import read_demonstrations, read_expert, read_recorded
from navi_pipeline.lib.orchestration.clock import worked

_MOST_COLLISIONS = 10.0


@dg.asset_check(
    asset=expert_demonstrations,
    partitions_def=profile_partitions,
    description="The teacher collides less than ten times a minute, disturbance and all.",
)
@worked
def teacher_flies_safely(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Read what was counted while it flew."""
    rates = [row["collisions_per_minute"] for row in read_expert(context.partition_key)["rows"]]
    flown = [rate for rate in rates if rate is not None]
    mean = sum(flown) / len(flown) if flown else 0.0
    return dg.AssetCheckResult(
        passed=mean < _MOST_COLLISIONS,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"collisions_per_minute": mean, "scenes": len(flown)},
    )


@dg.asset_check(asset=recorded_demonstrations, description="No recording was refused.")
@worked
def recordings_are_good() -> dg.AssetCheckResult:
    """Read the verdict of the ingest on each file."""
    rows = read_recorded()["rows"]
    refused = [f"{row['file']}: {row['reason']}" for row in rows if not row["accepted"]]
    return dg.AssetCheckResult(
        passed=not refused,
        severity=dg.AssetCheckSeverity.WARN,
        description="; ".join(refused) or "none refused",
        metadata={"files": len(rows), "refused": len(refused)},
    )


@dg.asset_check(
    asset=demonstrations,
    partitions_def=profile_partitions,
    blocking=True,
    description="There are decisions of this profile's resolution, from at least two episodes: one can be held out.",
)
@worked
def demonstrations_can_be_learned_from(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Read what was gathered."""
    made = read_demonstrations(context.partition_key)
    return dg.AssetCheckResult(
        passed=made["decisions"] > 0 and made["episodes"] >= 2,
        metadata={name: made[name] for name in ("decisions", "episodes", "scenes", "left_out")},
    )
