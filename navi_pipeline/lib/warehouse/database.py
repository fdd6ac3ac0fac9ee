"""DuckDB connections in UTC, error remedies, the read-only snapshot, and the project's SQL files.

The snapshot is replaced atomically and opened read-only. A killed program that had opened it for writing leaves a
write-ahead log beside it. DuckDB would replay that log into the next snapshot of the same name, or refuse to open it,
so an existing log is an error. The SQL files are ordered migrations, views, and saved queries.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
import stat
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.errors import RecordError
from navi_core.record.durable import fsync_directory
from navi_core.record.metric_log import NATURAL_KEYS
from navi_pipeline.lib.records import shipped_folder

if TYPE_CHECKING:
    import duckdb
    import pandas

_CLOSED: dict[str, Any] = {"enable_external_access": False}
"""DuckDB settings of readers: no access to other files, extensions or the network, no COPY … TO."""


def open_database(file: Path | str, *, reader: bool = False) -> duckdb.DuckDBPyConnection:
    """Open a DuckDB database with the session's time zone set to UTC.

    Row times are UTC without a time zone, but `now()::timestamp` uses the session's zone, by default the machine's.
    Without this setting, ages would be hours off.

    Args:
        file: The database.
        reader: Open read-only, without access to other files.

    Raises:
        duckdb.Error: It cannot be opened.
    """
    import duckdb

    connection = duckdb.connect(str(file), read_only=reader, config=_CLOSED if reader else {})
    try:
        # The options of a file hold for all its connections in this process, and once locked they stay.
        locked = reader and number_of(connection.execute("select current_setting('lock_configuration')::int"))
        if not locked:
            connection.execute("set global TimeZone = 'UTC'")
        if reader and not locked:
            # A query sets variables, no options: one of them writes a log to any file, and ends the process with it.
            connection.execute("set lock_configuration = true")
    except BaseException:
        connection.close()
        raise
    return connection


def number_of(answer: duckdb.DuckDBPyConnection) -> int:
    """Fetch the scalar result of a query as a number; 0 if there is none."""
    row = answer.fetchone()
    return int(row[0]) if row and row[0] is not None else 0


_REMEDIES = {
    "No space left": "free space on its disk",
    "Disk quota exceeded": "free space on its disk",
    "same database file with a different configuration": "close the connection that this program holds to the file,",
    "Permission denied": "let this user write there,",
    "Read-only file system": "let this user write there,",
}
"""Part of an error message → remedy."""


def remedy(error: BaseException, otherwise: str) -> str:
    """Return a hint on how to resolve a DuckDB error, as the end of an error message.

    Args:
        error: Exception of DuckDB or the system.
        otherwise: Remedy if the file itself is damaged.
    """
    text = str(error)
    if "lock" in text and (holder := re.search(r"PID (\d+)", text)):
        return f"close process {holder[1]}, which has the file open, and try again; nothing is lost"
    for sign, way in _REMEDIES.items():
        if sign in text:
            return f"{way} and try again; nothing is lost"
    return otherwise


_PIECE = 2_000_000
"""Number of rows per partition of the duplicate check; a set of keys takes about 100 bytes per row."""


def count_duplicate_keys(
    ask: Callable[[str, list[Any] | None], pandas.DataFrame], table: str, *, piece_rows: int = _PIECE
) -> int:
    """Count the rows of a table that duplicate another row's natural key.

    Args:
        ask: Query function of `Warehouse.reader`.
        table: The table.
        piece_rows: Approximate number of keys in memory at a time.

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


def rows_of_first(databases: Sequence[Path], sql: str) -> list[tuple[Any, ...]]:
    """Answer a query on the first database that can be read; empty where none can.

    Args:
        databases: The database and its snapshot.
        sql: The query.
    """
    import duckdb

    for file in databases:
        with suppress(duckdb.Error):
            if file.exists():
                with open_database(file, reader=file != databases[0]) as connection:
                    return connection.execute(sql).fetchall()
    return []


