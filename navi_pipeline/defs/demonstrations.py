"""Demonstration assets and checks: flights of a scripted teacher, and people's recordings."""

import dagster as dg
from pydantic import Field

from navi_pipeline.defs.corpus import OWNERS, corpus
from navi_pipeline.defs.partitions import profile_partitions
from navi_pipeline.lib.corpus.demonstrations import (
    action_statistics,
    expert_config,
    fly_expert,
    gather_demonstrations,
    read_demonstrations,
    read_expert,
    read_recorded,
    take_recordings,
)
from navi_pipeline.lib.orchestration import worked
from navi_pipeline.lib.records import content_key
from navi_pipeline.lib.reports.pages import (
    embedded_charts,
    embedded_picture,
    histogram_chart,
    markdown_table,
    panorama_picture,
)


class ExpertSettings(dg.Config):
    """Run config of the teacher's flights; sensor and drone are the profile's."""

    pilot: str = Field(default="frontier", description="Teacher: frontier, planner or another scripted pilot.")
    scenes: int = Field(default=8, description="Training scenes that it flies in.")
    episodes: int = Field(default=4, description="Flights in each scene.")
    steps: int = Field(default=200, description="Length of a flight [decisions].")
    noise: float = Field(
        default=0.35,
        description="How much its actions are disturbed; without, a clone never learns to come free from a wall.",
    )
    seed: int = Field(default=0, description="Seed of starts and noise.")


@dg.asset(
    group_name="demonstrations",
    kinds={"numpy"},
    owners=OWNERS,
    code_version="1",
    deps=[corpus],
    partitions_def=profile_partitions,
    required_resource_keys={"trainer"},
    description="Flights of a scripted teacher, the frontier pilot, in training scenes. A disturbance is flown but "
    "not recorded, so that the student learns to recover. Runs in a child process and keeps finished recordings.",
)
@worked
def expert_demonstrations(context: dg.AssetExecutionContext, config: ExpertSettings) -> dg.MaterializeResult[None]:
    """Record the teacher's flights in training scenes, or reuse those of the same settings."""
    made = fly_expert(
        context.partition_key,
        expert_config(context.partition_key, **config.model_dump(exclude={"scenes"})),
        scenes=config.scenes,
        on_line=context.log.info,
    )
    return dg.MaterializeResult(
        metadata={
            "pilot": made["pilot"],
            "decisions": made["decisions"],
            "episodes": made["episodes"],
            "resolution": made["resolution"],
            "reused": made["reused"],
            "folder": dg.MetadataValue.path(made["folder"]),
            "table": dg.MetadataValue.md(markdown_table(made["rows"])),
        },
        data_version=dg.DataVersion(made["content_hash"][:16]),
    )


@dg.asset(
    group_name="demonstrations",
    kinds={"numpy"},
    owners=OWNERS,
    code_version="2",
    required_resource_keys={"home"},
    description="Recorded flights of people (navi demos record) or other programs: every .npz and Minari file "
    "under $NAVI_DEMOS, or recordings/ of the Navi home, checked file by file. There may be none.",
)
@worked
def recorded_demonstrations(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """Ingest people's recordings into one dataset; log each refused file."""
    made = take_recordings()
    refused = [row for row in made["rows"] if not row["accepted"]]
    for row in refused:
        context.log.warning("%s is refused: %s", row["file"], row["reason"])
    return dg.MaterializeResult(
        metadata={
            "files": made["files"],
            "refused": len(refused),
            "decisions": made["decisions"],
            "table": dg.MetadataValue.md(markdown_table(made["rows"])),
        },
        data_version=dg.DataVersion(content_key(made["content_hash"])),
    )


@dg.asset(
    group_name="demonstrations",
    kinds={"numpy"},
    owners=OWNERS,
    code_version="1",
    deps=[expert_demonstrations, recorded_demonstrations],
    partitions_def=profile_partitions,
    required_resource_keys={"home"},
    description="Demonstrations for this profile's sensor: the teacher's flights, and recordings with the same sensor "
    "and drone.",
)
@worked
def demonstrations(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """Combine the datasets of teacher and recordings; show action statistics and a panorama."""
    made = gather_demonstrations(context.partition_key)
    rows, actions, first = action_statistics(made["folders"])
    metadata = {
        **{name: made[name] for name in ("decisions", "episodes", "scenes", "left_out")},
        "sources": dg.MetadataValue.md(markdown_table(made["rows"])),
        "actions": dg.MetadataValue.md(markdown_table(rows)),
        "answers": dg.MetadataValue.md(embedded_charts([histogram_chart(actions, x="action")], "actions")),
        "panorama": dg.MetadataValue.md(embedded_picture(panorama_picture(first), "panorama")),
    }
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(made["content_hash"]))


@dg.asset_check(
    asset=expert_demonstrations,
    partitions_def=profile_partitions,
    required_resource_keys={"home"},
    description="The teacher collides less than ten times a minute, disturbance and all.",
)
@worked
def teacher_flies_safely(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Check that the teacher's mean collision rate is below 10 per minute."""
    rows = read_expert(context.partition_key)["rows"]
    flown = [rate for row in rows if (rate := row["collisions_per_minute"]) is not None]
    mean = sum(flown) / len(flown) if flown else 0.0
    return dg.AssetCheckResult(
        passed=mean < 10.0,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"collisions_per_minute": mean, "scenes": len(flown)},
    )


@dg.asset_check(
    asset=recorded_demonstrations,
    required_resource_keys={"home"},
    description="No recording was refused.",
)
@worked
def recordings_are_good() -> dg.AssetCheckResult:
    """Check that the ingest refused no recording."""
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
    required_resource_keys={"home"},
    description="There are decisions of this profile's resolution from at least two episodes, "
    "so that one can be held out.",
)
@worked
def demonstrations_can_be_learned_from(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Check that the dataset has decisions, and at least two episodes."""
    made = read_demonstrations(context.partition_key)
    return dg.AssetCheckResult(
        passed=made["decisions"] > 0 and made["episodes"] >= 2,
        metadata={name: made[name] for name in ("decisions", "episodes", "scenes", "left_out")},
    )
