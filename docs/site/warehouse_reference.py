"""Pages of the warehouse and of the asset graph, generated from SQL files and Dagster's definitions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

from reference import code, table


def pages() -> dict[str, str]:
    """Return the pages of tables, views and queries, and of assets, checks and jobs."""
    return {
        "reference/sql.md": "\n\n".join(_sql()) + "\n",
        "reference/assets.md": "\n\n".join(_assets()) + "\n",
    }


def _sql() -> Iterator[str]:
    from navi_pipeline.lib.warehouse.database import sql_folder
    from navi_pipeline.lib.warehouse.reader import saved_queries
    from navi_pipeline.lib.warehouse.warehouse import Warehouse

    with tempfile.TemporaryDirectory() as home:
        warehouse = Warehouse(home)
        warehouse.ingest()
        parts = warehouse.query(
            "select table_name as name, comment, 'table' as kind from duckdb_tables() where not internal "
            "union all select view_name, comment, 'view' from duckdb_views() where not internal order by name"
        ).to_dict("records")
        columns = warehouse.query(
            "select table_name, column_name, data_type, comment from duckdb_columns() where not internal "
            "order by table_name, column_index"
        ).to_dict("records")
    yield "# Tables, views and queries"
    yield (
        "This page is for everyone who asks the warehouse. `navi query NAME` runs a saved query or explains a table or "
        'view; `navi query "select …"` runs SQL. [The warehouse](../concepts/warehouse.md) explains how rows get there.'
    )
    yield "## Saved queries"
    rows = [
        (code(each.name), each.explanation, "; ".join(f"{code(key)}: {text}" for key, text in each.parameters.items()))
        for each in saved_queries(sql_folder()).values()
    ]
    yield table(("query", "answer", "parameters"), rows)
    for kind in ("table", "view"):
        yield f"## {kind.capitalize()}s"
        for part in parts:
            if part["kind"] != kind:
                continue
            held = [each for each in columns if each["table_name"] == part["name"]]
            yield f"### {part['name']}"
            yield str(part["comment"] or "")
            rows = [(code(each["column_name"]), each["data_type"], each["comment"] or "") for each in held]
            yield table(("column", "type", "meaning"), rows)


def _assets() -> Iterator[str]:
    from navi_pipeline.definitions import defs

    found = defs()
    repository = found.get_repository_def()
    yield "# Assets, checks and jobs"
    yield (
        "This page is for users of the Dagster UI. `dg list defs` prints the same. "
        "[The pipeline](../concepts/pipeline.md) explains the graph."
    )
    groups: dict[str, list[Any]] = {}
    for spec in found.resolve_all_asset_specs():
        groups.setdefault(spec.group_name or "default", []).append(spec)
    for group, specs in sorted(groups.items()):
        yield f"## Assets: {group}"
        rows = [
            (code(spec.key.to_user_string()), spec.description or "", _partitions(spec), ", ".join(sorted(spec.kinds)))
            for spec in sorted(specs, key=lambda spec: spec.key)
        ]
        yield table(("asset", "description", "partitions", "kinds"), rows)
    yield "## Checks"
    specs = [spec for one in found.resolve_asset_graph().assets_defs for spec in one.check_specs]
    rows = [
        (code(spec.asset_key.to_user_string()), code(spec.name), spec.description or "", "yes" if spec.blocking else "")
        for spec in sorted(specs, key=lambda spec: (spec.asset_key.to_user_string(), spec.name))
    ]
    yield table(("asset", "check", "description", "blocks"), rows)
    yield "## Jobs"
    jobs = [job for job in repository.get_all_jobs() if not job.name.startswith("__")]
    yield table(("job", "description"), [(code(job.name), job.description or "") for job in jobs])
    yield "## Schedules"
    rows = [(code(each.name), code(each.cron_schedule), each.description or "") for each in repository.schedule_defs]
    yield table(("schedule", "cron", "description"), rows)
    yield "## Sensors"
    rows = [(code(each.name), each.minimum_interval_seconds, each.description or "") for each in repository.sensor_defs]
    yield table(("sensor", "interval (s)", "description"), rows)


def _partitions(spec: Any) -> str:  # noqa: ANN401 - an AssetSpec of Dagster
    definition = spec.partitions_def
    if definition is None:
        return ""
    return getattr(definition, "name", None) or type(definition).__name__.removesuffix("PartitionsDefinition").lower()