def write_parquet(
    connection: duckdb.DuckDBPyConnection, sql: str, file: Path, parameters: list[Any] | None = None
) -> int:
    """Write the answer of a query to a Parquet file, wait until it is on the disk, and return its number of rows."""
    copied = connection.execute(f"copy ({sql}) to {quoted(file)} (format parquet, compression zstd)", parameters)
    with file.open("rb") as written:
        os.fsync(written.fileno())
    return number_of(copied)


def write_ahead_log(database: Path) -> Path:
    """Return the path of a database's write-ahead log (WAL)."""
    return Path(f"{database}.wal")


def publish(database: Path, snapshot: Path) -> None:
    """Atomically replace the read-only snapshot of the DuckDB database; the caller holds the warehouse's lock.

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
    """Return whether the read-only snapshot matches the database, by size and modification time."""
    # An ingest killed after its commit leaves the rows in the write-ahead log alone.
    if write_ahead_log(database).exists() or write_ahead_log(snapshot).exists():
        return False
    try:
        ours, theirs = database.stat(), snapshot.stat()
    except FileNotFoundError:
        return False
    return (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


def open_snapshot(snapshot: Path) -> duckdb.DuckDBPyConnection:
    """Open the read-only snapshot.

    Raises:
        RecordError: A write-ahead log lies beside it.
        duckdb.Error: It cannot be read.
    """
    log = write_ahead_log(snapshot)
    if log.exists():
        raise RecordError(f"a program opened {snapshot} for writing and left {log}")
    return open_database(snapshot, reader=True)


_MEANINGS = "columns.yaml"
_MIGRATION = re.compile(r"(\d{3})_([a-z0-9_]+)\.sql")


class NewerWarehouseError(RecordError):
    """Error: the warehouse has migrations of a newer Navi; this version may read it, but must not write to it."""


def sql_folder() -> Path:
    """Return the folder of SQL migrations, views and queries.

    `$NAVI_SQL` takes precedence; the default is `sql/` of the package, a link in a checkout.

    Raises:
        RecordError: There is no such folder.
    """
    named = os.environ.get("NAVI_SQL")
    folder = Path(named).absolute() if named else shipped_folder("sql")
    if not (folder / "migrations").is_dir():
        raise RecordError(f"no SQL folder at {folder}; set NAVI_SQL to the sql folder of a checkout")
    return folder


def sql_hash(folder: Path) -> str:
    """Return the SHA-256 of all migrations, views and column descriptions, to detect an outdated database."""
    digest = hashlib.sha256()
    files = (*folder.glob("migrations/*.sql"), *folder.glob("views/*.sql"), *folder.glob(_MEANINGS))
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def apply_sql(
    connection: duckdb.DuckDBPyConnection, folder: Path, dates: Mapping[int, datetime] | None = None
) -> list[str]:
    """Migrate a database: apply new migrations in order, one transaction each, recreate views, update comments.

    Args:
        connection: The writer's connection.
        folder: SQL folder.
        dates: When each migration was applied to the database that this one replaces, by number (UTC); others are
            applied now.

    Returns:
        Names of the migrations that were applied now.

    Raises:
        RecordError: The database knows migrations that this Navi does not, or a migration is misnamed, changed after it
            was applied, or fails.
    """
    import duckdb

    connection.execute(
        "create table if not exists migrations "
        "(number integer primary key, name varchar, sha256 varchar, applied_at timestamp)"
    )
    require_known(connection, folder)
    known = {row[0]: row[1:] for row in connection.execute("select number, name, sha256 from migrations").fetchall()}
    applied = []
    for number, file in _ordered(folder):
        text = file.read_text("utf-8")
        digest = hashlib.sha256(text.encode()).hexdigest()
        if number in known:
            if known[number][1] != digest:
                raise RecordError(
                    f"migration {file.name} was changed after it had been applied; restore it and add a new one, "
                    "or rebuild the warehouse with `navi query --rebuild`"
                )
            continue
        connection.execute("begin")
        try:
            connection.execute(text)
            values = [number, file.stem, digest, (dates or {}).get(number)]
            connection.execute("insert into migrations values (?, ?, ?, coalesce(?, now()::timestamp))", values)
            connection.execute("commit")
        except duckdb.Error as error:
            with suppress(duckdb.Error):
                connection.execute("rollback")
            raise RecordError(f"migration {file.name} failed: {error}") from error
        applied.append(file.stem)
    make_views(connection, folder)
    explain(connection, folder)
    return applied


def require_known(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Check the schema version: raise if the database has migrations that the folder lacks (of a newer Navi).

    Otherwise its views would be dropped, and a compaction would lose the unknown tables and columns.

    Raises:
        NewerWarehouseError: It has some.
    """
    known = dict(connection.execute("select number, name from migrations").fetchall())
    if newer := sorted(known.keys() - {number for number, _ in _ordered(folder)}):
        raise NewerWarehouseError(
            f"the warehouse is of a newer Navi: it has migration {known[newer[-1]]}, which {folder} lacks; "
            "update this checkout, or ask with the newer one; what is recorded meanwhile waits in the outbox"
        )


