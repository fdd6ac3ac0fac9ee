"""Parquet archive of the warehouse: every table as a file, in place of the ingested segments.

    <home>/warehouse/archive/<generation>/<table>.parquet    zstd, each row once; readable by DuckDB and pandas
    <home>/warehouse/archive/manifest.json                   current generation, with row counts and checksums

A generation is complete before the manifest names it, and segments are removed only after that. If the process is
killed in between, the database can still be rebuilt from the manifest's generation and the remaining segments.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.errors import RecordError
from navi_core.record.durable import fsync_directory, write_durably
from navi_core.record.metric_log import NATURAL_KEYS
from navi_pipeline.lib.warehouse.database import NewerWarehouseError, number_of, write_parquet

if TYPE_CHECKING:
    import duckdb

_TABLES = (*NATURAL_KEYS, "segments")
_VERSION = 1


class Archive:
    """Parquet archive of one warehouse, with numbered generations and a manifest.

    Args:
        folder: `warehouse/archive` of a Navi home; need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifest = folder / "manifest.json"
        self._unadopted: Path | None = None

    def write(self, connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        """Write all tables as a new generation of Parquet files, which becomes current by `adopt`.

        Returns:
            Its manifest: number of the generation, last migration of the database, rows and checksum of each table.
        """
        current: int = self._read()["generation"]
        if current:
            self._sweep(current)  # leftovers of a killed compaction
        # Without a manifest the generations may be all that is left of older rows.
        number = 1 + max([current, *(int(folder.name) for folder in self.folder.glob("[0-9]" * 6 + "/"))])
        target = self._unadopted = self._path(number)
        target.mkdir(parents=True)
        tables = {}
        for table in _tables_of(connection):
            order, file = ", ".join(NATURAL_KEYS.get(table, ("name",))), target / f"{table}.parquet"
            rows = write_parquet(connection, f"select * from {table} order by {order}", file)
            tables[table] = {"rows": rows, "sha256": _checksum(file)}
        fsync_directory(target)
        return {
            "navi_archive": _VERSION,
            "generation": number,
            "migration": last_migration(connection),
            "tables": tables,
        }

    def adopt(self, manifest: dict[str, Any]) -> None:
        """Make a written generation the current one, and remove the others."""
        self._unadopted = None
        write_durably(self._manifest, (json.dumps(manifest, indent=1) + "\n").encode())
        self._sweep(manifest["generation"])

    def discard(self) -> None:
        """Remove the generation of the last `write` if it was not adopted, to free its disk space."""
        if self._unadopted is not None:
            shutil.rmtree(self._unadopted, ignore_errors=True)
            self._unadopted = None

    def _sweep(self, current: int) -> None:
        """Remove the generations that are not current."""
        for folder in self.folder.glob("*/"):
            if folder != self._path(current):
                shutil.rmtree(folder, ignore_errors=True)

    def restore(self, connection: duckdb.DuckDBPyConnection, manifest: dict[str, Any] | None = None) -> None:
        """Load a generation into the empty tables of a database; later tables and columns stay empty.

        Args:
            connection: A database whose migrations were applied.
            manifest: Manifest of the generation, from `write`; by default that of the current one, if there is any.

        Raises:
            NewerWarehouseError: A newer Navi wrote it; tables and columns that are unknown here would get lost.
            RecordError: A file is missing, unknown to the manifest, or was changed since it was written.
        """
        known, last = manifest or self._read(), last_migration(connection)
        if known["migration"] > last:
            raise NewerWarehouseError(
                f"{self.folder} is of a newer Navi: it has migration {known['migration']}, this one knows {last}; "
                "update this checkout"
            )
        for table in _tables_of(connection):
            file, wrote = self._path(known["generation"]) / f"{table}.parquet", known["tables"].get(table)
            if wrote is None and not file.exists():
                continue  # a later migration made it
            self._check(file, wrote)
            columns = {name for name, *_ in connection.execute(f"describe {table}").fetchall()}
            held = [name for name, *_ in connection.execute("describe from read_parquet(?)", [str(file)]).fetchall()]
            if missing := [name for name in NATURAL_KEYS.get(table, ()) if name not in held]:
                raise RecordError(f"{file} lacks the key column {', '.join(missing)}; move it away and rebuild again")
            both = ", ".join(name for name in held if name in columns)
            insert = f"insert into {table} by name select {both} from read_parquet(?)"
            if (given := number_of(connection.execute(insert, [str(file)]))) != wrote["rows"]:
                raise RecordError(f"{file} gave {given} rows, {wrote['rows']} were written")

    def _check(self, file: Path, wrote: dict[str, Any] | None) -> None:
        """Compare a file with its entry in the manifest."""
        if wrote is None:
            raise RecordError(f"{self._manifest} does not know {file}; restore it from a copy")
        if not file.is_file():
            raise RecordError(f"{file} is missing; restore it from a copy")
        if _checksum(file) != wrote["sha256"]:
            raise RecordError(f"{file} was changed since it was written; restore it from a copy")

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"

    def _read(self) -> dict[str, Any]:
        """Return generation, migration and tables of the manifest; generation 0 without an archive."""
        try:
            document = json.loads(self._manifest.read_text())
            if document["navi_archive"] != _VERSION:
                raise ValueError(f"version {document['navi_archive']} is not {_VERSION}")
            tables = {str(table): dict(wrote) for table, wrote in document["tables"].items() if table in _TABLES}
            # Older manifests have no migration.
            numbers = {"generation": int(document["generation"]), "migration": int(document.get("migration", 0))}
            return {**numbers, "tables": tables}
        except FileNotFoundError:
            return {"generation": 0, "migration": 0, "tables": {}}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{self._manifest} is broken ({error}); restore it from a copy") from error


def last_migration(connection: duckdb.DuckDBPyConnection) -> int:
    """Return the number of the last migration applied to a database."""
    return number_of(connection.execute("select max(number) from migrations"))


def _tables_of(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Return the tables to archive; `$NAVI_SQL` may name an older schema, which lacks some."""
    there = {name for (name,) in connection.execute("select table_name from duckdb_tables()").fetchall()}
    return [table for table in _TABLES if table in there]


def thin(
    connection: duckdb.DuckDBPyConnection, keep_days: float | None, points: int, keep_model_days: float | None
) -> int:
    """Thin metrics and stage timings of old runs to `points` steps each, and delete old service experiences.

    Args:
        connection: The writer's connection.
        keep_days: Age of a run's last row from which on it is thinned, and of an experience [days]; None keeps all.
        points: Steps that stay, spread evenly; the last one always does.
        keep_model_days: The same age for runs that models came from [days].

    Returns:
        Rows removed.
    """
    # Versions of a service stay. An age of null is no age: nothing is older.
    thinned = number_of(
        connection.execute(
            "delete from service_experiences where recorded_at < now()::timestamp - to_seconds(? * 86400.0)",
            [keep_days],
        )
    )
    ages = ((False, keep_days), (True, keep_model_days))
    for table, (of_models, days) in itertools.product(("metrics", "stage_timings"), ages):
        thinned += number_of(
            connection.execute(
                f"""
            delete from {table} using (
                with old as (
                    select run_id, count(distinct step) as steps from {table}
                    where (run_id in (select run_id from models where run_id is not null)) = ?
                    group by run_id
                    having max(recorded_at) < now()::timestamp - to_seconds(? * 86400.0) and count(distinct step) > ?
                ),
                ranked as (
                    select run_id, step, steps, row_number() over (partition by run_id order by step desc) - 1 as place
                    from (select distinct run_id, step, steps from {table} join old using (run_id))
                )
                -- A step stays where the sequence of `points` even marks moves on; place 0 is the last step.
                select run_id, step from ranked
                where place > 0 and floor(place * ? / steps) = floor((place - 1) * ? / steps)
            ) gone
            where {table}.run_id = gone.run_id and {table}.step = gone.step
            """,
                [of_models, days, points, points, points],
            )
        )
    return thinned


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
