"""DuckDB warehouse: one locked writer ingests outbox segments, readers use an atomically replaced snapshot.

    <home>/outbox/*.ndjson            segments of the producers, written atomically
    <home>/outbox/done/               segments whose rows are in the database
    <home>/outbox/quarantine/         refused segments, each with a .reason.txt
    <home>/warehouse/navi.duckdb      the database; opened by the ingest alone, under ingest.lock
    <home>/warehouse/compact.lock     held by a compaction or rebuild; ingests continue during a compaction
    <home>/warehouse/read.duckdb      the read-only snapshot for readers
    <home>/warehouse/archive/         Parquet in place of older segments; a rebuild needs it and done/

While one process writes, DuckDB lets no other process read; and processes that retry to open one file can lose
acknowledged commits. One lock around the only writer, and a separate file for readers, avoid both.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navi_core.errors import RecordError
from navi_core.machine.file_lock import NO_WRITE_ACCESS, open_lock, try_lock
from navi_core.record.home import navi_home
from navi_core.record.metric_log import NATURAL_KEYS
from navi_pipeline.lib.warehouse.archive import Archive, last_migration, thin
from navi_pipeline.lib.warehouse.database import (
    NewerWarehouseError,
    apply_sql,
    is_current,
    open_database,
    open_snapshot,
    publish,
    remedy,
    require_known,
    rows_of_first,
    sql_folder,
    sql_hash,
    write_ahead_log,
)
from navi_pipeline.lib.warehouse.history import publish_history
from navi_pipeline.lib.warehouse.outbox import IngestReport, Outbox
from navi_pipeline.lib.warehouse.reader import Reader
from navi_pipeline.lib.warehouse.verification import compare, fold_anew

if TYPE_CHECKING:
    import duckdb

_log = logging.getLogger(__name__)
_REBUILD = "`navi query --rebuild` makes it anew from the archive and outbox/done"


class ReadOnlyWarehouseError(RecordError):
    """Error: this user has no write access to the warehouse, but may read it."""


class Warehouse(Reader):
    """DuckDB warehouse of one Navi home: ingest, query, rebuild, compaction.

    Args:
        home: Folder of outbox and warehouse; by default `navi_home()`.
        lock_timeout: Seconds to wait for another ingest [s].
    """

    def __init__(self, home: Path | str | None = None, *, lock_timeout: float = 120.0) -> None:
        home = Path(home) if home is not None else navi_home()
        self.outbox = home / "outbox"
        self._segments = Outbox(self.outbox)
        self.done, self.quarantine = self._segments.done, self._segments.quarantine
        self.folder = home / "warehouse"
        self.database = self.folder / "navi.duckdb"
        self.snapshot = self.folder / "read.duckdb"
        self.archive = Archive(self.folder / "archive")
        self._both = (self.database, self.snapshot)
        self._stamp = self.folder / "sql.sha256"
        self._lock_timeout = lock_timeout

    def ingest(self) -> IngestReport:
        """Ingest all segments of the outbox, and replace the read-only snapshot.

        An interrupted ingest is completed by the next one: each batch upserts rows and records segment names in one
        transaction, and files move only after the commit.

        Raises:
            RecordError: The lock is held too long, the database is broken, or counts disagree.
        """
        with self._locked():
            return self._ingest(IngestReport())

    def refresh(self) -> IngestReport:
        """Ingest before a query if this user and this version of Navi may write; otherwise report the reason.

        Returns:
            As `ingest`; with `not_folded` where the readers' copy is left as it is.

        Raises:
            RecordError: As `ingest`, or there is no readers' copy.
        """
        try:
            return self.ingest()
        except (ReadOnlyWarehouseError, NewerWarehouseError) as error:
            if not self.snapshot.exists():
                raise
            made = datetime.fromtimestamp(self.snapshot.stat().st_mtime, UTC)
            return IngestReport(not_folded=f"{error}; the answer is as of {made:%Y-%m-%d %H:%M:%S} UTC")

    def rebuild(self) -> IngestReport:
        """Rebuild the database from the archive, `done/` and the outbox; readers keep the old snapshot meanwhile.

        Raises:
            RecordError: The archive is damaged, or as `ingest`.
        """
        with self._locked("compact.lock"), self._locked():
            fresh, views = self.folder / "navi.duckdb.new", sql_hash(sql_folder())
            self._restored(fresh, None)
            return self._exchange(fresh, views)

    def verify(self) -> dict[str, dict[str, int]]:
        """Compare database and snapshot with a database folded anew from archive and `done/`: all rows and columns.

        Returns:
            As `verification.compare`, for `database` and `snapshot`.

        Raises:
            RecordError: The archive or a segment was changed, or as `ingest`.
        """
        import duckdb

        fresh = self.folder / "navi.duckdb.verify"
        with self._locked("compact.lock"), self._locked():
            self._ingest(IngestReport())
            try:
                self._restored(fresh, None)
                with open_database(fresh) as connection:
                    fold_anew(connection, self._in_order())
                    return compare(connection, {"database": self.database, "snapshot": self.snapshot})
            except duckdb.Error as error:
                raise RecordError(f"{self.folder} was not verified: {error}; {remedy(error, _REBUILD)}") from error
            finally:
                for file in (fresh, write_ahead_log(fresh)):
                    file.unlink(missing_ok=True)

    def compact(
        self, *, keep_days: float | None = None, points: int = 500, keep_model_days: float | None = None
    ) -> dict[str, int]:
        """Compact the warehouse: write all rows to the Parquet archive, drop ingested segments, shrink the database.

        The new archive is read back into a new database, and nothing is removed before the row counts agree. This runs
        on a copy, concurrently with ingests, whose segments are then ingested into the new database again.

        Args:
            keep_days: Thin metrics and stage timings of runs that no model came from and that are older than this, and
                drop experiences of services that are [days]; None keeps every row.
            points: Steps that stay of a thinned run.
            keep_model_days: Likewise thin the runs that models came from [days]; None keeps them whole.

        Returns:
            The `rows` in the archive, the `segments` that it replaced, the rows of old runs that were `thinned`.

        Raises:
            RecordError: Counts disagree, there is no room for a second copy, or as `ingest`; every row is where it was.
        """
        import duckdb

        copy, fresh = self.folder / "navi.duckdb.old", self.folder / "navi.duckdb.new"
        with self._locked("compact.lock"):
            try:
                with self._locked():
                    self._ingest(IngestReport())
                    self._require_room()
                    write_ahead_log(copy).unlink(missing_ok=True)  # of a compaction that was killed
                    shutil.copyfile(self.database, copy)
                    replaced = self._segments.folded()
                with open_database(copy) as connection:
                    thinned = thin(connection, keep_days, points, keep_model_days)
                    manifest = self.archive.write(connection)
                copy.unlink()  # its room is wanted for the new one
                self._read_back(manifest, fresh, replaced)
            except (duckdb.Error, OSError) as error:
                raise RecordError(f"{self.folder} was not compacted: {error}; every row is where it was") from error
            finally:
                for file in (copy, write_ahead_log(copy), fresh, write_ahead_log(fresh)):
                    file.unlink(missing_ok=True)
                self.archive.discard()
            rows = sum(table["rows"] for name, table in manifest["tables"].items() if name != "segments")
            return {"rows": rows, "segments": len(replaced), "thinned": thinned}

    def publish(self) -> None:
        """Replace the read-only snapshot, after a change of the database that no ingest made."""
        with self._locked():
            publish(self.database, self.snapshot)

    def publish_to(self, folder: Path) -> dict[str, Any]:
        """Ingest, and write all rows as Parquet by table, host and month to a history of several homes.

        Only what has changed is written. See `History`.

        Args:
            folder: Folder of the history, on a disk that its readers share; made if missing.

        Returns:
            As `publish_history`.

        Raises:
            RecordError: The folder cannot be written, or as `ingest`.
        """
        import duckdb

        self.ingest()
        with self._locked("publish.lock"):
            try:
                return publish_history(self.snapshot, folder.absolute())
            except (duckdb.Error, OSError) as error:
                raise RecordError(f"{folder} was not published to: {error}; give the command again") from error

    def status(self) -> dict[str, Any]:
        """Return the warehouse's status: row counts, file sizes, ingested and refused segments, last migration."""
        counts = self.query(" union all ".join(f"select '{t}' as name, count(*) as n from {t}" for t in NATURAL_KEYS))
        last = self.query("select max_by(name, number) as name from migrations")["name"][0]
        archived = [file for file in self.archive.folder.rglob("*") if file.is_file()]
        files = {"database": [self.database], "readers' snapshot": [self.snapshot], "archive": archived}
        reasons = sorted(self.quarantine.glob("*.reason.txt"))
        return {
            "rows": {name: int(n) for name, n in zip(counts["name"], counts["n"], strict=True)},
            "bytes": {name: sum(file.stat().st_size for file in group) for name, group in files.items()},
            "segments": len(self._segments.folded()),
            "migration": str(last),
            "quarantined": {
                file.name.removesuffix(".reason.txt"): file.read_text("utf-8", "replace").strip() for file in reasons
            },
        }

    def _opened(self) -> duckdb.DuckDBPyConnection:
        """Open the snapshot; an unreadable one is first replaced from the database."""
        import duckdb

        if not self.snapshot.exists():
            self.ingest()
        try:
            return open_snapshot(self.snapshot)
        except (duckdb.ConnectionException, duckdb.OutOfMemoryException) as error:
            # Another connection of this program, or too little memory: the file is as it should be.
            raise RecordError(f"the snapshot {self.snapshot} cannot be opened: {error}") from error
        except (duckdb.Error, RecordError) as error:
            _log.warning("the readers' snapshot is made anew: %s", error)
        with self._locked():
            if self.database.exists():
                publish(self.database, self.snapshot)
            try:
                return open_snapshot(self.snapshot)
            except (duckdb.Error, RecordError) as error:
                raise RecordError(
                    f"the snapshot {self.snapshot} cannot be read: {error}; {remedy(error, _REBUILD)}"
                ) from error

    @contextmanager
    def _locked(self, name: str = "ingest.lock") -> Iterator[None]:
        lock = self.folder / name
        try:
            for folder in (self.folder, self.done, self.quarantine):
                folder.mkdir(parents=True, exist_ok=True)
            descriptor = open_lock(lock)
        except OSError as error:
            if error.errno in NO_WRITE_ACCESS:
                raise ReadOnlyWarehouseError(f"this user may not write to the warehouse: {error}") from error
            raise RecordError(f"cannot prepare the warehouse {self.folder}: {error}") from error
        try:
            places = (self.folder, self.outbox, self.done, self.quarantine, self.database)
            if refused := [place for place in places if place.exists() and not os.access(place, os.W_OK)]:
                raise ReadOnlyWarehouseError(f"this user may not write to {refused[0]}")
            if not try_lock(descriptor, self._lock_timeout):
                raise RecordError(f"another process has held {lock} for {self._lock_timeout:.0f} s")
            yield
        finally:
            os.close(descriptor)

    def _ingest(self, report: IngestReport) -> IngestReport:
        import duckdb

        folder = sql_folder()
        wanted = sql_hash(folder)
        current = self.database.exists() and self._stamp.exists() and self._stamp.read_text() == wanted
        files = self._segments.waiting()
        if current and not files and is_current(self.database, self.snapshot):
            return report
        try:
            if not self._stamp.exists() and self.database.exists() and self.database.stat().st_size == 0:
                self.database.unlink()  # DuckDB failed to create it, and refuses an empty file
            with open_database(self.database) as connection:
                if current:
                    require_known(connection, folder)  # a newer Navi may have been killed before it wrote the stamp
                else:
                    report.migrations = apply_sql(connection, folder)
                self._segments.fold(connection, files, report)
                connection.execute("checkpoint")
        except duckdb.Error as error:
            raise RecordError(f"the warehouse {self.database} failed: {error}; {remedy(error, _REBUILD)}") from error
        self._stamp.write_text(wanted)
        publish(self.database, self.snapshot)
        return report

    def _read_back(self, manifest: dict[str, Any], fresh: Path, replaced: list[Path]) -> None:
        """Build a new database from a freshly written archive generation, and make both current."""
        views = sql_hash(sql_folder())
        self._restored(fresh, manifest)
        with self._locked():
            for file in (self.database, fresh):
                with open_database(file) as connection:
                    if (found := last_migration(connection)) != manifest["migration"]:
                        raise RecordError(
                            f"{file} has migration {found}, the copy had {manifest['migration']}: Navi was updated "
                            "meanwhile; compact it again"
                        )
            # Under the lock that a backup holds: it would miss what is removed here.
            self.archive.adopt(manifest)
            self._exchange(fresh, views, replaced)

    def _require_room(self) -> None:
        """Raise if the disk has too little space for a compaction."""
        archived = sum(file.stat().st_size for file in self.archive.folder.rglob("*.parquet"))
        wanted, free = self.database.stat().st_size + archived, shutil.disk_usage(self.folder).free
        if free < wanted:
            raise RecordError(
                f"{self.folder} was not compacted: a copy and a new archive take some {wanted / 2**20:,.0f} MiB, "
                f"{free / 2**20:,.0f} are free; free some space and try again; every row is where it was"
            )

    def _exchange(self, fresh: Path, views: str, replaced: Sequence[Path] = ()) -> IngestReport:
        """Replace the database by a new one, and ingest the segments that the new one lacks.

        Args:
            fresh: The new database, made of the archive.
            views: Hash of the SQL files that it was made with.
            replaced: Segments whose rows the archive holds; they are removed.

        Raises:
            RecordError: The new database failed; the old one is as it was.
        """
        import duckdb

        report, archived = IngestReport(), set(replaced)
        files = [file for file in self._in_order() if file not in archived]
        try:
            with open_database(fresh) as connection:
                self._segments.fold(connection, files, report)
        except duckdb.Error as error:
            raise RecordError(
                f"the warehouse {fresh} failed: {error}; {remedy(error, 'the former database is as it was')}"
            ) from error
        self._stamp.unlink(missing_ok=True)
        write_ahead_log(self.database).unlink(missing_ok=True)
        os.replace(fresh, self.database)
        self._stamp.write_text(views)
        for file in replaced:
            file.unlink(missing_ok=True)
        return self._ingest(report)

    def _in_order(self) -> list[Path]:
        """List the ingested segments in the order of their ingest."""
        # Rows of this table are only ever appended.
        order = [name for (name,) in rows_of_first(self._both, "select name from segments order by rowid")]
        return self._segments.folded(order)

    def _restored(self, file: Path, manifest: dict[str, Any] | None) -> None:
        """Build a new database from an archive generation, by default the current one."""
        import duckdb

        for name in (file, write_ahead_log(file)):
            name.unlink(missing_ok=True)
        try:
            with open_database(file) as connection:
                dates = dict(rows_of_first(self._both, "select number, applied_at from migrations"))
                apply_sql(connection, sql_folder(), dates)
                self.archive.restore(connection, manifest)
        except duckdb.Error as error:
            raise RecordError(f"the archive {self.archive.folder} cannot be read: {error}") from error
