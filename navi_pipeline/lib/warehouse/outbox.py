"""Outbox of a Navi home: segment files that wait for ingest, are ingested, or are in quarantine.

A segment is read and validated whole before the database is touched. A row replaces an earlier one of the same
natural key.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from itertools import accumulate, chain, count, groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from navi_core.errors import RecordError
from navi_core.record.durable import fsync_directory, sweep_left
from navi_core.record.metric_log import NATURAL_KEYS, RUN_TABLES, SEGMENT_VERSION
from navi_pipeline.lib.warehouse.database import number_of

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pandas

_SHARED = (
    *("run_id", "segment", "seed", "hardware", "versions", "revision"),
    *("config_hash", "host", "user", "dagster_run_id"),
)
"""Columns whose values may stand in the header line, for all rows."""


def _utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    except OverflowError as error:
        raise ValueError(f"{error} in UTC") from error  # pydantic adds the column


_JSON = Annotated[Any, AfterValidator(partial(json.dumps, allow_nan=False))]
_TIME = Annotated[datetime, AfterValidator(_utc)]
_TYPES: dict[str, Any] = {
    "VARCHAR": Annotated[str | _JSON, Field(union_mode="left_to_right")],
    "JSON": _JSON,
    "BIGINT": Annotated[int, Field(ge=-(2**63), lt=2**63)],
    "DOUBLE": float,
    "BOOLEAN": StrictBool,
    "TIMESTAMP": _TIME,
}
"""DuckDB type → type of a row's value."""


class Segment(BaseModel):
    """Validated segment of the outbox: header line, file name, columns of converted values.

    Attributes:
        navi_segment: Version of the file's layout.
        table: Destination, or None for a mark that drops the run's earlier rows.
        run_id: Run of the producer.
        context: Values that all rows share.
        rows: Number of rows.
        sha256: Checksum of the rows.
        created_at: Time of writing, UTC.
        name: File name; names sort in the order of writing.
        columns: Every column of the table → its values in the order of the rows, converted to the column's type.
    """

    navi_segment: Annotated[int, Field(ge=SEGMENT_VERSION, le=SEGMENT_VERSION)]
    table: str | None
    run_id: str
    context: dict[str, Any]
    rows: int
    sha256: str
    created_at: _TIME
    name: str = ""
    columns: dict[str, list[Any]] = {}


def read_segment(path: Path, columns: dict[str, dict[str, str]]) -> Segment:
    """Read and validate one segment file.

    Args:
        path: Segment file.
        columns: Table → column → DuckDB type, as the database has them.

    Raises:
        RecordError: The reason why the segment belongs into quarantine.
    """
    if not path.is_file():
        raise RecordError("not a regular file")
    with RecordError.of_system("cannot be read"):
        head, _, body = path.read_bytes().partition(b"\n")
    try:
        segment = Segment.model_validate_json(head)
    except ValidationError as error:
        raise RecordError(f"the header line is broken: {_fault(error, 'segment')}") from error
    found, table = hashlib.sha256(body).hexdigest(), segment.table
    if found != segment.sha256:
        raise RecordError(f"checksum {found[:12]} is not the header's {segment.sha256[:12]}: truncated or changed")
    lines = body.split(b"\n")[:-1]
    if len(lines) != segment.rows:
        raise RecordError(f"{len(lines)} rows, the header has {segment.rows}")
    if table is None:
        return segment.model_copy(update={"name": path.name})
    if table not in NATURAL_KEYS or table not in columns:
        raise RecordError(f"no table {table!r}; known: {', '.join(NATURAL_KEYS)}")
    context = segment.context | {"run_id": segment.run_id, "segment": path.name}
    values = read_columns(lines, context, table, columns[table])
    return segment.model_copy(update={"name": path.name, "columns": values})


