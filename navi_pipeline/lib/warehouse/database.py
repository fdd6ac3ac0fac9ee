"""How Navi opens a DuckDB file: in UTC, and with what to do where it cannot be opened or written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

__all__ = ["open_database", "remedy"]

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
