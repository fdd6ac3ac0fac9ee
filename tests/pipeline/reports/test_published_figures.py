"""Published figures: measured by their command, exported, drawn by the commit, verified within their interval."""

import csv

import pytest

from navi_core.errors import ConfigError, RecordError, RunError
from navi_pipeline.lib.records import BenchmarkLog
from navi_pipeline.lib.reports import published
from navi_pipeline.lib.reports.published import (
    Column,
    Measured,
    declared_tables,
    drawn,
    export,
    figures_of,
    publish,
    verify,
)

DECLARED = """
- id: advantages
  title: Advantages
  text: A kernel beside a loop.
  command: bench gae --size 16x4 --repeats 1 --json
  minutes: 0.1
  label: [way, steps]
  columns:
    - {key: times_python, title: Speed, unit: ×, tolerance: 0.9, n: rows}
    - {key: error, title: Error, unit: "", most: 1.0e-6}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "figures.yaml").write_text(DECLARED)
    monkeypatch.setattr(published, "_folder", lambda: tmp_path)
    return tmp_path


def test_figures_are_measured_recorded_exported_and_verified(folder):
    found = publish([], lambda _: None)
    assert found["advantages/python loop, 16/times_python"] == Measured(value=1.0, n=4)
    assert export() == len(found) == 4
    with (folder / "figures.csv").open() as lines:
        rows = {row["figure"]: row for row in csv.DictReader(lines)}
    loop = rows["advantages/python loop, 16/times_python"]
    assert loop["command"] == "navi bench gae --size 16x4 --repeats 1 --json"
    assert loop["n"] == "4" and loop["unit"] == "×" and loop["revision"] and loop["machine"] and loop["date"]
    before = (folder / "figures.csv").read_bytes()
    assert export() == 4 and (folder / "figures.csv").read_bytes() == before, "an export without news has no diff"
    (folder / "figures.csv").write_text(before.decode().replace('times_python",1,', 'times_python",900,', 1))
    holds = {row["figure"]: row["holds"] for row in verify(10, lambda _: None)}
    assert len(holds) == 4 and not holds.pop("advantages/python loop, 16/times_python")
    assert holds["advantages/python loop, 16/error"]


def test_figure_holds_by_its_interval_its_bound_or_its_tolerance():
    column, bounded = (Column(key="v", title="V", unit="s", tolerance=0.1, most=most) for most in (None, 1e-6))
    wide, near, far = (Measured(value=v, low=v - 1, high=v + 1) for v in (10, 11.5, 13))
    assert wide.holds(near, column) and not wide.holds(far, column)
    assert Measured(value=1.09).holds(Measured(value=1.0), column)
    half = Column(key="v", title="V", unit="s", tolerance=0.5)
    assert Measured(value=1.9).holds(Measured(value=1.0), half) and Measured(value=1.0).holds(Measured(value=1.9), half)
    assert not Measured(value=1.12).holds(Measured(value=1.0), column)
    assert not Measured(value=0.0).holds(Measured(value=1.0), half), "a difference from nothing has no share"
    assert Measured(value=0.0).holds(Measured(value=0.0), column)
    assert Measured(value=9e-7).holds(Measured(value=1e-8), bounded)
    assert not Measured(value=1e-5).holds(Measured(value=1e-8), bounded)


def test_dropped_rows_and_columns_are_not_published(folder, monkeypatch):
    (table,) = declared_tables().values()
    for run, names in (("a", ("old", "kept")), ("b", ("kept",))):
        with BenchmarkLog("published", run_id=f"published-{run}") as log:
            for name in names:
                for key in ("error", "dropped"):
                    log.cell(f"{table.id}/{name}/{key}", {"value": (1e-8, "")}, parameters={"command": "navi"})
    assert export() == 1 and list(published.published_figures()) == [f"{table.id}/kept/error"]
    (folder / "figures.yaml").write_text(DECLARED.replace("key: error", "key: gone"))
    monkeypatch.setattr(published, "measure", lambda _: {})
    with pytest.raises(RecordError, match="'error' is published, but not declared"):
        verify(1, lambda _: None)


def test_noted_figures_stay_through_an_export_and_are_never_drawn(folder):
    row = "advantages/noted run/error,1e-08,,,,,navi bench gae,abc,machine,2026-11-01,noted\n"
    (folder / "figures.csv").write_text(",".join(published.COLUMNS) + "\n" + row)
    assert export() == 1 and (folder / "figures.csv").read_text().endswith(row)
    with pytest.raises(RecordError, match="no figure is published"):
        verify(1, lambda _: None)
    (folder / "figures.yaml").write_text(DECLARED + "  before: [demo]\n")
    assert publish([], lambda _: None) == {}
    with pytest.raises(ConfigError, match="needs 1 commands before its own"):
        publish(["advantages"], lambda _: None)


def test_sample_depends_on_the_revision_alone():
    names = [f"t/{number}/v" for number in range(50)]
    assert drawn(names, 10, "abc") == drawn(names[::-1], 10, "abc") != drawn(names, 10, "abd")


def test_bad_declarations_and_outputs_name_the_fault(folder):
    with pytest.raises(ConfigError, match="did you mean 'advantages'"):
        publish(["advantage"], lambda _: None)
    (table,) = declared_tables().values()
    with pytest.raises(RunError, match="has no 'way' for table advantages"):
        figures_of(table, {"rows": [{"steps": 1}]})
    (folder / "figures.yaml").write_text(DECLARED * 2)
    with pytest.raises(ConfigError, match="declares a table twice"):
        declared_tables()


def test_shipped_declarations_are_sound():
    assert set(declared_tables()) >= {"rays", "environment", "intervals"}