def make_views(connection: duckdb.DuckDBPyConnection, folder: Path, keep: Container[str] = ()) -> None:
    """Recreate all views in dependency order: a view that fails is retried after the others.

    Args:
        connection: The writer's connection.
        folder: SQL folder.
        keep: Views that stand for tables.

    Raises:
        RecordError: A view fails.
    """
    import duckdb

    old = connection.execute("select view_name from duckdb_views() where not internal").fetchall()
    for (name,) in old:
        if name not in keep:
            connection.execute(f'drop view if exists "{name}"')
    waiting = sorted(folder.glob("views/*.sql"))
    while waiting:
        failed: dict[Path, duckdb.Error] = {}
        for file in waiting:
            try:
                connection.execute(file.read_text("utf-8"))
            except duckdb.Error as error:
                failed[file] = error
        if len(failed) == len(waiting):
            file, reason = next(iter(failed.items()))
            raise RecordError(f"view {file.name} failed: {reason}") from reason
        waiting = list(failed)


def explain(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Store the descriptions of tables, views and columns as DuckDB comments."""
    tables, columns = meanings(folder)
    for file in folder.glob("views/*.sql"):
        lines = itertools.takewhile(lambda line: line.startswith("--"), file.read_text("utf-8").splitlines())
        tables[file.stem] = " ".join(line.lstrip("- ") for line in lines)
    kinds = dict(
        connection.execute(
            "select table_name, 'table' from duckdb_tables() where not internal "
            "union all select view_name, 'view' from duckdb_views() where not internal"
        ).fetchall()
    )
    found = connection.execute("select table_name, column_name from duckdb_columns() where not internal").fetchall()
    texts = {f'{kind} "{table}"': tables.get(table) for table, kind in kinds.items()}
    texts |= {f'column "{table}"."{name}"': columns.get(f"{table}.{name}", columns.get(name)) for table, name in found}
    orders = [f"comment on {name} is {quoted(text)}" for name, text in texts.items() if text is not None]
    # Some 700, each of which would else wait for the disk.
    connection.execute("; ".join(["begin", *orders, "commit"]))


def meanings(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Load the descriptions of tables, and of columns by `column` or `table.column`; empty without the file."""
    import yaml

    file = folder / _MEANINGS
    # The parser in Python takes 80 ms, a third of making a database.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = yaml.load(file.read_text("utf-8"), loader) if file.exists() else {}
    return found.get("tables", {}), found.get("columns", {})


def quoted(text: str | Path) -> str:
    """Return a text as an SQL literal."""
    return "'" + str(text).replace("'", "''") + "'"


def _ordered(folder: Path) -> list[tuple[int, Path]]:
    files = sorted((folder / "migrations").glob("*.sql"))
    for number, file in enumerate(files, start=1):
        if not _MIGRATION.fullmatch(file.name) or int(file.name[:3]) != number:
            raise RecordError(
                f"migration {file.name} is misnamed; use NNN_name.sql, for example 002_studies.sql: numbers are 001, "
                "002, … without gaps; no two migrations share one"
            )
    return list(enumerate(files, start=1))
