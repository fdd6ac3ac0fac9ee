"""CLI command `navi query`: ingest new segments, run SQL on the warehouse, print the result."""

from __future__ import annotations

import csv
import difflib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.errors import ConfigError, RecordError, printable
from navi_pipeline.lib.warehouse.database import records, saved_queries, sql_folder
from navi_pipeline.lib.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    import pandas

_HEAD, _FOLDED = 8, 30
"""Minimum width of a column for its name, and maximum width before a longer text is folded [characters]."""


def run_query(
    sql: str | None,
    *,
    as_json: bool = False,
    as_csv: bool = False,
    rebuild: bool = False,
    home: Path | None = None,
) -> None:
    """Ingest new segments, run `sql` (or the saved query of that name) and print the result.

    Args:
        sql: DuckDB SQL; a saved query's name; a table or view, whose columns are then explained; or None to list
            what there is.
        as_json: Print JSON only.
        as_csv: Print the answer as CSV: missing and non-finite numbers empty.
        rebuild: Make the database anew from `outbox/done` first.
        home: Navi home; by default `navi_home()`.

    Raises:
        ConfigError: Both JSON and CSV are asked for.
        RecordError: The query or the ingest failed, or a single word is neither a saved query nor a table or view.
    """
    if as_json and as_csv:
        raise ConfigError("--json and --csv are two ways to print one answer; give one of them")
    warehouse = Warehouse(home)
    report = warehouse.rebuild() if rebuild else warehouse.refresh()
    if report.not_folded:
        print(f"nothing is folded in: {report.not_folded}", file=sys.stderr)  # noqa: T201
    for name, reason in report.quarantined.items():
        print(f"quarantined {name}: {reason}", file=sys.stderr)  # noqa: T201
    saved = saved_queries(sql_folder())
    if sql is None:
        _print_overview(warehouse, {name: query.explanation for name, query in saved.items()}, as_json, as_csv)
        return
    if sql.strip() in saved:
        sql = saved[sql.strip()].sql
    elif re.fullmatch(r"[\w-]+", sql.strip()):
        _print_relation(sql.strip(), list(saved), warehouse, as_json, as_csv)
        return
    _print_answer(warehouse.query(sql), as_json, as_csv)


def _print_answer(frame: pandas.DataFrame, as_json: bool, as_csv: bool) -> None:
    if as_json:
        print(json.dumps(records(frame), default=str))  # noqa: T201
    elif as_csv:
        csv.writer(sys.stdout).writerows([frame.columns, *(row.values() for row in records(frame))])
    else:
        print_frame(frame)


def print_frame(frame: pandas.DataFrame) -> None:
    """Print a data frame on standard output: as a table, or row by row if the table is too wide."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    # Names in the rows are other people's; those of far scripts take two columns a letter.
    names = [printable(str(name)) for name in frame.columns]
    rows = [[printable(_text(value), "\n") for value in row.values()] for row in records(frame)]
    columns = zip(*rows) if rows else [()] * len(names)
    widths = [max([cell_len(line) for text in texts for line in text.split("\n")], default=0) for texts in columns]
    heads = [_broken(name, max(width, _HEAD)) for name, width in zip(names, widths)]
    # A long text may be folded; numbers, times and names in pieces could not be read.
    least = [max(min(width, _FOLDED), *map(len, head.splitlines())) for width, head in zip(widths, heads)]
    wanted = sum(least) + 3 * len(least)
    # Lines for a file or a pager may be as long as they are.
    console = Console(width=None if sys.stdout.isatty() else max(wanted, 200), markup=False)
    if rows and wanted > console.width:
        for number, row in enumerate(rows, start=1):
            table = Table(show_edge=False, show_header=False, title=f"row {number}", title_justify="left")
            # Folded, not cut: nothing of what was asked for is left out.
            table.add_column(overflow="fold")
            table.add_column(overflow="fold")
            for name, value in zip(names, row):
                table.add_row(name, value)
            console.print(table)
    else:
        table = Table(show_edge=False, header_style="bold")
        for head, width in zip(heads, least):
            table.add_column(head, overflow="fold", min_width=width)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if frame.empty:
        print("no rows", file=sys.stderr)  # noqa: T201


def _broken(name: str, width: int) -> str:
    """Wrap a column name at underscores into lines of at most `width` characters."""
    lines = [""]
    for part in re.findall("[^_]*_|[^_]+", name):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _print_relation(word: str, saved: list[str], warehouse: Warehouse, as_json: bool, as_csv: bool) -> None:
    """Print the description and columns of a table or view; raise with suggestions if there is none of that name."""
    views, tables = warehouse.relations()
    if word not in (*views, *tables):
        near = difflib.get_close_matches(word, [*saved, *views, *tables], n=1)
        meant = f"; did you mean {near[0]}?" if near else ";"
        raise RecordError(
            f"no saved query, view or table {word!r}{meant} There are: {', '.join([*saved, *views, *tables])}"
        )
    columns = warehouse.query(
        'select column_name as "column", lower(data_type) as type, comment as meaning from duckdb_columns() '
        "where table_name = ? and not internal order by column_index",
        [word],
    )
    if as_json or as_csv:
        _print_answer(columns, as_json, as_csv)
        return
    about = warehouse.query(
        "select comment from duckdb_tables() where table_name = ? union all "
        "select comment from duckdb_views() where view_name = ?",
        [word, word],
    )
    print(about["comment"][0])  # noqa: T201
    print_frame(columns)
    print(f'navi query "select * from {word}"')  # noqa: T201


def _print_overview(warehouse: Warehouse, saved: dict[str, str], as_json: bool, as_csv: bool) -> None:
    views, tables = warehouse.relations()
    if as_json:
        print(json.dumps({"views": views, "tables": tables, "queries": saved}))  # noqa: T201
        return
    if as_csv:
        rows = [("view", name, "") for name in views] + [("table", name, "") for name in tables]
        rows += [("query", name, explanation) for name, explanation in saved.items()]
        csv.writer(sys.stdout).writerows([("kind", "name", "explanation"), *rows])
        return
    listed = [f"query    {name:<24} {explanation}" for name, explanation in saved.items()]
    print(  # noqa: T201
        'navi query "select … "   or   navi query QUERY   or, what its columns mean,   navi query VIEW',
        f"views    {', '.join(views)}",
        f"tables   {', '.join(tables)}",
        *listed,
        sep="\n",
    )


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    return str(value)
