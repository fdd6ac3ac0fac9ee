"""Rows parsed at once and rows read one by one: the same values, or the closer look."""

import json

import pytest

from navi_pipeline.lib.warehouse.segments import read_plain_rows, read_rows

KINDS = {
    "run_id": "VARCHAR", "step": "BIGINT", "name": "VARCHAR", "value": "DOUBLE", "ok": "BOOLEAN",
    "recorded_at": "TIMESTAMP", "seed": "BIGINT", "versions": "JSON", "segment": "VARCHAR", "extra": "JSON",
}  # fmt: skip
SHARED = {"run_id": "r", "segment": "s.ndjson", "seed": 3, "versions": {"a": "1"}}
ROW = {"step": 1, "name": "a", "value": 0.5, "ok": True, "recorded_at": "2026-01-01T10:00:00.25+02:00"}


def both(rows, rest=None):
    body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    arguments = (SHARED, rest or {}, "metrics", KINDS)
    return read_plain_rows(body, len(rows), *arguments), lambda: read_rows(body, *arguments)


@pytest.mark.parametrize(
    "rows",
    [
        [ROW, ROW | {"step": 2, "value": 7}],
        [ROW | {"value": None}, ROW | {"value": "NaN"}, ROW | {"value": "-Infinity"}],
        [ROW | {"versions": {"b": [1]}, "seed": None, "recorded_at": None, "ok": None}],
        [ROW | {"name": "Ü\n\"'{}"}],
    ],
)
@pytest.mark.parametrize("rest", [{}, {"colour": "red"}])
def test_rows_of_one_shape_read_at_once_are_the_rows_read_one_by_one(rows, rest):
    at_once, one_by_one = both(rows, rest)
    columns, same = at_once
    told = columns | {name: [value] * len(rows) for name, value in same.items()}
    expected = one_by_one()
    assert {n: list(map(repr, v)) for n, v in told.items()} == {n: list(map(repr, v)) for n, v in expected.items()}


@pytest.mark.parametrize(
    "rows",
    [
        [ROW, {"step": 1, "name": "b"}],
        [ROW | {"colour": "red"}],
        [ROW | {"extra": {"a": 1}}],
        [ROW | {"step": 1.0}],
        [ROW | {"step": 2**63}],
        [ROW | {"step": True}],
        [ROW | {"step": None}],
        [ROW | {"value": "0.5"}],
        [ROW | {"ok": 1}],
        [ROW | {"name": 5}],
        [ROW | {"name": "\ud800"}],
        [ROW | {"recorded_at": "soon"}],
        [[1], [2]],
        [],
    ],
)
def test_anything_else_is_given_a_closer_look(rows):
    assert both(rows)[0] is None


def test_lines_that_only_together_are_rows_are_not_taken_for_rows():
    body = b'{"step":1,"name":"a","value":[1\n2]}\n'
    assert read_plain_rows(body, 2, SHARED, {}, "metrics", KINDS) is None
