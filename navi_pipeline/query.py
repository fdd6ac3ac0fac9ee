"""`navi query`: ingest, ask, print."""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.errors import RecordError
from navi_pipeline.lib.sql_files import saved_queries, sql_folder
from navi_pipeline.lib.warehouse import Warehouse

if TYPE_CHECKING:
    import pandas

__all__ = ["print_frame", "records", "run_query"]


def run_query(sql: str | None, *, as_json: bool = False, rebuild: bool = False, home: Path | None = None) -> None:
    """Fold new segments in, run `sql` (or the saved query of that name) and print the answer.

    Args:
        sql: DuckDB SQL, a saved query's name, or None to list what there is.
        as_json: Print JSON only.
        rebuild: Make the database anew from `outbox/done` first.
        home: Navi home; by default `navi_home()`.

    Raises:
        RecordError: The query or the ingest failed, or a single word is no saved query.
    """
    warehouse = Warehouse(home)
    report = warehouse.rebuild() if rebuild else warehouse.ingest()
    for name, reason in report.quarantined.items():
        print(f"quarantined {name}: {reason}", file=sys.stderr)  # noqa: T201
    saved = saved_queries(sql_folder())
    if sql is None:
        _print_overview(warehouse, {name: query.explanation for name, query in saved.items()}, as_json)
        return
    if sql.strip() in saved:
        sql = saved[sql.strip()].sql
    elif re.fullmatch(r"[\w-]+", sql.strip()):
        raise RecordError(_unknown(sql.strip(), list(saved), warehouse))
    frame = warehouse.query(sql)
    if as_json:
        print(json.dumps(records(frame), default=str))  # noqa: T201
    else:
        print_frame(frame)


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as JSON data: missing and non-finite numbers become null, times ISO 8601."""
    return [{str(name): _plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def print_frame(frame: pandas.DataFrame) -> None:
    """Print a frame as a table for people, on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_edge=False, header_style="bold")
    for name in frame.columns:
        table.add_column(str(name), overflow="fold")
    for row in records(frame):
        table.add_row(*("" if value is None else _text(value) for value in row.values()))
    Console(width=None if sys.stdout.isatty() else 200, markup=False).print(table)
    if frame.empty:
        print("no rows", file=sys.stderr)  # noqa: T201


def _unknown(word: str, saved: list[str], warehouse: Warehouse) -> str:
    """Return what to ask instead of a word that is no saved query."""
    views, tables = warehouse.relations()
    if word in (*views, *tables):
        return f'{word} is no saved query, but a view or table; ask: navi query "select * from {word}"'
    near = difflib.get_close_matches(word, saved, n=1)
    meant = f"; did you mean {near[0]}?" if near else ";"
    return f"no saved query {word!r}{meant} There are: {', '.join(saved)}"


def _print_overview(warehouse: Warehouse, saved: dict[str, str], as_json: bool) -> None:
    views, tables = warehouse.relations()
    if as_json:
        print(json.dumps({"views": views, "tables": tables, "queries": saved}))  # noqa: T201
        return
    print('navi query "select … "   or   navi query NAME')  # noqa: T201
    print(f"views    {', '.join(views)}")  # noqa: T201
    print(f"tables   {', '.join(tables)}")  # noqa: T201
    for name, explanation in saved.items():
        print(f"query    {name:<24} {explanation}")  # noqa: T201


def _plain(value: Any) -> Any:
    import pandas

    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if hasattr(value, "tolist") and not isinstance(value, pandas.Timestamp):
        return _plain(value.tolist())
    if pandas.isna(value):
        return None
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