def read_columns(
    lines: list[bytes], context: dict[str, Any], table: str, kinds: dict[str, str]
) -> dict[str, list[Any]]:
    """Parse JSON lines into typed columns.

    Args:
        lines: JSON objects. Values without a column of their own go to the column `extra`.
        context: Values of columns that a row does not name; the others go to `extra`, too.
        table: Destination.
        kinds: Its columns and their DuckDB types.

    Returns:
        Columns as in `Segment`.

    Raises:
        RecordError: A line is no object, or a value does not fit its column; line and column are named.
    """
    parse = _row_type(table, tuple(kinds.items())).validate_json
    head = {name: context[name] for name in _SHARED if name in context}
    rest = {name: value for name, value in context.items() if name not in _SHARED}
    rows: list[dict[str, Any]] = []
    for number, line in enumerate([json.dumps(head).encode(), *lines], start=1):
        try:
            row = parse(line)
            given = row.get("extra")
            more = rest | {name: value for name, value in row.items() if name not in kinds}
            more |= {} if given is None else given if isinstance(given, dict) else {"extra": given}
            row["extra"] = json.dumps(more, allow_nan=False) if more else None
        except ValueError as error:
            raise RecordError(f"line {number}: {_fault(error, table)}") from error
        rows.append(row)
    shared, *rows = rows
    columns = {name: [row.get(name, shared.get(name)) for row in rows] for name in kinds}
    for name in NATURAL_KEYS[table]:
        if None in columns[name]:
            raise RecordError(f"line {columns[name].index(None) + 2}: key column {name} of {table} is missing")
    return columns


@cache
def _row_type(table: str, kinds: tuple[tuple[str, str], ...]) -> TypeAdapter[dict[str, Any]]:
    """Return the parser of a table's rows, from its columns and their DuckDB types."""
    types = {name: _TYPES[kind] | None for name, kind in kinds} | {"extra": Any}
    row = TypedDict(table, types, total=False)  # type: ignore[misc]
    return TypeAdapter(with_config(ConfigDict(extra="allow"))(row))  # type: ignore[arg-type]


def _fault(error: ValueError, table: str) -> str:
    """Return column, value and reason of the first value that does not fit."""
    if not isinstance(error, ValidationError):
        return f"{table}.extra: {error}"
    first = error.errors(include_url=False)[0]
    return "".join(f"{table}.{name} = {first['input']!r}: " for name in first["loc"][:1]) + first["msg"]


def table_columns(connection: duckdb.DuckDBPyConnection) -> dict[str, dict[str, str]]:
    """Return table → column → DuckDB type of the tables that accept rows."""
    rows = connection.execute(
        "select table_name, map_from_entries(list((column_name, data_type) order by column_index)) "
        "from duckdb_columns() where schema_name = 'main' and not internal group by all order by all"
    ).fetchall()
    return {table: kinds for table, kinds in rows if table in NATURAL_KEYS}


