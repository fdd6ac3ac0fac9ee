"""Demonstration assets: a teacher's flights and people's recordings."""

from typing import Any

import dagster as dg
from pydantic import Field

from navi_pipeline.defs.corpus.assets import OWNERS, corpus
from navi_pipeline.defs.partitions import profile_partitions
from navi_pipeline.lib.corpus.demonstrations import (
    action_statistics,
    expert_config,
    fly_expert,
    gather_demonstrations,
    take_recordings,
)
from navi_pipeline.lib.orchestration.clock import worked
from navi_pipeline.lib.records.documents import content_key
from navi_pipeline.lib.reports.charts import histogram_chart, panorama_picture
from navi_pipeline.lib.reports.pages import embedded_charts, embedded_picture, markdown_table


class ExpertSettings(dg.Config):
    """How the teacher flies; sensor and drone are the profile's."""

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
    description="A scripted teacher shows how to explore: flights of the frontier pilot in training scenes, with a "
    "disturbance that is flown but not recorded, so that the pupil learns to come back. Runs in a child process; what "
    "is recorded already is kept.",
)
@worked
def expert_demonstrations(context: dg.AssetExecutionContext, config: ExpertSettings) -> dg.MaterializeResult[None]:
    """Fly the teacher, or reuse its flights."""
    settings = {name: getattr(config, name) for name in ("pilot", "episodes", "steps", "noise", "seed")}
    made = fly_expert(
        context.partition_key,
        expert_config(context.partition_key, **settings),
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
    description="Flights that people recorded (navi demos record), or other programs did: every .npz and Minari file "
    "under $NAVI_DEMOS, or recordings/ of the Navi home, checked file by file. There may be none.",
)
@worked
def recorded_demonstrations(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """Take recordings in."""
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
    description="Everything that shows how to fly with this profile's sensor: the teacher's flights, and the "
    "recordings of the same sensor and drone.",
)
@worked
def demonstrations(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """Gather them, and show what was seen and what was answered."""
    made = gather_demonstrations(context.partition_key)
    rows, actions, first = action_statistics(made["folders"])
    metadata: dict[str, Any] = {name: made[name] for name in ("decisions", "episodes", "scenes", "left_out")}
    metadata |= {
        "sources": dg.MetadataValue.md(markdown_table(made["rows"])),
        "actions": dg.MetadataValue.md(markdown_table(rows)),
        "answers": dg.MetadataValue.md(embedded_charts([histogram_chart(actions, x="action")], "actions")),
        "panorama": dg.MetadataValue.md(embedded_picture(panorama_picture(first), "panorama")),
    }
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(made["content_hash"]))
