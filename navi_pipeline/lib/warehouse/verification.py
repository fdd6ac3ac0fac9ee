"""Verification of a warehouse: its rows against a database that is folded anew from archive and segments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.record.metric_log import NATURAL_KEYS
from navi_pipeline.lib.warehouse.database import number_of, quoted
from navi_pipeline.lib.warehouse.outbox import batches, fold_segments, read_segment, table_columns

if TYPE_CHECKING:
    import duckdb

_TABLES = (*NATURAL_KEYS, "segments")


def fold_anew(connection: duckdb.DuckDBPyConnection, files: list[Path]) -> None:
    """Fold ingested segments into a database that holds the archive's rows; no file is moved.

    Raises:
        RecordError: A segment was changed since it was ingested.
    """
    columns = table_columns(connection)
    known = {name for (name,) in connection.execute("select name from segments").fetchall()}
    for batch in batches([file for file in files if file.name not in known]):
        connection.execute("begin")
        fold_segments(connection, [read_segment(file, columns) for file in batch], columns)
        connection.execute("commit")


def compare(connection: duckdb.DuckDBPyConnection, others: dict[str, Path]) -> dict[str, dict[str, int]]:
    """Compare the tables of a freshly folded database with those of other databases, row by row.

    Args:
        connection: The fresh database.
        others: Name → file.

    Returns:
        Table → `rows` (of the fresh one), and for each name `missing <name>` and `extra <name>`; empty tables left out.
    """
    tables = [name for (name,) in connection.execute("select table_name from duckdb_tables()").fetchall()]
    found: dict[str, dict[str, int]] = {}
    for name, file in others.items():
        connection.execute(f"attach {quoted(file)} as other (read_only)")
        for table in (table for table in _TABLES if table in tables):
            ours, theirs = (f"select {_COLUMNS.get(table, '*')} from {place}{table}" for place in ("", "other."))
            counts = found.setdefault(table, {"rows": number_of(connection.execute(f"select count(*) from ({ours})"))})
            digests = [_digest(connection, rows) for rows in (ours, theirs)]
            for word, one, two in (("missing", ours, theirs), ("extra", theirs, ours)):
                differing = f"select count(*) from ({one} except all {two})"
                counts[f"{word} {name}"] = 0 if digests[0] == digests[1] else number_of(connection.execute(differing))
        connection.execute("detach other")
    return {table: counts for table, counts in found.items() if any(counts.values())}


_COLUMNS = {"segments": "* exclude (ingested_at)"}
"""Columns that are compared, where not all are: the time of an ingest is not a fact of the segment."""


def _digest(connection: duckdb.DuckDBPyConnection, rows: str) -> tuple[int, int]:
    """Return the number of rows and a sum of their hashes, which no order changes."""
    text = f"select count(*), coalesce(sum(hash(each)::hugeint), 0) from ({rows}) each"
    counted = connection.execute(text).fetchone()
    return counted or (0, 0)