def batches(files: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield segments in batches that memory holds: at most `_BATCH_SEGMENTS`, and about `_BATCH_BYTES`."""
    ends = accumulate(file.lstat().st_size for file in files)
    # A batch is what ends within one stretch of bytes, so a larger segment is a batch of its own.
    places = zip(count(), ends, files)
    for _, batch in groupby(places, lambda at: (at[0] // _BATCH_SEGMENTS, at[1] // _BATCH_BYTES)):
        yield [file for *_, file in batch]


def fold_segments(
    connection: duckdb.DuckDBPyConnection, segments: Sequence[Segment], columns: dict[str, dict[str, str]]
) -> None:
    """Insert the rows of `segments` into their tables, within the caller's transaction.

    Args:
        connection: The writer's connection.
        segments: Validated segments in the order of writing.
        columns: Result of `table_columns`.

    Raises:
        RecordError: The database took another number of rows than it was given.
    """
    # What was written before a mark goes in first, so that the mark can drop it.
    for mark, part in groupby(segments, lambda segment: segment.table is None):
        if mark:
            runs = [segment.run_id for segment in part]
            for dropped in RUN_TABLES:
                connection.execute(f"delete from {dropped} where run_id in (select unnest(?))", [runs])
            continue
        for table, group in groupby(sorted(part, key=attrgetter("table")), attrgetter("table")):
            _fold_table(connection, table, list(group), columns[table])
    rows = [(s.name, s.table, s.run_id, s.rows, s.sha256, s.created_at) for s in segments]
    connection.execute(
        "insert into segments by name select unnest(?) as name, unnest(?::varchar[]) as table_name, "
        "unnest(?) as run_id, unnest(?) as row_count, unnest(?) as sha256, unnest(?) as created_at, ? as ingested_at",
        [*map(list, zip(*rows, strict=True)), datetime.now(UTC).replace(tzinfo=None)],
    )


def _fold_table(
    connection: duckdb.DuckDBPyConnection, table: str, segments: list[Segment], kinds: dict[str, str]
) -> None:
    """Upsert the rows of segments into their table by natural key; the last sent row of a key wins.

    Raises:
        RecordError: The database took another number of rows than it was given.
    """
    import numpy as np
    import pandas

    arrays: dict[str, Any] = {
        name: _array(list(chain.from_iterable(segment.columns[name] for segment in segments)), kind)
        for name, kind in kinds.items()
    }
    arrays["sent"] = np.arange(sum(segment.rows for segment in segments))
    connection.register("incoming", pandas.DataFrame(arrays, copy=False))
    # Texts arrive as enumerations; one that is cast to JSON directly would become a JSON string.
    casts = ", ".join(
        f"cast({f'cast({name} as varchar)' if kind == 'JSON' else name} as {kind}) as {name}"
        for name, kind in kinds.items()
    )
    # As a table first: the window function over a frame takes half as long again.
    connection.execute(f"create or replace temp table incoming_rows as select {casts}, sent from incoming")
    connection.unregister("incoming")
    key = NATURAL_KEYS[table]
    wanted = number_of(
        connection.execute(
            "create or replace temp table newest as select * exclude (sent) from incoming_rows "
            f"qualify row_number() over (partition by {', '.join(key)} order by sent desc) = 1"
        )
    )
    same = " and ".join(f"{table}.{name} = newest.{name}" for name in key)
    connection.execute(f"delete from {table} using newest where {same}")
    done = number_of(connection.execute(f"insert into {table} by name select * from newest"))
    if done != wanted:
        raise RecordError(f"{table}: {wanted} rows were sent, the database took {done}")
    connection.execute("drop table newest; drop table incoming_rows")


def _array(values: list[Any], kind: str) -> np.ndarray | pandas.Categorical:
    """Convert one column to the array type that DuckDB reads fastest without loss."""
    import numpy as np
    import pandas

    if kind in ("VARCHAR", "JSON", "TIMESTAMP"):
        # Rows of one call share their texts and their moment, and a conversion costs more than looking it up.
        first = next(iter(values), None)
        if values.count(first) == len(values):  # most columns of a segment, found in a tenth of the time
            codes, known = np.full(len(values), -(first is None), np.int8), [] if first is None else [first]
        else:
            codes, known = pandas.factorize(np.array(values, dtype=object))
        if kind == "TIMESTAMP":
            return np.array([*known, None], "datetime64[us]")[codes]  # -1, a missing one, is the last
        return pandas.Categorical.from_codes(codes, categories=pandas.Index(known, dtype=object), validate=False)
    if kind in ("BIGINT", "DOUBLE") and None not in values:
        numbers = np.array(values, "int64" if kind == "BIGINT" else "float64")
        if not np.isnan(numbers).any():
            return numbers
    # Object columns keep integers whole beside missing ones.
    # pandas and DuckDB take NaN for a missing number; as text it stays what it is.
    objects = np.empty(len(values), dtype=object)
    objects[:] = [repr(value) if isinstance(value, float) else value for value in values]
    return objects


_BATCH_SEGMENTS, _BATCH_BYTES = 2000, 2**25
"""Limits of one transaction: segments, bytes. A row takes five times its bytes in memory."""


@dataclass
class IngestReport:
    """Result of one ingest: segments, rows, refused segments, migrations.

    Attributes:
        segments: Ingested segments.
        rows: Their rows, before rows of equal key replaced each other.
        repeated: Segments that an interrupted ingest had already ingested.
        quarantined: Refused segment → reason.
        migrations: Migrations applied.
        not_folded: Reason why nothing was ingested, if readers can still query.
    """

    segments: int = 0
    rows: int = 0
    repeated: int = 0
    quarantined: dict[str, str] = field(default_factory=dict)
    migrations: list[str] = field(default_factory=list)
    not_folded: str = ""


class Outbox:
    """Outbox folders of a warehouse: ingests, quarantines and lists segments; moves need the warehouse's lock.

    Args:
        folder: Folder that producers write to, with `done/` and `quarantine/`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.done, self.quarantine = folder, folder / "done", folder / "quarantine"

    def waiting(self) -> list[Path]:
        """List the segments that wait for ingest, in the order of writing; leftovers of dead producers are removed."""
        sweep_left(self.folder)
        return sorted(self.folder.glob("*.ndjson"), key=lambda file: file.name)

    def folded(self, order: Sequence[str] = ()) -> list[Path]:
        """List the ingested segments, in the order of ingest where known, else of writing.

        Args:
            order: Segment names in the order of ingest, which they keep. The rest is in the order of writing.
        """
        files = {file.name: file for file in self.done.glob("*.ndjson")}
        known = [name for name in order if name in files]
        replay = iter(known)
        ordered = set(known)
        return [files[next(replay) if name in ordered else name] for name in sorted(files)]

    def fold(self, connection: duckdb.DuckDBPyConnection, files: list[Path], report: IngestReport) -> None:
        """Ingest segments, one transaction per batch; each batch moves to `done/` after its commit.

        Args:
            connection: The writer's connection.
            files: Result of `waiting` or `folded`.
            report: Report of the ingest, updated in place.

        Raises:
            RecordError: The database took another number of rows than it was given.
        """
        for batch in batches(files):
            self._fold(connection, batch, report)

    def _fold(self, connection: duckdb.DuckDBPyConnection, files: list[Path], report: IngestReport) -> None:
        columns = table_columns(connection)
        known = dict(
            connection.execute(
                "select name, sha256 from segments where name in (select unnest(?))", [[file.name for file in files]]
            ).fetchall()
        )
        read: dict[Path, Segment] = {}
        for file in files:
            try:
                segment = read_segment(file, columns)
                if known.get(segment.name, segment.sha256) != segment.sha256:
                    raise RecordError("a segment of this name but other content was folded in before")
            except RecordError as error:
                # The reason goes first: a segment in quarantine always has one.
                (self.quarantine / f"{file.name}.reason.txt").write_text(f"{error}\n", "utf-8")
                os.replace(file, self.quarantine / file.name)
                report.quarantined[file.name] = str(error)
            else:
                read[file] = segment
        fresh = [segment for segment in read.values() if segment.name not in known]
        if fresh:
            connection.execute("begin")
            try:
                fold_segments(connection, fresh, columns)
                connection.execute("commit")
            except BaseException:
                import duckdb

                # After a full disk the database has ended the transaction by itself; its reason is the one to report.
                with suppress(duckdb.Error):
                    connection.execute("rollback")
                raise
        report.repeated += len(read) - len(fresh)
        report.segments += len(fresh)
        report.rows += sum(segment.rows for segment in fresh)
        for file in read:
            os.replace(file, self.done / file.name)
        if read:
            fsync_directory(self.done)
            fsync_directory(self.folder)
