"""The project's SQL: where it lies, ordered migrations, views, saved queries."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.errors import RecordError
from navi_pipeline.lib.records import shipped_folder

if TYPE_CHECKING:
    import duckdb

_MEANINGS = "columns.yaml"
_MIGRATION = re.compile(r"(\d{3})_([a-z0-9_]+)\.sql")


class NewerWarehouseError(RecordError):
    """A newer Navi wrote the warehouse; this one may read it and must not write to it."""


@dataclass(frozen=True)
class SavedQuery:
    """A query of `sql/queries` with the line that explains it."""

    name: str
    explanation: str
    sql: str


def sql_folder() -> Path:
    """Return the folder of migrations, views and queries.

    `$NAVI_SQL` wins; otherwise it is `sql/` of the package, in a checkout a link.

    Raises:
        RecordError: There is no such folder.
    """
    named = os.environ.get("NAVI_SQL")
    folder = Path(named).absolute() if named else shipped_folder("sql")
    if not (folder / "migrations").is_dir():
        raise RecordError(f"no SQL folder at {folder}; set NAVI_SQL to the sql folder of a checkout")
    return folder


def sql_hash(folder: Path) -> str:
    """Return a hash of all migrations, views and meanings, to see whether a database is up to date."""
    digest = hashlib.sha256()
    files = (*folder.glob("migrations/*.sql"), *folder.glob("views/*.sql"), *folder.glob(_MEANINGS))
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def saved_queries(folder: Path) -> dict[str, SavedQuery]:
    """Return the saved queries by name; the first line of each file is its explanation."""
    found = {}
    for file in sorted(folder.glob("queries/*.sql")):
        text = file.read_text("utf-8")
        found[file.stem] = SavedQuery(file.stem, text.partition("\n")[0].lstrip("- ").strip(), text)
    return found


def apply_sql(connection: duckdb.DuckDBPyConnection, folder: Path) -> list[str]:
    """Bring a database up to date: new migrations in order, each in one transaction, all views, what columns mean.

    Args:
        connection: The writer's connection.
        folder: SQL folder.

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
            connection.execute("insert into migrations values (?, ?, ?, now()::timestamp)", [number, file.stem, digest])
            connection.execute("commit")
        except duckdb.Error as error:
            connection.execute("rollback")
            raise RecordError(f"migration {file.name} failed: {error}") from error
        applied.append(file.stem)
    _make_views(connection, folder)
    _explain(connection, folder)
    return applied


def require_known(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Refuse a database with migrations that the folder lacks.

    Its views would go, and a compaction would leave out the tables and columns that are unknown here.

    Raises:
        NewerWarehouseError: It has some.
    """
    known = dict(connection.execute("select number, name from migrations").fetchall())
    if newer := sorted(known.keys() - {number for number, _ in _ordered(folder)}):
        raise NewerWarehouseError(
            f"the warehouse is of a newer Navi: it has migration {known[newer[-1]]}, which {folder} lacks; "
            "update this checkout, or ask with the newer one; what is recorded meanwhile waits in the outbox"
        )


def _make_views(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Make all views anew; one that reads another waits until that one is there."""
    import duckdb

    old = connection.execute("select view_name from duckdb_views() where not internal").fetchall()
    for (name,) in old:
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


def _explain(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Keep what tables, views and columns mean as comments, where any DuckDB finds them."""
    import yaml

    if not (folder / _MEANINGS).exists():
        return
    meanings = yaml.safe_load((folder / _MEANINGS).read_text("utf-8"))
    tables, columns = meanings["tables"], meanings["columns"]
    for file in folder.glob("views/*.sql"):
        lines = itertools.takewhile(lambda line: line.startswith("--"), file.read_text("utf-8").splitlines())
        tables[file.stem] = " ".join(line.lstrip("- ") for line in lines)
    kinds = dict(
        connection.execute(
            "select table_name, 'table' from duckdb_tables() where not internal "
            "union all select view_name, 'view' from duckdb_views() where not internal"
        ).fetchall()
    )
    orders = [
        f'comment on {kind} "{table}" is {_quoted(tables[table])}' for table, kind in kinds.items() if table in tables
    ]
    found = connection.execute("select table_name, column_name from duckdb_columns() where not internal").fetchall()
    for table, column in found:
        meaning = columns.get(f"{table}.{column}", columns.get(column))
        if meaning is not None:
            orders.append(f'comment on column "{table}"."{column}" is {_quoted(meaning)}')
    # Some 700, each of which would else wait for the disk.
    connection.execute("; ".join(["begin", *orders, "commit"]))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _ordered(folder: Path) -> list[tuple[int, Path]]:
    found: dict[int, Path] = {}
    for file in sorted((folder / "migrations").glob("*.sql")):
        match = _MIGRATION.fullmatch(file.name)
        if match is None:
            raise RecordError(f"migration {file.name} is misnamed; use NNN_name.sql, for example 002_studies.sql")
        number = int(match[1])
        if number in found:
            raise RecordError(f"two migrations have number {number:03d}: {found[number].name}, {file.name}")
        found[number] = file
    if sorted(found) != list(range(1, len(found) + 1)):
        raise RecordError(f"migrations must be numbered 001, 002, … without gaps; found {sorted(found)}")
    return sorted(found.items())
