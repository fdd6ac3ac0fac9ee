"""Reading one segment of the outbox back: every check that can fail before the database is touched.

Rows of one shape, as producers write them, are parsed at once and checked column by column; whatever looks
otherwise is read row by row, which is slower and names the line and column of a fault. Both give the same
values; a test compares them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from navi_core.errors import RecordError
from navi_core.record.schema import NATURAL_KEYS, SEGMENT_VERSION

__all__ = ["Segment", "read_segment"]

_CONTEXT = ("seed", "hardware", "versions", "revision", "config_hash")
_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})


@dataclass(frozen=True)
class Segment:
    """A checked segment.

    Attributes:
        name: File name; names sort in the order of writing.
        table: Destination, or None for a mark that drops the run's earlier rows.
        run_id: Run of the producer.
        sha256: Checksum of the rows.
        created_at: Time of writing, UTC.
        count: Rows.
        columns: Column → its values in the order of the rows, converted to the column's type.
        shared: Column → the one value that all rows share; with `columns` every column of the table.
    """

    name: str
    table: str | None
    run_id: str
    sha256: str
    created_at: datetime
    count: int
    columns: dict[str, list[Any]]
    shared: dict[str, Any]


def read_segment(path: Path, columns: dict[str, dict[str, str]]) -> Segment:
    """Read and check one segment file.

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
    try:
        header = json.loads(head)
        version = header["navi_segment"]
        table, run_id, context = header["table"], header["run_id"], header["context"]
        count, digest, created = int(header["rows"]), str(header["sha256"]), _timestamp(header["created_at"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise RecordError(f"the header line is broken: {type(error).__name__} {error}") from error
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
        raise RecordError(f"{lines} rows, the header says {count}")
    if table is None:
        return Segment(path.name, None, run_id, digest, created, 0, {}, {})
    if table not in NATURAL_KEYS or table not in columns:
        raise RecordError(f"no table {table!r}; known: {', '.join(NATURAL_KEYS)}")
    shared = {name: context.get(name) for name in _CONTEXT} | {"run_id": run_id, "segment": path.name}
    rest = {name: value for name, value in context.items() if name not in _CONTEXT}
    read = read_plain_rows(body, count, shared, rest, table, columns[table])
    if read is None:
        read = read_rows(body, shared, rest, table, columns[table]), {}
    return Segment(path.name, table, run_id, digest, created, count, *read)


def read_rows(
    body: bytes, shared: dict[str, Any], rest: dict[str, Any], table: str, kinds: dict[str, str]
) -> dict[str, list[Any]]:
    """Read any rows, one by one.

    Args:
        body: Lines of JSON objects.
        shared: Values of columns that a row does not name.
        rest: What the header's context holds beyond the columns.
        table: Destination.
        kinds: Its columns and their DuckDB types.

    Returns:
        Every column of the table.

    Raises:
        RecordError: A line is no object, or a value does not fit its column; line and column are named.
    """
    lines = body.decode().split("\n")[:-1]
    rows = [_typed(number, line, shared, rest, table, kinds) for number, line in enumerate(lines, start=2)]
    return {name: [row[name] for row in rows] for name in kinds}


def read_plain_rows(
    body: bytes, count: int, shared: dict[str, Any], rest: dict[str, Any], table: str, kinds: dict[str, str]
) -> tuple[dict[str, list[Any]], dict[str, Any]] | None:
    """Read rows that all name the same known columns, with values of their columns' types.

    Args:
        body: `count` lines of JSON objects.
        count: Number of rows.
        shared: Values of columns that a row does not name.
        rest: What the header's context holds beyond the columns.
        table: Destination.
        kinds: Its columns and their DuckDB types.

    Returns:
        Columns and shared values as in `Segment`; None where the rows are not of this simple form.
    """
    if not body.startswith(b"{") or not body.endswith(b"}\n") or body.count(b"}\n{") != count - 1:
        return None
    if b"\\ud" in body.lower():
        return None
    try:
        rows = json.loads(b"[" + body[:-1].replace(b"\n", b",") + b"]")
    except (ValueError, RecursionError):
        return None
    names = set(rows[0]) if len(rows) == count and isinstance(rows[0], dict) else set()
    if not names or "extra" in names or not names <= set(kinds):
        return None
    if any(type(row) is not dict or row.keys() != names for row in rows):
        return None
    columns = {}
    for name in names:
        values = _plain_column([row[name] for row in rows], kinds[name], name in NATURAL_KEYS[table])
        if values is None:
            return None
        columns[name] = values
    try:
        same = {name: _one(shared.get(name), kind) for name, kind in kinds.items() if name not in names}
    except (ValueError, TypeError, OverflowError, KeyError):
        return None
    if "extra" in kinds:
        same["extra"] = json.dumps(rest) if rest else None
    if any(same.get(name, 0) is None for name in NATURAL_KEYS[table]):
        return None
    return columns, same


def _plain_column(values: list[Any], kind: str, key: bool) -> list[Any] | None:
    """Convert a column; None where a value needs a closer look."""
    types = set(map(type, values))
    if key and type(None) in types:
        return None
    types.discard(type(None))
    if kind == "DOUBLE":
        if types == {float}:
            return values
        if types <= {float, int, str} and all(value in _NOT_FINITE for value in values if type(value) is str):
            return [None if value is None else float(value) for value in values]
    elif kind == "BIGINT":
        if types <= {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
            return values
    elif kind == "VARCHAR":
        if types <= {str}:
            return values
    elif kind == "BOOLEAN":
        if types <= {bool}:
            return values
    elif kind == "JSON":
        return [None if value is None else json.dumps(value) for value in values]
    elif kind == "TIMESTAMP" and types <= {str}:
        try:
            known = {text: _one(text, kind) for text in set(values)}
        except (ValueError, OverflowError):
            return None
        return [known[text] for text in values]
    return None


def _one(value: Any, kind: str) -> Any:
    return None if value is None else _CONVERT[kind](value)


def _typed(
    number: int, line: str, shared: dict[str, Any], rest: dict[str, Any], table: str, columns: dict[str, str]
) -> dict[str, Any]:
    try:
        sent = json.loads(line)
        _check_text(line.encode(), number)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"line {number} is not JSON: {error}") from error
    if not isinstance(sent, dict):
        raise RecordError(f"line {number} is not an object")
    values = shared | {name: value for name, value in sent.items() if name in columns and name != "extra"}
    extra = rest | {name: value for name, value in sent.items() if name not in columns}
    if "extra" in sent and sent["extra"] is not None:
        extra |= sent["extra"] if isinstance(sent["extra"], dict) else {"extra": sent["extra"]}
    values["extra"] = extra or None
    row: dict[str, Any] = {}
    for column, kind in columns.items():
        value = values.get(column)
        if value is None:
            row[column] = None
            continue
        try:
            row[column] = _CONVERT[kind](value)
        except (ValueError, TypeError, OverflowError, KeyError) as error:
            raise RecordError(f"line {number}: {table}.{column} = {value!r} is not {kind}: {error}") from error
    missing = [column for column in NATURAL_KEYS[table] if row[column] is None]
    if missing:
        raise RecordError(f"line {number}: key column {', '.join(missing)} of {table} is missing")
    return row


def _check_text(line: bytes, number: int) -> None:
    """Refuse half a surrogate pair: JSON can spell it, no database can store it."""
    if b"\\ud" not in line.lower():
        return
    try:
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"line {number} holds text that is not Unicode: {error.reason}") from error


def _timestamp(value: Any) -> datetime:
    moment = datetime.fromisoformat(value)
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _integer(value: Any) -> int:
    number = int(value)
    if number != float(value):
        raise ValueError("it has a fraction")
    if not -(2**63) <= number < 2**63:
        raise OverflowError("it does not fit 64 bits")
    return number


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("not true or false")
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "VARCHAR": _text,
    "JSON": json.dumps,
    "BIGINT": _integer,
    "DOUBLE": float,
    "BOOLEAN": _boolean,
    "TIMESTAMP": _timestamp,
}
