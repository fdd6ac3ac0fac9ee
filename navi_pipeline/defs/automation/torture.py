"""Nightly torture campaign: an asset whose rows are in the warehouse, its check, job and schedule."""

import json
import sys
from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from navi_core.errors import RunError
from navi_pipeline.defs.corpus import OWNERS
from navi_pipeline.lib.commands import reporting
from navi_pipeline.lib.orchestration import POOL, record_check, worked_as
from navi_pipeline.lib.training.supervised import run_supervised
from navi_pipeline.lib.warehouse.warehouse import Warehouse


class TortureSettings(dg.Config):
    """Run config of the torture campaign."""

    seconds: float = Field(default=3600.0, gt=0, description="Time after which no further case begins (s).")


@dg.asset(
    group_name="nights",
    kinds={"duckdb"},
    owners=OWNERS,
    code_version="1",
    pool=POOL,
    required_resource_keys={"home"},
    check_specs=[dg.AssetCheckSpec("nothing_lost", asset="torture")],
    description="Faults injected into Navi's commands for an hour a night, in separate homes: kills, failing "
    "writes, full disks, clock jumps. The campaign resumes each night. Its sums are rows of the table benchmarks.",
)
def torture(context: dg.AssetExecutionContext, config: TortureSettings) -> Iterator[dg.MaterializeResult[None]]:
    """Resume the torture campaign for a time."""
    command = [sys.executable, "-m", "navi_core.cli.main", "bench", "torture", "--json", "--seconds"]
    with worked_as("torture"):
        code, output, last = run_supervised([*command, str(config.seconds)], on_line=reporting(context.log.info))
    found = json.loads(output) if output.strip() else {"faults": ()}
    if code and not found["faults"]:
        raise RunError(f"the campaign ended with exit code {code}: {' '.join(last[-3:])}")
    Warehouse().ingest()
    sums = {name: sum(row[name] for row in found["rows"]) for name in ("cases", "kills", "injected", "faults")}
    check = dg.AssetCheckResult(
        check_name="nothing_lost",
        passed=not sums["faults"],
        description="; ".join(found["faults"][:5]) or f"{sums['cases']} cases, {sums['kills']} kills: nothing lost",
    )
    record_check(check)
    yield dg.MaterializeResult(metadata=sums, check_results=[check])


torture_job = dg.define_asset_job(
    "torture_campaign",
    dg.AssetSelection.assets(torture),
    description="An hour of the torture campaign: kills, failing writes, full disks, odd machines.",
)
torture_schedule = dg.ScheduleDefinition(
    name="torture_schedule",
    job=torture_job,
    cron_schedule="0 4 * * *",
    execution_timezone="UTC",
    description="The torture campaign goes on for an hour at 04:00 UTC.",
)
