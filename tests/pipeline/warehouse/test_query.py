"""`navi query`: ingest, ask, print; readable errors."""

import json
import re

import duckdb
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from navi_core.errors import RecordError
from navi_core.record import MetricLog, outbox_path
from navi_pipeline.cli.commands import register
from navi_pipeline.cli.query import print_frame
from navi_pipeline.lib.warehouse.reader import records


@pytest.fixture
def navi(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    app = typer.Typer()
    register(app)
    with MetricLog(outbox_path(), "run", {"seed": 1, "config_hash": "c"}) as log:
        log.scalars(64, {"reward_ema": 0.5, "sps": float("nan")})
        log.row("models", {"version": "v001", "parents": [], "metrics": {"c_vis_auc": 81.5}})

    def call(*arguments):
        return CliRunner().invoke(app, list(arguments))

    return call


def test_query_ingests_the_outbox_first(navi):
    answer = navi("query", "select step, reward_ema from training_curve", "--json")
    assert answer.exit_code == 0 and json.loads(answer.stdout) == [{"step": 64, "reward_ema": 0.5}]


def test_query_prints_a_table_by_default(navi):
    answer = navi("query", "select version, metrics from models")
    assert "version" in answer.stdout and "v001" in answer.stdout and "81.5" in answer.stdout


def test_saved_queries_answer_by_name_and_are_listed(navi):
    assert json.loads(navi("query", "latest_curve", "--json").stdout)[0]["step"] == 64
    listed = json.loads(navi("query", "--json").stdout)
    assert "leaderboard" in listed["views"] and "metrics" in listed["tables"] and "latest_curve" in listed["queries"]
    assert "latest_curve" in navi("query").stdout


def test_unknown_relation_error_lists_relations(navi):
    error = navi("query", "select * from leaderbord").exception
    assert isinstance(error, RecordError) and "leaderboard" in str(error) and error.exit_code != 0


def test_a_saved_query_in_sql_is_met_with_the_command_that_runs_it(navi):
    printed = str(navi("query", "select * from rankng").exception)
    assert printed == "no table or view 'rankng'; ranking is a saved query; next: navi query ranking"


def test_unknown_saved_query_error_suggests_and_lists_names(navi):
    printed = str(navi("query", "drfit").exception)
    assert "did you mean 'drift'?" in printed and "navi warehouse list" in printed and "Parser" not in printed
    assert str(navi("query", "zzz").exception).endswith("'zzz'; next: navi warehouse list")
    assert "did you mean 'leaderboard'?" in str(navi("query", "leaderbord").exception)


def test_query_of_a_relation_name_explains_its_columns(navi):
    printed = navi("query", "leaderboard").stdout
    assert "Leaderboard: the latest evaluation" in printed and "95 % interval [%]" in printed
    assert 'navi query "select * from leaderboard"' in printed
    columns = {row["column"]: row for row in json.loads(navi("query", "metrics", "--json").stdout)}
    assert columns["value"] == {"column": "value", "type": "double", "meaning": "The number"}


def test_rows_become_csv(navi):
    answer = navi("query", "select step, name, value from metrics order by name", "--csv")
    assert answer.stdout.splitlines() == ["step,name,value", "64,reward_ema,0.5", "64,sps,"]


def test_csv_holds_no_character_that_steers_a_terminal(navi):
    printed = navi("query", "select 'a' || chr(27) || ']0;b' as \"n\x1b[2J\", ['c' || chr(27)] as many", "--csv").stdout
    assert "\x1b" not in printed and "a?]0;b" in printed and printed.startswith("n?[2J,many")


def test_csv_option_covers_explanations_and_listings(navi):
    assert navi("query", "metrics", "--csv").stdout.startswith("column,type,meaning")
    listed = navi("query", "--csv").stdout.splitlines()
    assert listed[0] == "kind,name,explanation" and "view,leaderboard," in listed
    assert "give one of them" in str(navi("query", "metrics", "--csv", "--json").exception)


def test_csv_of_names_with_control_codes_is_plain(navi):
    answer = navi("query", "select 'a' || chr(27) || '[2Jb' as name, 'x' || chr(10) || 'y' as lines", "--csv")
    assert answer.stdout.split() == ["name,lines", 'a?[2Jb,"x', 'y"']


@pytest.mark.parametrize("columns", ["24", "200"])
def test_print_frame_wraps_long_values_and_escapes_control_codes(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    path = "/data/" + "0123456789" * 9 + ".gmdag"
    print_frame(pd.DataFrame({"path": [path], "name": ["a\x1b[2Jb"], "kitchen": ["台所" * 4], "a_number_of_it": [1]}))
    reported = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    lines = [[cell.strip() for cell in line.split("│")] for line in reported.splitlines() if "│" in line]
    assert path in "".join(cells[0] for cells in lines) and "\x1b[2J" not in reported
    if columns == "200":
        assert "台所" * 4 in reported and "a?[2Jb" in reported and "…" not in reported
    else:
        assert "… stands for 2 columns (name, kitchen)" in " ".join(reported.split())


def test_print_frame_leaves_out_middle_columns_and_names_them(monkeypatch, capsys):
    """Columns of a few letters would break numbers and names."""
    frame = pd.DataFrame({f"quite_a_long_name_{i}": ["of sixteen signs"] for i in range(12)})
    print_frame(frame)
    wide = capsys.readouterr().out
    assert wide.count("of sixteen signs") == 12 and "…" not in wide
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_frame(frame)
    reported = capsys.readouterr().out
    assert reported.count("of sixteen signs") == 3 and max(map(len, reported.splitlines())) <= 80
    assert "… stands for 9 columns" in reported and "quite_a_long_name_10" in reported
    print_frame(frame.iloc[:, :4])
    assert "…" not in capsys.readouterr().out


def test_query_without_rows_returns_an_empty_list(navi):
    answer = navi("query", "select * from benchmarks", "--json")
    assert answer.exit_code == 0 and json.loads(answer.stdout) == []


@pytest.mark.slow
def test_query_after_rebuild_returns_the_same_rows(navi):
    before = navi("query", "select * exclude (segment) from metrics order by name", "--json").stdout
    after = navi("query", "select * exclude (segment) from metrics order by name", "--rebuild", "--json").stdout
    assert json.loads(before) == json.loads(after)


def test_query_prints_quarantined_segments_on_standard_error(navi):
    (outbox_path() / "bad.ndjson").write_text("{}\n")
    answer = navi("query", "select 1 as one", "--json")
    assert json.loads(answer.stdout) == [{"one": 1}] and "quarantined bad.ndjson" in answer.stderr


def test_records_converts_missing_values_and_times_to_json():
    frame = pd.DataFrame(
        {
            "n": pd.array([1, None], dtype="Int64"),
            "x": [float("nan"), float("inf")],
            "t": [pd.Timestamp("2026-01-02T03:04:05"), pd.NaT],
            "l": [["a"], None],
        }
    )
    assert json.loads(json.dumps(records(frame))) == [
        {"n": 1, "x": None, "t": "2026-01-02T03:04:05", "l": ["a"]},
        {"n": None, "x": None, "t": None, "l": None},
    ]


def test_records_of_lists_and_other_types_are_json():
    sql = (
        "select [1.5, null] as x, [true, null] as b, [timestamp '2026-01-01', null] as t, [[1]] as n, "
        "[timestamp_ns '2026-01-01'] as ns, uuid '00000000-0000-0000-0000-000000000001' as u, 'a'::blob as raw"
    )
    assert json.loads(json.dumps(records(duckdb.sql(sql).df()))) == [
        {
            "x": [1.5, None],
            "b": [True, None],
            "t": ["2026-01-01T00:00:00", None],
            "n": [[1]],
            "ns": ["2026-01-01T00:00:00"],
            "u": "00000000-0000-0000-0000-000000000001",
            "raw": "bytearray(b'a')",
        }
    ]


def test_warehouse_status_counts_rows_and_compact_removes_segments(navi):
    (outbox_path() / "bad.ndjson").write_text("{}\n")
    status = json.loads(navi("warehouse", "status", "--json").stdout)
    assert (
        status["rows"]["metrics"] == 2 and status["segments"] == 2 and "header" in status["quarantined"]["bad.ndjson"]
    )
    assert json.loads(navi("warehouse", "compact", "--json").stdout) == {"rows": 3, "segments": 2, "thinned": 0}
    assert json.loads(navi("warehouse", "status", "--json").stdout)["segments"] == 0
    assert "rows of metrics" in navi("warehouse", "status").stdout
    assert json.loads(navi("query", "select count(*) as n from metrics", "--json").stdout) == [{"n": 2}]
