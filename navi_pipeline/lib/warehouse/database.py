"""DuckDB connections in UTC, remedies for their faults, and counts of duplicate keys."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.record.metric_log import NATURAL_KEYS

if TYPE_CHECKING:
    import duckdb
    import pandas

_CLOSED: dict[str, Any] = {"enable_external_access": False}
"""A reader's query reads the file alone: no other files, no extensions from the network, no COPY … TO."""


def open_database(file: Path | str, *, reader: bool = False) -> duckdb.DuckDBPyConnection:
    """Open a database in UTC.

    The time of every row is UTC without a zone, while `now()::timestamp` is the time of the session's zone: by
    default that of the machine, so that an age would be hours off.

    Args:
        file: The database.
        reader: Only to be read, and nothing beside it.

    Raises:
        duckdb.Error: It cannot be opened.
    """
    import duckdb

    connection = duckdb.connect(str(file), read_only=reader, config=_CLOSED if reader else {})
    try:
        connection.execute("set TimeZone = 'UTC'")
    except BaseException:
        connection.close()
        raise
    return connection


def remedy(error: BaseException, otherwise: str) -> str:
    """Return what to do about a fault of a database.

    Args:
        error: What DuckDB or the system raised.
        otherwise: What to do where the file itself is to blame.
    """
    text = str(error)
    if "lock" in text and (holder := re.search(r"PID (\d+)", text)):
        return f"close process {holder[1]}, which has the file open, and try again; nothing is lost"
    if "No space left" in text or "Disk quota exceeded" in text:
        return "free space on its disk and try again; nothing is lost"
    if "same database file with a different configuration" in text:
        return "close the connection that this program holds to the file, and try again; nothing is lost"
    if "Permission denied" in text or "Read-only file system" in text:
        return "let this user write there, and try again; nothing is lost"
    return otherwise


_PIECE = 2_000_000
"""Rows of a piece: a set of keys takes about a hundred bytes of each."""


def count_duplicate_keys(
    ask: Callable[[str, list[Any] | None], pandas.DataFrame], table: str, *, piece_rows: int = _PIECE
) -> int:
    """Return how many rows of a table have the natural key of another.

    Args:
        ask: Answers SQL, of `Warehouse.reader`.
        table: The table.
        piece_rows: About how many keys are held at a time.

    Raises:
        RecordError: There is no such table.
    """
    keys = NATURAL_KEYS[table]
    together = ", ".join(keys)
    pieces = 1 + int(ask(f"select count(*) as n from {table}", None)["n"][0]) // piece_rows
    # By the number in the key, whose hash costs a tenth of that of texts: a long run is divided, too, and equal keys
    # meet in one piece. Grouped rather than counted as distinct, which would pass over keys without a run.
    sql = (
        f"select coalesce(sum(n - 1), 0) as n from "
        f"(select count(*) as n from {table} where hash({keys[1]}) % ? = ? group by {together} having count(*) > 1)"
    )
    return sum(int(ask(sql, [pieces, piece])["n"][0]) for piece in range(pieces))


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as JSON data: missing and non-finite numbers become null, times ISO 8601."""
    return [{str(name): _plain(value) for name, value in row.items()} for row in frame.to_dict("records")]


def _plain(value: object) -> object:
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
