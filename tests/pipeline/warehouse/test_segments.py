"""Segment reader: columns of a segment against a row-by-row reference."""

import json

import pytest

from navi_core.errors import RecordError
from navi_pipeline.lib.warehouse.segments import _CONVERT, read_columns

KINDS = {
    "run_id": "VARCHAR", "step": "BIGINT", "name": "VARCHAR", "value": "DOUBLE", "ok": "BOOLEAN",
    "recorded_at": "TIMESTAMP", "seed": "BIGINT", "versions": "JSON", "segment": "VARCHAR", "extra": "JSON",
}  # fmt: skip
SHARED = {"run_id": "r", "segment": "s.ndjson", "seed": 3, "versions": {"a": "1"}}
ROW = {"step": 1, "name": "a", "value": 0.5, "ok": True, "recorded_at": "2026-01-01T10:00:00.25+02:00"}


def read(rows, rest=None):
    body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return read_columns(body, SHARED, rest or {}, "metrics", KINDS)


def reference(rows, rest=None):
    """Return every column, each row converted by itself."""
    columns = {name: [] for name in KINDS}
    for row in rows:
        extra = (rest or {}) | {name: value for name, value in row.items() if name not in KINDS}
        extra |= row.get("extra") or {}
        values = SHARED | row | {"extra": extra or None}
        for name, kind in KINDS.items():
            value = values.get(name)
            columns[name].append(None if value is None else _CONVERT[kind](value))
    return columns


@pytest.mark.parametrize(
    "rows",
    [
        [ROW, ROW | {"step": 2, "value": 7}],
        [ROW | {"value": None}, ROW | {"value": "NaN"}, ROW | {"value": "-Infinity"}],
        [ROW | {"versions": {"b": [1]}, "seed": None, "recorded_at": None, "ok": None}],
        [ROW | {"name": "Ü\n\"'{}"}],
        [ROW, {"step": 1, "name": "b"}],
        [ROW | {"seed": 4}, ROW],
        [ROW | {"colour": "red"}, ROW],
        [ROW | {"extra": {"a": 1}, "colour": "red"}],
        [ROW | {"step": 1.0}],
        [ROW | {"step": True}],
        [ROW | {"value": "0.5"}],
        [ROW | {"name": 5}],
        [ROW | {"name": "\U0001f680"}],
        [],
    ],
)
@pytest.mark.parametrize("rest", [{}, {"place": "hall"}])
def test_read_columns_equals_row_by_row_conversion(rows, rest):
    found, expected = read(rows, rest), reference(rows, rest)
    assert {n: list(map(repr, v)) for n, v in found.items()} == {n: list(map(repr, v)) for n, v in expected.items()}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW | {"step": 2**63}, r"line 3: metrics.step = 9223372036854775808 is not BIGINT"),
        (ROW | {"step": 1.5}, r"line 3: metrics.step = 1.5 is not BIGINT: it has a fraction"),
        (ROW | {"step": None}, r"line 3: key column step of metrics is missing"),
        (ROW | {"ok": 1}, r"line 3: metrics.ok = 1 is not BOOLEAN"),
        (ROW | {"name": "\ud800"}, r"line 3 holds text that is not Unicode"),
        (ROW | {"recorded_at": "soon"}, r"line 3: metrics.recorded_at = 'soon' is not TIMESTAMP"),
        ([1], r"line 3 is not an object"),
    ],
)
def test_a_faulty_value_is_reported_with_its_line(row, message):
    with pytest.raises(RecordError, match=message):
        read([ROW, row])


@pytest.mark.parametrize(
    "body",
    [b'{"step":1,"name":"a","value":[1\n2]}\n', b'{"step":1,"name":"a"},{"step":2,"name":[1\n2]}\n'],
)
def test_json_row_split_over_two_lines_is_refused(body):
    with pytest.raises(RecordError, match="line 2 is not JSON"):
        read_columns(body, SHARED, {}, "metrics", KINDS)
