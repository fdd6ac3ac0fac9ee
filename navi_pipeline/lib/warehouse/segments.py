"""Segment reader: parses an outbox file (JSON lines) and validates it whole before the database is touched.

Rows are parsed at once and converted column by column; an error names its line and column.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from navi_core.errors import RecordError
from navi_core.record.metric_log import NATURAL_KEYS, SEGMENT_VERSION

_CONTEXT = ("seed", "hardware", "versions", "revision", "config_hash", "host", "user", "dagster_run_id")


@dataclass(frozen=True)
class Segment:
    """Validated segment of the outbox: destination table, checksum, columns of converted values.

    Attributes:
        name: File name; names sort in the order of writing.
        table: Destination, or None for a mark that drops the run's earlier rows.
        run_id: Run of the producer.
        sha256: Checksum of the rows.
        created_at: Time of writing, UTC.
        count: Rows.
        columns: Every column of the table → its values in the order of the rows, converted to the column's type.
    """

    name: str
    table: str | None
    run_id: str
    sha256: str
    created_at: datetime
    count: int
    columns: dict[str, list[Any]]


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
    try:
        head, newline, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror or error}") from error
    version, table, run_id, context, count, digest, created = _header(head)
    if not newline:
        raise RecordError("the file ends within its header line")
    if version != SEGMENT_VERSION:
        raise RecordError(f"segment version {version} is not {SEGMENT_VERSION}")
    if not isinstance(run_id, str) or not isinstance(context, dict) or not isinstance(table, (str, type(None))):
        raise RecordError("the header's table, run_id or context has the wrong type")
    found = hashlib.sha256(body).hexdigest()
    if found != digest:
        raise RecordError(f"checksum {found[:12]} is not the header's {digest[:12]}: truncated or changed")
    _check_text(head, 1)
    lines = body.count(b"\n")
    if lines != count:
        raise RecordError(f"{lines} rows, the header has {count}")
    if table is None:
        return Segment(path.name, None, run_id, digest, created, 0, {})
    if table not in NATURAL_KEYS or table not in columns:
        raise RecordError(f"no table {table!r}; known: {', '.join(NATURAL_KEYS)}")
    shared = {name: context.get(name) for name in _CONTEXT} | {"run_id": run_id, "segment": path.name}
    rest = {name: value for name, value in context.items() if name not in _CONTEXT}
    values = read_columns(body, shared, rest, table, columns[table])
    return Segment(path.name, table, run_id, digest, created, count, values)


def _header(line: bytes) -> tuple[object, Any, Any, Any, int, str, datetime]:
    """Parse a segment file's JSON header line: version, table, run_id, context (unchecked), rows, checksum, time."""
    try:
        header = json.loads(line)
        unchecked = header["navi_segment"], header["table"], header["run_id"], header["context"]
        return *unchecked, int(header["rows"]), str(header["sha256"]), _timestamp(header["created_at"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise RecordError(f"the header line is broken: {type(error).__name__} {error}") from error


def read_columns(
    body: bytes, shared: dict[str, Any], rest: dict[str, Any], table: str, kinds: dict[str, str]
) -> dict[str, list[Any]]:
    """Parse JSON lines into typed columns.

    Args:
        body: Lines of JSON objects.
        shared: Values of columns that a row does not name.
        rest: What the header's context holds beyond the columns.
        table: Destination.
        kinds: Its columns and their DuckDB types.

    Returns:
        Columns as in `Segment`.

    Raises:
        RecordError: A line is no object, or a value does not fit its column; line and column are named.
    """
    rows = _objects(body)
    names = set().union(*rows)
    shared = shared | {"extra": rest or None}
    if "extra" in names or not names <= kinds.keys():
        for row in rows:
            row["extra"] = _extra(row, rest, kinds) or None
        names.add("extra")
    columns: dict[str, list[Any]] = {}
    for name, kind in kinds.items():
        where, default = f"{table}.{name}", shared.get(name)
        if name in names:
            columns[name] = _converted([row.get(name, default) for row in rows], kind, where)
        else:
            columns[name] = _converted([default], kind, where) * len(rows)
    for name in NATURAL_KEYS[table]:
        if None in columns[name]:
            raise RecordError(f"line {columns[name].index(None) + 2}: key column {name} of {table} is missing")
    return columns


def _objects(body: bytes) -> list[dict[str, Any]]:
    """Parse all JSON lines at once; on failure one by one, to report the faulty line."""
    rows: list[Any] = []
    # Each line end stands between two objects, so no two lines can be read as one.
    if body.count(b"}\n{") == body.count(b"\n") - 1 and b"\\ud" not in body.lower():
        with suppress(ValueError, RecursionError):
            rows = json.loads(b"[" + body[:-1].replace(b"\n", b",") + b"]")
    if len(rows) == body.count(b"\n") and set(map(type, rows)) <= {dict}:
        return rows
    rows = []
    for number, line in enumerate(body.decode().split("\n")[:-1], start=2):
        try:
            rows.append(json.loads(line))
            _check_text(line.encode(), number)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"line {number} is not JSON: {error}") from error
        if type(rows[-1]) is not dict:
            raise RecordError(f"line {number} is not an object")
    return rows


def _extra(row: dict[str, Any], rest: dict[str, Any], kinds: dict[str, str]) -> dict[str, Any]:
    """Return a row's values without a column of their own, for the column `extra`."""
    extra = rest | {name: value for name, value in row.items() if name not in kinds and name != "extra"}
    given = row.get("extra")
    return extra if given is None else extra | (given if isinstance(given, dict) else {"extra": given})


def _converted(values: list[Any], kind: str, where: str) -> list[Any]:
    """Convert a column's values to its DuckDB type; unchanged if they have it already."""
    plain, types = _PLAIN.get(kind), set(map(type, values)) - {type(None)}
    if types <= {plain} and (plain is not int or all(value is None or abs(value) < 2**63 for value in values)):
        return values
    convert, converted = _CONVERT[kind], []
    for line, value in enumerate(values, start=2):
        try:
            converted.append(None if value is None else convert(value))
        except (ValueError, TypeError, OverflowError, KeyError) as error:
            raise RecordError(f"line {line}: {where} = {value!r} is not {kind}: {error}") from error
    return converted


def _check_text(line: bytes, number: int) -> None:
    """Raise if a line holds an unpaired surrogate, which JSON can spell but no database can store."""
    if b"\\ud" not in line.lower():
        return
    try:
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"line {number} holds text that is not Unicode: {error.reason}") from error


@lru_cache(maxsize=1024)  # rows of one call share their time, and a conversion costs more than a lookup
def _timestamp(value: str) -> datetime:
    moment = datetime.fromisoformat(value)
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _integer(value: str | float) -> int:
    number = int(value)
    if number != float(value):
        raise ValueError("it has a fraction")
    if not -(2**63) <= number < 2**63:
        raise OverflowError("it does not fit 64 bits")
    return number


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("not true or false")
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "VARCHAR": _text,
    "JSON": json.dumps,
    "BIGINT": _integer,
    "DOUBLE": float,
    "BOOLEAN": _boolean,
    "TIMESTAMP": _timestamp,
}
_PLAIN: dict[str, type] = {"VARCHAR": str, "BIGINT": int, "DOUBLE": float, "BOOLEAN": bool}
"""DuckDB type → Python type whose values need no conversion."""
