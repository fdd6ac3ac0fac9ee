"""Checks of sweeps."""

import dagster as dg

from navi_pipeline.defs.benchmarks.assets import BENCHMARKS
from navi_pipeline.defs.partitions import size_partitions
from navi_pipeline.lib.orchestration import worked_as
from navi_pipeline.lib.sweeps.perform import read_sweep


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
