"""Warehouse asset and checks: the DuckDB database of all rows of all stages."""

from collections.abc import Callable
from typing import Any

import dagster as dg

from navi_core.record.metric_log import UNINDEXED_TABLES
from navi_pipeline.defs.corpus import OWNERS
from navi_pipeline.defs.evaluation import leaderboard, promoted_model
from navi_pipeline.defs.experiments import BENCHMARKS, study
from navi_pipeline.defs.partitions import DAILY, WHEN_SETTLED
from navi_pipeline.defs.resources import WarehouseResource
from navi_pipeline.lib.orchestration import materialized, worked
from navi_pipeline.lib.records import content_key
from navi_pipeline.lib.reports.pages import markdown_table
from navi_pipeline.lib.warehouse.database import count_duplicate_keys
from navi_pipeline.lib.warehouse.warehouse import Warehouse


@dg.asset(
    group_name="warehouse",
    kinds={"duckdb"},
    owners=OWNERS,
    code_version="1",
    freshness_policy=DAILY,
    automation_condition=WHEN_SETTLED,
    deps=[leaderboard, promoted_model, *BENCHMARKS.values(), study],
    description="Warehouse: every number of every stage as a row of one DuckDB file (navi query). Folds in new "
    "segments and counts all rows.",
)
@worked
def warehouse(context: dg.AssetExecutionContext, warehouse: WarehouseResource) -> dg.MaterializeResult[None]:
    """Ingest all waiting segments and report the row counts of every table."""
    return materialized(*folded_in(warehouse.open(), context.log.warning))


def folded_in(store: Warehouse, warn: Callable[..., None]) -> tuple[dict[str, Any], str]:
    """Ingest all waiting outbox segments into DuckDB; return the asset's metadata and data version.

    Args:
        store: The warehouse.
        warn: Called with every segment in quarantine.
    """
    report = store.ingest()
    for name, reason in report.quarantined.items():
        warn("%s is in quarantine: %s", name, reason)
    views, tables = store.relations()
    counts = {name: int(store.query(f"select count(*) as n from {name}")["n"][0]) for name in tables}
    columns = store.query(
        "select table_name, column_name as name, data_type as type, coalesce(comment, '') as description "
        "from duckdb_columns() where not internal"
    ).to_dict("records")
    metadata = {
        "rows": sum(counts.values()),
        "folded_in_now": report.rows,
        "quarantined": len(list(store.quarantine.glob("*.ndjson"))),
        "megabytes": store.snapshot.stat().st_size / 1e6,
        "views": ", ".join(views),
        "table": dg.MetadataValue.md(markdown_table([{"table": name, "rows": n} for name, n in counts.items()])),
        "database": dg.MetadataValue.path(str(store.snapshot)),
        **{f"schema_{name}": _schema(name, columns) for name in tables},
    }
    return metadata, content_key(counts)


def _schema(table: str, columns: list[dict[Any, Any]]) -> dg.TableSchemaMetadataValue:
    """Return the columns of a table with type and meaning."""
    own = [dg.TableColumn(c["name"], c["type"], c["description"]) for c in columns if c["table_name"] == table]
    return dg.MetadataValue.table_schema(dg.TableSchema(own))


@dg.asset_check(asset=warehouse, description="No segment was refused.")
@worked
def nothing_in_quarantine(warehouse: WarehouseResource) -> dg.AssetCheckResult:
    """Check that no segment is in quarantine."""
    names = sorted(path.name for path in warehouse.open().quarantine.glob("*.ndjson"))
    return dg.AssetCheckResult(
        passed=not names,
        severity=dg.AssetCheckSeverity.WARN,
        description=", ".join(names[:5]) or "nothing there",
        metadata={"segments": len(names)},
    )


@dg.asset_check(asset=warehouse, description="No two rows of metrics or stage timings share their natural key.")
@worked
def every_row_counts_once(warehouse: WarehouseResource) -> dg.AssetCheckResult:
    """Check that no two rows share a natural key, in the tables without a unique index."""
    with warehouse.open().reader() as ask:
        doubled = {table: count_duplicate_keys(ask, table) for table in UNINDEXED_TABLES}
    return dg.AssetCheckResult(passed=not any(doubled.values()), metadata=doubled)
