"""Warehouse asset: all rows of all stages."""

from collections.abc import Callable
from typing import Any

import dagster as dg

from navi_pipeline.defs.benchmarks.assets import BENCHMARKS
from navi_pipeline.defs.corpus.assets import OWNERS
from navi_pipeline.defs.evaluation.assets import leaderboard
from navi_pipeline.defs.promotion.assets import promoted_model
from navi_pipeline.defs.studies.assets import study
from navi_pipeline.lib.orchestration.clock import worked
from navi_pipeline.lib.records.documents import content_key
from navi_pipeline.lib.reports.pages import markdown_table
from navi_pipeline.lib.warehouse.warehouse import Warehouse


@dg.asset(
    group_name="warehouse",
    kinds={"duckdb"},
    owners=OWNERS,
    code_version="1",
    deps=[leaderboard, promoted_model, *BENCHMARKS.values(), study],
    description="Where it ends: every number of every stage as a row of one DuckDB file, ready for SQL "
    "(navi query). Folds in what producers have written since, and counts all rows.",
)
@worked
def warehouse(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """Fold everything in and count it."""
    metadata, version = folded_in(context.log.warning)
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(version))


def folded_in(warn: Callable[..., None]) -> tuple[dict[str, Any], str]:
    """Fold everything in; return what the warehouse shows, and its data version.

    Args:
        warn: Called with every segment in quarantine.
    """
    store = Warehouse()
    report = store.ingest()
    for name, reason in report.quarantined.items():
        warn("%s is in quarantine: %s", name, reason)
    views, tables = store.relations()
    counts = {name: int(store.query(f"select count(*) as n from {name}")["n"][0]) for name in tables}
    rows = [{"table": name, "rows": number} for name, number in counts.items()]
    metadata = {
        "rows": sum(counts.values()),
        "folded_in_now": report.rows,
        "quarantined": len(list(store.quarantine.glob("*.ndjson"))),
        "megabytes": store.snapshot.stat().st_size / 1e6,
        "views": ", ".join(views),
        "table": dg.MetadataValue.md(markdown_table(rows)),
        "database": dg.MetadataValue.path(str(store.snapshot)),
    }
    return metadata, content_key(counts)
