"""Checks of the warehouse."""

import dagster as dg

from navi_core.record.metric_log import UNINDEXED_TABLES
from navi_pipeline.defs.warehouse.assets import warehouse
from navi_pipeline.lib.orchestration.clock import worked
from navi_pipeline.lib.warehouse.database import count_duplicate_keys
from navi_pipeline.lib.warehouse.warehouse import Warehouse


@dg.asset_check(asset=warehouse, description="No segment was refused.")
@worked
def nothing_in_quarantine() -> dg.AssetCheckResult:
    """Look into the quarantine."""
    names = sorted(path.name for path in Warehouse().quarantine.glob("*.ndjson"))
    return dg.AssetCheckResult(
        passed=not names,
        severity=dg.AssetCheckSeverity.WARN,
        description=", ".join(names[:5]) or "nothing there",
        metadata={"segments": len(names)},
    )


@dg.asset_check(asset=warehouse, description="No two rows of metrics or stage timings share their natural key.")
@worked
def every_row_counts_once() -> dg.AssetCheckResult:
    """Count the keys of the tables that the writer alone keeps unique."""
    with Warehouse().reader() as ask:
        doubled = {table: count_duplicate_keys(ask, table) for table in UNINDEXED_TABLES}
    return dg.AssetCheckResult(passed=not any(doubled.values()), metadata=doubled)
