"""History of several homes: one writes its rows as Parquet by table, host and month, any reader sees all of them.

    FOLDER/<table>/host=<host>/month=<YYYY-MM>/<home>-<fingerprint>.parquet    rows, each once; never changed
    FOLDER/homes/<home>.json                                                   files of a home that count

The manifest of a home is replaced atomically once all of its files are there, so that a reader sees a home as of one
moment. A file whose rows have not changed keeps its name and is not written again; a killed publication is continued.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.errors import RecordError
from navi_core.record import row_context
from navi_core.record.durable import write_durably
from navi_core.record.metric_log import NATURAL_KEYS
from navi_pipeline.lib.warehouse.database import (
    apply_sql,
    explain,
    make_views,
    open_database,
    quoted,
    sql_folder,
    sql_hash,
    write_parquet,
)
from navi_pipeline.lib.warehouse.outbox import table_columns
from navi_pipeline.lib.warehouse.reader import Reader

if TYPE_CHECKING:
    import duckdb

_VERSION = 1
_IDS = ("run_id", "version", "model_version", "previous_version", "start_version", "champion", "evaluation_id",
        "comparison_id", "study", "night")  # fmt: skip
"""Columns that are unique within a home alone: two homes have a v001 each."""

_HOME = {"home": "VARCHAR"}


def publish_history(snapshot: Path, folder: Path) -> dict[str, Any]:
    """Write a warehouse's rows to a history folder; the caller holds a lock that keeps out others of this home.

    Args:
        snapshot: The readers' snapshot of the warehouse.
        folder: Folder of the history; made if missing.

    Returns:
        Name of the home in the history (`home`), the `files` that count now, of which some were `written` now, and the
        `rows` in them.

    Raises:
        duckdb.Error, OSError: The snapshot cannot be read, or the folder cannot be written.
    """
    home = _home_name(snapshot.parent / "home.id")
    kept: dict[str, int] = {}
    written = 0
    with open_database(":memory:") as connection:
        connection.execute(f"attach {quoted(snapshot)} as navi (read_only)")
        for table, key in NATURAL_KEYS.items():
            parts = connection.execute(
                "select coalesce(host, 'unknown'), coalesce(strftime(recorded_at, '%Y-%m'), 'unknown'), "
                f"count(*), bit_xor(hash(rows)) from navi.{table} rows group by 1, 2 order by 1, 2"
            ).fetchall()
            for host, month, count, digest in parts:
                place = f"{table}/host={re.sub(r'[^A-Za-z0-9_.-]', '_', host)}/month={month}"
                name = f"{place}/{home}-{count}-{digest:016x}.parquet"
                kept[name] = count
                if (folder / name).exists():
                    continue
                (folder / place).mkdir(parents=True, exist_ok=True)
                # Hidden from a pattern until it is whole.
                temporary = folder / place / f".{home}.tmp"
                sql = (
                    f"select ?::varchar as home, * from navi.{table} where coalesce(host, 'unknown') = ? "
                    f"and coalesce(strftime(recorded_at, '%Y-%m'), 'unknown') = ? order by {', '.join(key)}"
                )
                write_parquet(connection, sql, temporary, [home, host, month])
                os.replace(temporary, folder / name)
                written += 1
    manifest = {"navi_history": _VERSION, "home": home, "published_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
    (folder / "homes").mkdir(parents=True, exist_ok=True)
    write_durably(folder / "homes" / f"{home}.json", json.dumps(manifest | {"files": kept}, indent=1).encode())
    for file in folder.glob(f"*/host=*/month=*/{home}-*.parquet"):
        if file.relative_to(folder).as_posix() not in kept:
            file.unlink(missing_ok=True)
    return {"home": home, "files": len(kept), "written": written, "rows": sum(kept.values())}


def _home_name(file: Path) -> str:
    """Return the name of a home in the history, which is made once: its host, and random digits."""
    if not file.exists():
        host = re.sub(r"[^A-Za-z0-9_.]", "_", row_context()["host"])
        write_durably(file, f"{host}-{uuid.uuid4().hex[:6]}\n".encode())
    return file.read_text("utf-8").strip()


class History(Reader):
    """Published history of several homes, with the tables, views and saved queries of a warehouse.

    Every table has a column `home`. Ids that are unique within a home alone (runs, versions, evaluations) end with
    `@` and the home's name.

    Args:
        folder: Folder that `navi warehouse publish` wrote to.

    Raises:
        RecordError: Nothing was published there.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).absolute()
        if not any(self.folder.glob("homes/*.json")):
            raise RecordError(f"nothing was published to {self.folder}; next: navi warehouse publish {folder}")

    def _opened(self) -> duckdb.DuckDBPyConnection:
        files = self._files()
        sql = sql_folder()
        connection = open_database(":memory:")
        try:
            for table, kinds in _schema(sql, sql_hash(sql)).items():
                connection.execute(f"create view {table} as {_union(kinds, files.get(table, []))}")
            make_views(connection, sql, keep=NATURAL_KEYS)
            explain(connection, sql)
            connection.execute(f"set allowed_directories = [{quoted(self.folder)}]")
            connection.execute("set enable_external_access = false")
            connection.execute("set lock_configuration = true")
        except BaseException:
            connection.close()
            raise
        return connection

    def _files(self) -> dict[str, list[str]]:
        """Return the files that count, by table."""
        found: dict[str, list[str]] = {}
        for manifest in sorted(self.folder.glob("homes/*.json")):
            try:
                document = json.loads(manifest.read_text("utf-8"))
                if document["navi_history"] != _VERSION:
                    raise ValueError(f"version {document['navi_history']} is not {_VERSION}; update this checkout")
                for name in document["files"]:
                    found.setdefault(name.partition("/")[0], []).append(str(self.folder / name))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise RecordError(f"{manifest} is broken ({error}); publish that home again") from error
        return found


@cache
def _schema(folder: Path, _: str) -> dict[str, dict[str, str]]:
    """Return table → column → type of the SQL folder's migrations; the second argument is its hash."""
    with open_database(":memory:") as connection:
        apply_sql(connection, folder)
        return table_columns(connection)


def _union(kinds: dict[str, str], files: list[str]) -> str:
    """Return the SQL of a table over all homes; columns that the files lack are null."""
    rows = f"select {', '.join(f'null::{kind} as {name}' for name, kind in (kinds | _HOME).items())} where false"
    if files:
        names = ", ".join(map(quoted, files))
        rows += f" union all by name from read_parquet([{names}], union_by_name = true, hive_partitioning = false)"
    columns = ", ".join(f"{_global(name, kind)}::{kind} as {name}" for name, kind in kinds.items())
    return f"select {columns}, home from ({rows})"


def _global(name: str, kind: str) -> str:
    """Return the SQL of a column whose ids are unique over homes."""
    if name in _IDS and kind == "VARCHAR":
        return f"(case when {name} = 'none' then {name} else {name} || '@' || home end)"
    if name == "parents":
        return "to_json(list_transform(from_json(parents, '[\"varchar\"]'), lambda parent: parent || '@' || home))"
    if name == "evaluations" and kind == "JSON":
        return "regexp_replace(evaluations::varchar, '\"([0-9a-f]{8,})\"', '\"\\1@' || home || '\"', 'g')"
    return name
