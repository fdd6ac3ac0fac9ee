"""CLI command `navi query`: ingest new segments, run SQL on the warehouse, print the result."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.errors import ConfigError, RecordError, did_you_mean, printable
from navi_core.terminal import print_table
from navi_pipeline.lib.warehouse.database import sql_folder
from navi_pipeline.lib.warehouse.history import History
from navi_pipeline.lib.warehouse.reader import (
    Reader,
    SavedQuery,
    allowed_parameters,
    records,
    saved_queries,
    saved_query,
)
from navi_pipeline.lib.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    import pandas

_PIPE = 10_000
"""Width of a table that no terminal shows [characters]."""


def run_query(
    sql: str | None,
    words: Sequence[str] = (),
    *,
    as_json: bool = False,
    as_csv: bool = False,
    rebuild: bool = False,
    verify: bool = False,
    home: Path | None = None,
    history: Path | None = None,
    course: str | None = None,
) -> None:
    """Ingest new segments, run `sql` (or the saved query of that name) and print the result.

    Args:
        sql: DuckDB SQL; a saved query's name; a table or view, whose columns are then explained; or None to list
            what there is.
        words: Parameters, `key=value`, or values in the order in which the saved query lists them.
        as_json: Print JSON only.
        as_csv: Print the answer as CSV: missing and non-finite numbers empty.
        rebuild: Make the database anew from `outbox/done` first.
        verify: Compare database, snapshot, archive and segments, and print the counts in place of an answer.
        home: Navi home; by default `navi_home()`.
        history: Folder of a published history to read in place of a home.
        course: Course that rankings are about, by name or hash; by default the pinned one.

    Raises:
        ConfigError: Both JSON and CSV are asked for, or a home and a history.
        RecordError: The query or the ingest failed, a parameter is unknown, or a single word is neither a saved query
            nor a table or view.
    """
    if as_json and as_csv:
        raise ConfigError("--json and --csv are two ways to print one answer; give one of them")
    if history is not None and (rebuild or verify or home is not None):
        raise ConfigError(
            "--history reads what several homes have published; give it without --home, --rebuild and --verify"
        )
    if verify and sql is not None:
        raise ConfigError("--verify compares the whole warehouse; give it without a query")
    source: Reader = Warehouse(home) if history is None else History(history)
    if isinstance(source, Warehouse):
        report = source.rebuild() if rebuild else source.refresh()
        notes = [f"nothing is folded in: {report.not_folded}"] * bool(report.not_folded)
        for note in notes + [f"quarantined {name}: {reason}" for name, reason in report.quarantined.items()]:
            print(note, file=sys.stderr)  # noqa: T201
        if verify:
            _print_verified(source, as_json)
            return
    if sql is None:
        _print_overview(source, as_json, as_csv)
        return
    saved = saved_query(sql)
    if saved is None and re.fullmatch(r"[\w-]+", sql.strip()):
        _print_relation(sql.strip(), source, as_json, as_csv)
        return
    values = _parameters(saved, words) | ({} if course is None else {"course": course})
    _print_answer(source.query(sql, values=values), as_json, as_csv)


def _parameters(saved: SavedQuery | None, words: Sequence[str]) -> dict[str, str]:
    """Return the parameters of a query by name."""
    values = dict(re.findall(r"^(\w+)=(.*)$", word, re.DOTALL)[0] for word in words if re.match(r"\w+=", word))
    plain = [word for word in words if not re.match(r"\w+=", word)]
    names = [name for name in saved.parameters if name not in values] if saved else []
    if len(plain) > len(names):
        allowed = allowed_parameters(saved) if saved else "SQL takes key=value, read as getvariable('key')"
        raise RecordError(f"{plain[len(names)]!r} belongs to no parameter; {allowed}")
    return values | dict(zip(names, plain, strict=False))


def _print_verified(warehouse: Warehouse, as_json: bool) -> None:
    """Compare the warehouse with its archive and segments, print the counts, and raise where they differ."""
    found = warehouse.verify()
    differ = {
        table: {name: count for name, count in counts.items() if name != "rows" and count}
        for table, counts in found.items()
    }
    if as_json:
        print(json.dumps(found))  # noqa: T201
    else:
        rows = [[table, f"{counts['rows']:,}", _differences(differ[table])] for table, counts in found.items()]
        print_table(str(warehouse.folder), ["table", "rows of archive and segments", "database, snapshot"], rows)
    if wrong := {table: counts for table, counts in differ.items() if counts}:
        reasons = "; ".join(f"{table}: {_differences(counts)}" for table, counts in wrong.items())
        raise RecordError(f"the warehouse differs from its archive and segments: {reasons}; next: navi query --rebuild")


def _differences(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace(' ', ' in the ', 1)}" for name, count in counts.items()) or "the same"


def _print_answer(frame: pandas.DataFrame, as_json: bool, as_csv: bool) -> None:
    if as_json:
        print(json.dumps(records(frame)))  # noqa: T201
    elif as_csv:
        rows = ([_plain(value) for value in row.values()] for row in records(frame))
        csv.writer(sys.stdout).writerows([map(_plain, frame.columns), *rows])
    else:
        print_frame(frame)


def _plain(value: object) -> object:
    """Return a value of a CSV file, texts without characters that steer a terminal: names come from other people."""
    return printable(value, "\n\t") if isinstance(value, str) else value


def print_frame(frame: pandas.DataFrame) -> None:
    """Print a data frame on standard output as a table; on a terminal too narrow for it without middle columns."""
    # Names in the rows are other people's.
    names = [printable(str(name)) for name in frame.columns]
    answer = records(frame)
    rows = [[printable(_text(value), "\n") for value in row.values()] for row in answer]
    numbers = [
        place
        for place, name in enumerate(frame.columns)
        if all(isinstance(row[str(name)], int | float | None) for row in answer)
    ]
    # Lines for a file or a pager may be as long as they are.
    print_table(None, names, rows, numbers=numbers, edge=False, width=None if sys.stdout.isatty() else _PIPE)
    if frame.empty:
        print("no rows", file=sys.stderr)  # noqa: T201


def _print_relation(word: str, warehouse: Reader, as_json: bool, as_csv: bool) -> None:
    """Print the description and columns of a table or view; raise with suggestions if there is none of that name."""
    views, tables = warehouse.relations()
    if word not in (*views, *tables):
        names = [*saved_queries(sql_folder()), *views, *tables]
        raise RecordError(
            f"no saved query, view or table {word!r}; {did_you_mean(word, names)}next: navi warehouse list"
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


def _print_overview(warehouse: Reader, as_json: bool, as_csv: bool) -> None:
    views, tables = warehouse.relations()
    known = saved_queries(sql_folder())
    saved = {name: query.explanation for name, query in known.items()}
    if as_json:
        print(json.dumps({"views": views, "tables": tables, "queries": saved}))  # noqa: T201
    elif as_csv:
        rows = [*(("view", name, "") for name in views), *(("table", name, "") for name in tables)]
        rows += [("query", name, explanation) for name, explanation in saved.items()]
        csv.writer(sys.stdout).writerows([("kind", "name", "explanation"), *rows])
    else:
        print(  # noqa: T201
            'navi query "select … "   or   navi query QUERY [key=value …]   or, what its columns mean,   '
            "navi query VIEW",
            f"views    {', '.join(views)}",
            f"tables   {', '.join(tables)}",
            sep="\n",
        )
        for name, query in known.items():
            words = (f"\n{'':<39} {word}=…  {meaning}" for word, meaning in query.parameters.items())
            print(f"query    {name:<30} {query.explanation}", *words, sep="")  # noqa: T201


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    return str(value)
