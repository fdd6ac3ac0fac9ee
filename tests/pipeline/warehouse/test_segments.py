"""Segment reader: types of the columns, and faults with their line."""

import json
from datetime import datetime

import pytest

from navi_core.errors import RecordError
from navi_pipeline.lib.warehouse.outbox import read_columns, read_segment

KINDS = {
    "run_id": "VARCHAR", "step": "BIGINT", "name": "VARCHAR", "value": "DOUBLE", "ok": "BOOLEAN",
    "recorded_at": "TIMESTAMP", "seed": "BIGINT", "versions": "JSON", "segment": "VARCHAR", "extra": "JSON",
}  # fmt: skip
SHARED = {"run_id": "r", "segment": "s.ndjson", "seed": 3, "versions": {"a": "1"}}
ROW = {"step": 1, "name": "a", "value": 0.5, "ok": True, "recorded_at": "2026-01-01T10:00:00.25+02:00"}


def read(rows, context=None):
    lines = [json.dumps(row).encode() for row in rows]
    return read_columns(lines, SHARED | (context or {}), "metrics", KINDS)


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ({}, "value", 0.5),
        ({}, "recorded_at", datetime(2026, 1, 1, 8, 0, 0, 250000)),
        ({}, "seed", 3),
        ({}, "versions", '{"a": "1"}'),
        ({}, "extra", None),
        ({"value": 7}, "value", 7.0),
        ({"value": "-Infinity"}, "value", float("-inf")),
        ({"value": "0.5"}, "value", 0.5),
        ({"value": None}, "value", None),
        ({"versions": {"b": [1]}}, "versions", '{"b": [1]}'),
        ({"seed": None}, "seed", None),
        ({"seed": 4}, "seed", 4),
        ({"name": "Ü\n\"'{}\U0001f680"}, "name", "Ü\n\"'{}\U0001f680"),
        ({"name": 5}, "name", "5"),
        ({"step": 1.0}, "step", 1),
        ({"step": True}, "step", 1),
        ({"colour": "red"}, "extra", '{"colour": "red"}'),
        ({"extra": {"a": 1}, "colour": "red"}, "extra", '{"colour": "red", "a": 1}'),
        ({"extra": "a", "colour": "red"}, "extra", '{"colour": "red", "extra": "a"}'),
        ({"extra": [0]}, "extra", '{"extra": [0]}'),
        ({"extra": None}, "extra", None),
    ],
)
def test_values_have_the_type_of_their_column(row, column, value):
    plain, changed = read([ROW, ROW | row])[column]
    assert (type(changed), changed) == (type(value), value)
    assert plain == read([ROW])[column][0]


def test_further_values_of_the_header_go_to_extra():
    assert read([ROW, ROW | {"colour": "red"}], {"place": "hall"})["extra"] == [
        '{"place": "hall"}',
        '{"place": "hall", "colour": "red"}',
    ]
    assert read([]) == {name: [] for name in KINDS}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW | {"step": 2**63}, r"line 3: metrics.step = 9223372036854775808: Input should be less"),
        (ROW | {"step": 1.5}, r"line 3: metrics.step = 1.5: .* fractional part"),
        (ROW | {"step": None}, r"line 3: key column step of metrics is missing"),
        (ROW | {"ok": 1}, r"line 3: metrics.ok = 1: .* valid boolean"),
        (ROW | {"name": "\ud800"}, r"line 3: Invalid JSON"),
        (ROW | {"recorded_at": "soon"}, r"line 3: metrics.recorded_at = 'soon': .* valid datetime"),
        (
            ROW | {"recorded_at": "0001-01-01T00:00:00+14:00"},
            r"metrics.recorded_at = '0001.* range in UTC$",
        ),
        (ROW | {"colour": [float("inf")]}, r"line 3: metrics.extra: Out of range float"),
        ([1], r"line 3: Input should be an object"),
    ],
)
def test_a_faulty_value_is_reported_with_its_line(row, message):
    with pytest.raises(RecordError, match=message):
        read([ROW, row])


@pytest.mark.parametrize("first", [b'{"step":1,"name":"a","value":[1', b'{"step":1,"name":"a"},{"step":2,"name":[1'])
def test_json_row_split_over_two_lines_is_refused(first):
    with pytest.raises(RecordError, match="line 2: Invalid JSON"):
        read_columns([first, b"2]}"], SHARED, "metrics", KINDS)


def test_header_of_another_version_has_a_reason_of_one_line(tmp_path):
    header = {"navi_segment": 2, "table": None, "run_id": "r", "context": {}, "rows": 0, "sha256": "", "created_at": 0}
    (tmp_path / "s.ndjson").write_text(json.dumps(header) + "\n")
    with pytest.raises(RecordError) as refused:
        read_segment(tmp_path / "s.ndjson", {})
    reason = "the header line is broken: segment.navi_segment = 2: Input should be less than or equal to 1"
    assert str(refused.value) == reason
