"""DuckDB connections in UTC, remedies for their faults, and the readers' copy of the database.

The copy is replaced in one step and written by nobody else. A program that opens it for writing leaves a write-ahead
log beside it when it is killed. DuckDB replays the log of whatever file has the name, and refuses the next copy with
it, so a log there is a fault of its own.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.errors import RecordError
from navi_core.record.durable import fsync_directory
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


def number_of(answer: duckdb.DuckDBPyConnection) -> int:
    """Return the one number of an answer; 0 where it has none."""
    row = answer.fetchone()
    return int(row[0]) if row and row[0] is not None else 0


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


def write_ahead_log(database: Path) -> Path:
    """Return where DuckDB keeps the write-ahead log of a database."""
    return Path(f"{database}.wal")


def publish(database: Path, snapshot: Path) -> None:
    """Give the readers a copy of the database; the caller holds the warehouse's lock.

    Raises:
        RecordError: It cannot be written.
    """
    # Not `read.duckdb.tmp`: that is the folder where DuckDB puts what a large question spills.
    temporary = Path(f"{snapshot}.new")
    try:
        temporary.unlink(missing_ok=True)
        shutil.copyfile(database, temporary)
        held = database.stat()
        with temporary.open("rb") as copy:
            os.fsync(copy.fileno())
        # Nobody is to write here, and a copy that somebody wrote to is known by its time.
        temporary.chmod(stat.S_IMODE(temporary.stat().st_mode) & 0o444)
        os.utime(temporary, ns=(held.st_atime_ns, held.st_mtime_ns))
        # Before, so that no reader finds the new copy with an old log; after, since a writer of the old copy may
        # have begun one meanwhile.
        write_ahead_log(snapshot).unlink(missing_ok=True)
        os.replace(temporary, snapshot)
        write_ahead_log(snapshot).unlink(missing_ok=True)
        fsync_directory(snapshot.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RecordError(f"cannot write the readers' snapshot {snapshot}: {error}") from error


def is_current(database: Path, snapshot: Path) -> bool:
    """Return whether the readers' copy is that of the database as it is."""
    # An ingest killed after its commit leaves the rows in the write-ahead log alone.
    if write_ahead_log(database).exists() or write_ahead_log(snapshot).exists():
        return False
    try:
        ours, theirs = database.stat(), snapshot.stat()
    except FileNotFoundError:
        return False
    return (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


def open_snapshot(snapshot: Path) -> duckdb.DuckDBPyConnection:
    """Open the readers' copy.

    Raises:
        RecordError: A write-ahead log lies beside it.
        duckdb.Error: It cannot be read.
    """
    log = write_ahead_log(snapshot)
    if log.exists():
        raise RecordError(f"a program opened {snapshot} for writing and left {log}")
    return open_database(snapshot, reader=True)
