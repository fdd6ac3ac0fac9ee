"""Sweep assets and their check: cost and quality of variants, one child process a cell."""

from typing import Any

import dagster as dg
from pydantic import Field

from navi_core.config import parse_config
from navi_pipeline.defs.corpus import OWNERS, corpus
from navi_pipeline.defs.partitions import GPU, size_partitions
from navi_pipeline.lib.orchestration import worked_as
from navi_pipeline.lib.records import content_key
from navi_pipeline.lib.reports.pages import embedded_charts, markdown_table
from navi_pipeline.lib.sweeps.perform import perform_sweep, read_sweep
from navi_pipeline.settings import SweepConfig

_STORIES = {
    "raycast_benchmark": "How many rays a second, and how exact? Each tracer on three families of scenes against every "
    "triangle.",
    "resolution_sweep": "What does a finer panorama cost? Training at 256x48, 384x72, 512x96 and 768x144 with the full "
    "network; memory that runs out is a result.",
    "encoder_sweep": "Which eye learns best, and at what cost? The encoders head to head on the same seeds.",
    "temporal_core_sweep": "Which memory learns best, and at what cost? The temporal cores head to head on the same "
    "seeds, ending in the promotion checklist: better by interval, throughput, no extra build.",
    "cadence_sweep": "How many decisions per row between updates? Rollouts of 256 and 512.",
    "actor_scaling": "How does throughput grow with the rows that fly at once? Four to thirty-two.",
}


class SweepSettings(dg.Config):
    """Settings of a sweep; None takes the default of its size."""

    seeds: int | None = Field(default=None, description="Repeats of each cell; by default the size's.")
    steps: int | None = Field(default=None, description="Decisions of a cell; by default the size's.")
    seconds: float | None = Field(default=None, description="Training time of a cell [s]; by default the size's.")
    preset: str | None = Field(default=None, description="Settings that do not vary: demo, quick, standard.")
    memory_limit: float | None = Field(default=None, description="Address space of a cell [GiB].")
    again: bool = Field(default=False, description="Measure every cell anew; earlier rows stay in the history.")


def _benchmark(sweep: str, story: str) -> dg.AssetsDefinition:
    @dg.asset(
        name=sweep,
        group_name="benchmarks",
        kinds={"torch"},
        owners=OWNERS,
        code_version="1",
        pool=GPU,
        deps=[corpus],
        partitions_def=size_partitions,
        description=f"{story} Every cell is a child process: memory that runs out, a crash and a time-out are outcomes "
        "of that cell. Cells that are done are not measured again; rows go to the table benchmarks.",
    )
    def benchmark(context: dg.AssetExecutionContext, config: SweepSettings) -> dg.MaterializeResult[None]:
        """Measure what has not been measured."""
        with worked_as(sweep):
            return _materialize(context, sweep, config)

    return benchmark


def _materialize(context: dg.AssetExecutionContext, sweep: str, settings: SweepSettings) -> dg.MaterializeResult[None]:
    given = {name: value for name, value in settings.model_dump(exclude={"again"}).items() if value is not None}
    config = parse_config(SweepConfig, {"profile": context.partition_key} | given)
    made = perform_sweep(sweep, config, on_line=context.log.info, again=settings.again)
    ended = [outcome.status for outcome in made.outcomes]
    metadata: dict[str, Any] = {
        "cells": len(ended),
        **{status: ended.count(status) for status in ("ok", "out_of_memory", "crash", "timeout")},
        "reused": made.reused,
        "table": dg.MetadataValue.md(markdown_table(made.rows)),
        "picture": dg.MetadataValue.md(embedded_charts(made.charts, sweep)),
        "report": dg.MetadataValue.path(str(made.report)),
    }
    if made.verdicts:
        checklist = markdown_table([verdict.as_row() for verdict in made.verdicts])
        metadata |= {
            "verdict": dg.MetadataValue.md("\n\n".join(verdict.sentence for verdict in made.verdicts)),
            "checklist": dg.MetadataValue.md(checklist),
            "intervals": dg.MetadataValue.md(embedded_charts([made.verdict_chart], "intervals")),
        }
    measured = [[outcome.cell, outcome.status, outcome.measured_at] for outcome in made.outcomes]
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(content_key(measured)))


BENCHMARKS: dict[str, dg.AssetsDefinition] = {sweep: _benchmark(sweep, story) for sweep, story in _STORIES.items()}
"""Asset by sweep."""


def _every_cell_was_measured(sweep: str, asset: dg.AssetsDefinition) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset,
        name="every_cell_was_measured",
        partitions_def=size_partitions,
        description="No cell ran out of memory, crashed or took too long; one that did is named.",
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        """Read the outcomes."""
        with worked_as("every_cell_was_measured"):
            outcomes = read_sweep(sweep, context.partition_key)["outcomes"]
        failed = {cell: status for cell, status in outcomes.items() if status != "ok"}
        return dg.AssetCheckResult(
            passed=not failed,
            severity=dg.AssetCheckSeverity.WARN,
            description=", ".join(f"{cell}: {status}" for cell, status in failed.items()) or "all were measured",
            metadata={"cells": len(outcomes), "failed": len(failed)},
        )

    return check


OUTCOMES = [_every_cell_was_measured(sweep, asset) for sweep, asset in BENCHMARKS.items()]
