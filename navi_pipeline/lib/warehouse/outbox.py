"""The outbox of a home: segments that wait, those that were folded in, and those that were refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.errors import RecordError
from navi_core.record.durable import fsync_directory, sweep_left
from navi_pipeline.lib.warehouse.database import open_database
from navi_pipeline.lib.warehouse.folding import fold_segments, table_columns
from navi_pipeline.lib.warehouse.segments import Segment, read_segment

if TYPE_CHECKING:
    import duckdb

_BATCH_SEGMENTS, _BATCH_BYTES = 2000, 2**25
"""Of a transaction. A row takes five times its bytes in memory, and a service writes segments of megabytes."""


@dataclass
class IngestReport:
    """What one ingest did.

    Attributes:
        segments: Segments folded in.
        rows: Rows of them, before rows of equal key replaced each other.
        repeated: Segments that an interrupted ingest had folded in already.
        quarantined: Refused segment → reason.
        migrations: Migrations applied.
        not_folded: Why nothing was folded in, where that hinders no reader.
    """

    segments: int = 0
    rows: int = 0
    repeated: int = 0
    quarantined: dict[str, str] = field(default_factory=dict)
    migrations: list[str] = field(default_factory=list)
    not_folded: str = ""


class Outbox:
    """Files on their way into the warehouse; whoever moves them holds the warehouse's lock.

    Args:
        folder: Where producers write; `done/` and `quarantine/` lie in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.done, self.quarantine = folder, folder / "done", folder / "quarantine"

    def waiting(self) -> list[Path]:
        """Return the segments that wait, in the order of writing; what killed producers left is removed."""
        sweep_left(self.folder)
        return sorted(self.folder.glob("*.ndjson"), key=lambda file: file.name)

    def folded(self, order: Sequence[str] = ()) -> list[Path]:
        """Return the segments whose rows are in the database.

        Args:
            order: Names in the order of folding; they keep it among each other. The rest is in the order of writing.
        """
        files = {file.name: file for file in self.done.glob("*.ndjson")}
        known = [name for name in order if name in files]
        replay = iter(known)
        ordered = set(known)
        return [files[next(replay) if name in ordered else name] for name in sorted(files)]

    def fold(self, connection: duckdb.DuckDBPyConnection, files: list[Path], report: IngestReport) -> None:
        """Fold segments in, a transaction for each batch; they move to `done/` behind it.

        Args:
            connection: The writer's connection.
            files: What `waiting` or `folded` returned.
            report: Of the ingest; added to.

        Raises:
            RecordError: The database took another number of rows than it was given.
        """
        for batch in _batches(files):
            self._fold(connection, batch, report)

    def _fold(self, connection: duckdb.DuckDBPyConnection, files: list[Path], report: IngestReport) -> None:
        columns = table_columns(connection)
        known = dict(
            connection.execute(
                "select name, sha256 from segments where name in (select unnest(?))", [[file.name for file in files]]
            ).fetchall()
        )
        fresh: list[Segment] = []
        moves: list[Path] = []
        for file in files:
            try:
                segment = read_segment(file, columns)
                if known.get(segment.name, segment.sha256) != segment.sha256:
                    raise RecordError("a segment of this name but other content was folded in before")
            except (RecordError, UnicodeDecodeError) as error:
                self._set_aside(file, str(error), report)
                continue
            moves.append(file)
            if segment.name in known:
                report.repeated += 1
            else:
                fresh.append(segment)
        if fresh:
            connection.execute("begin")
            try:
                fold_segments(connection, fresh, columns)
                connection.execute("commit")
            except BaseException:
                connection.execute("rollback")
                raise
        report.segments += len(fresh)
        report.rows += sum(segment.count for segment in fresh)
        for file in moves:
            os.replace(file, self.done / file.name)
        if moves:
            fsync_directory(self.done)
            fsync_directory(self.folder)

    def _set_aside(self, file: Path, reason: str, report: IngestReport) -> None:
        # The reason goes first: a segment in quarantine always has one.
        (self.quarantine / f"{file.name}.reason.txt").write_text(reason + "\n", "utf-8")
        os.replace(file, self.quarantine / file.name)
        report.quarantined[file.name] = reason


def _batches(files: list[Path]) -> Iterator[list[Path]]:
    """Yield segments that go in together, in order."""
    batch: list[Path] = []
    size = 0
    for file in files:
        held = file.lstat().st_size
        if batch and (len(batch) == _BATCH_SEGMENTS or size + held > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += held
    if batch:
        yield batch


def folding_order(databases: Sequence[Path]) -> list[str]:
    """Return the names of all folded segments in the order of folding.

    Args:
        databases: The database and its snapshot; the first that can be read counts.

    Returns:
        Names; empty where none can be read.
    """
    import duckdb

    for file in databases:
        with suppress(duckdb.Error):
            if file.exists():
                with open_database(file, reader=file != databases[0]) as connection:
                    # Rows of this table are only ever appended.
                    rows = connection.execute("select name from segments order by rowid").fetchall()
                return [name for name, *_ in rows]
    return []
