"""The readers' copy of the database: replaced in one step, written by nobody else.

A program that opens the copy for writing leaves a write-ahead log beside it when it is killed. DuckDB replays the log
of whatever file has the name, and refuses the next copy with it, so a log there is a fault of its own.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.errors import RecordError
from navi_core.record.durable import fsync_directory
from navi_pipeline.lib.warehouse.database import open_database

if TYPE_CHECKING:
    import duckdb


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
