"""Saved questions with parameters, over rows whose answers are known."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import typer
from scipy.special import stdtrit
from typer.testing import CliRunner

from navi_core.errors import RecordError
from navi_core.record import MetricLog
from navi_pipeline.cli.commands import register
from navi_pipeline.lib.evaluation.scoring import ranking
from navi_pipeline.lib.reports.warehouse_report import run_report
from navi_pipeline.lib.warehouse.database import sql_folder
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.warehouse import query, questions

LONG, SMALL = "long", "small"
WHO = {"host": "alpha", "user": "ada", "dagster_run_id": "d-1", "revision": "abc123+", "hardware": "h"}


def moment(day: int, hour: int = 0) -> str:
    return f"2026-01-{day:02d}T{hour:02d}:00:00Z"


def flight(log: MetricLog, name: str, day: int, aucs: list[float], protocol: str = LONG, **more: object) -> None:
    """Record a subject that flew every scene three times with the same coverage."""
    mean = sum(aucs) / len(aucs)
    log.row("evaluations", {
        "evaluation_id": f"{name}-{protocol}", "subject": name, "subject_kind": "checkpoint", "c_vis_auc": mean,
        "weights_hash": name, "eval_config_hash": protocol, "split": "test", "scenes": len(aucs), "starts": 3,
        "episodes": 3 * len(aucs), "max_steps": 200 if protocol == LONG else 100, "scenes_trained_on": 0,
        "c_vis_auc_low_percent": 100 * mean - 90, "c_vis_auc_high_percent": 100 * mean + 90,
        "collisions_per_minute": 1.0, "recorded_at": moment(day), **more,
    })  # fmt: skip
    for scene, auc in enumerate(aucs):
        for start in range(3):
            log.row("episodes", {"evaluation_id": f"{name}-{protocol}", "scene": f"s{scene}", "scene_hash": f"h{scene}",
                                 "start": start, "c_vis_auc": auc, "recorded_at": moment(day)})  # fmt: skip


def night(log: MetricLog, name: str, day: int, **more: object) -> None:
    log.row("nights", {"night": name, "kind": "training", "verdict": "passed", "started_at": moment(day),
                       "settings": {"minutes": 60 * day, "profile": "quick"}, "start_version": "v001",
                       "scenes": {"test": {"room": f"{day}" * 12, "hall": "same"}},
                       "gates": [{"gate": "speed", "stage": "training", "kind": "soft", "holds": "yes",
                                  "figures": f"{day}00 steps/s"}],
                       "figures": {"steps": 1000 * day, "seconds training": 5.0}, **more})  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory):
    """Two champions on one course, a small night after them, three cores, a study, a failed run, checks."""
    folder = tmp_path_factory.mktemp("home")
    trainings = {"v001": (0, "gru", 10.0), "v002": (1, "gru", 20.0), "refused": (2, "mamba2", 40.0)}
    for name, (seed, core, cpu) in trainings.items():
        with MetricLog(folder / "outbox", f"run-{name}", WHO | {"seed": seed}) as log:
            config = {"task": None, "env": {"azimuth_bins": 64, "elevation_bins": 16}}
            log.scalars(1000, {"sps": 100.0 * (seed + 1)})
            log.row("runs", {"step": 1000, "core": core, "status": "finished", "device": "cuda:0", "config": config,
                             "cpu_seconds": cpu, "wall_time_seconds": 2 * cpu, "started_at": moment(1)})  # fmt: skip
            version = name if name != "refused" else "v003"
            parents = ["v001"] if name == "v002" else []
            log.row("models", {"version": version, "weights_hash": name, "temporal_core": core, "parents": parents})
            auc = {"v001": 0.6, "v002": 0.7, "refused": 0.65}[name]
            flight(log, name, seed + 1, [auc - 0.1, auc, auc + 0.02 * seed + 0.1])
    with MetricLog(folder / "outbox", "promote", WHO | {"config_hash": LONG}) as log:
        for version, day, promoted in (("v001", 2, True), ("v002", 3, True), ("v003", 3, False)):
            log.row("promotions", {"alias": "champion", "version": version, "promoted": promoted,
                                   "decided_at": moment(day, 1)})  # fmt: skip
            if promoted:
                log.row("alias_moves", {"alias": "champion", "version": version, "action": "promote",
                                        "moved_at": moment(day, 1)})  # fmt: skip
    for name, status, config, started in (
        ("trial", "finished", {"task": "cart_pole", "env": {"azimuth_bins": 256, "elevation_bins": 48}}, 1),
        ("broken", "stopped", {"task": None, "env": {"azimuth_bins": 64, "elevation_bins": 16}}, 1),
        ("later", "finished", {"task": None, "env": {"azimuth_bins": 64, "elevation_bins": 16}}, 9),
    ):
        with MetricLog(folder / "outbox", f"run-{name}", WHO) as log:
            log.scalars(10, {"sps": 7.0})
            log.row("runs", {"step": 10, "core": "gru", "status": status, "device": "cpu", "config": config,
                             "cpu_seconds": 5.0, "wall_time_seconds": 5.0, "started_at": moment(started)})  # fmt: skip
    with MetricLog(folder / "outbox", "study", WHO) as log:
        log.row("trials", {"study": "ppo", "trial": 0, "run_id": "run-trial", "state": "complete"})
    with MetricLog(folder / "outbox", "night", WHO) as log:
        night(log, "first", 4)
        night(log, "second", 5, verdict="warned", version="v002")
        # A small night and an ad-hoc flight from one start, both after the promotions.
        flight(log, "v009", 6, [0.9, 0.95], SMALL)
        flight(log, "adhoc", 7, [0.99], "adhoc", starts=1, episodes=1)
        for day, passed in ((1, True), (2, False), (3, False)):
            log.row("checks", {"asset": "corpus", "check_name": "split", "passed": passed, "severity": "WARN",
                               "recorded_at": moment(day)})  # fmt: skip
        log.row("checks", {"asset": "warehouse", "check_name": "once", "passed": True, "recorded_at": moment(1)})
    assert Warehouse(folder).ingest().quarantined == {}
    return folder


@pytest.fixture
def ask(home):
    def answer(name: str, **values: str) -> pd.DataFrame:
        return Warehouse(home).query(name, values=values)

    return answer


@pytest.fixture
def navi(home):
    app = typer.Typer()
    register(app)
    return lambda *words: CliRunner().invoke(app, ["query", *words, "--home", str(home)])


def test_later_flights_do_not_displace_the_course_of_the_champion(ask, home, monkeypatch):
    courses = ask("course_list")
    assert courses["pinned"].tolist() == [True, False, False] and courses["name"][0] == "test-3x3x200"
    assert ask("ranking")["subject"].tolist() == ["v002", "refused", "v001"]
    monkeypatch.setenv("NAVI_HOME", str(home))
    assert [row["subject"] for row in ranking()] == ["v002", "refused", "v001"]
    assert [row["subject"] for row in ranking("test-2x3x100")] == ["v009"]
    page = run_report(home=home).read_text()
    board = page.partition(">Leaderboard</h2>")[2].partition("<h2")[0]
    assert "v002" in board and "v009" not in board
    assert "v009" in run_report(home=home, course="test-2x3x100").read_text()


def test_another_course_is_ranked_by_its_name_or_hash(ask):
    assert ask("ranking", course="test-2x3x100")["subject"].tolist() == ["v009"]
    digest = ask("ranking", course="test-2x3x100")["course"][0]
    assert ask("ranking", course=digest)["subject"].tolist() == ["v009"]
    with pytest.raises(RecordError, match=r"no course test-9; next: navi query course_list"):
        ask("ranking", course="test-9")


def test_intervals_of_the_leaderboard_stay_within_0_and_100(ask):
    board = ask("select low, high, episodes from leaderboard")
    few = board[board["episodes"] < 6]
    assert len(few) == 1 and few[["low", "high"]].isna().all().all()
    assert board["low"].min() == 0 and board["high"].max() == 100


def test_champions_on_course_gives_each_gain_with_its_interval(ask):
    rows = ask("champions_on_course")
    assert rows["version"].tolist() == ["v001", "v002"] and rows["number"].tolist() == [1, 2]
    gains = [10.0, 10.0, 12.0]
    mean = sum(gains) / 3
    half = stdtrit(2, 0.975) * pd.Series(gains).std() / 3**0.5
    assert rows["gain_points"][1] == pytest.approx(mean, abs=0.01) and pd.isna(rows["gain_points"][0])
    assert rows["gain_low"][1] == pytest.approx(mean - half, abs=0.02)
    assert ask("champions_on_course", course="test-2x3x100").empty


def test_auc_by_core_has_an_interval_over_seeds(ask):
    rows = ask("auc_by_core").set_index("core")
    assert rows.loc["gru", "seeds"] == 2 and rows.loc["mamba2", "seeds"] == 1
    assert 0 <= rows.loc["gru", "low"] < rows.loc["gru", "c_vis_auc_percent"] < rows.loc["gru", "high"] <= 100
    assert pd.isna(rows.loc["mamba2", "low"])


def test_quantiles_of_student_are_those_of_scipy(ask):
    rows = ask("select n, student_t(n) as t from range(1, 200) r(n)")
    assert rows["t"].tolist() == pytest.approx(stdtrit(rows["n"], 0.975).tolist(), rel=1e-3)


def test_speed_by_resolution_leaves_out_tasks_without_panoramas(ask):
    rows = ask("speed_by_resolution_and_commit")
    assert set(rows["resolution"]) == {"64x16"}
    gru = rows[(rows["what"] == "training gru") & (rows["device"] == "cuda:0")]
    assert gru[["runs", "low", "high", "revision"]].values.tolist() == [[2, 100.0, 200.0, "abc123+"]]
    assert ask("speed_by_resolution_and_commit", revision="fff").empty


def test_cost_of_champion_counts_losers_until_its_promotion(ask):
    rows = ask("cost_of_champion_with_losers").set_index("part")
    assert rows.index.tolist() == ["lineage of the champion", "refused challengers", "trials of studies",
                                   "ended early", "together"]  # fmt: skip
    assert rows["cpu_seconds"].tolist() == [30.0, 40.0, 5.0, 5.0, 80.0]
    assert rows["gpu_seconds"].tolist() == [60.0, 80.0, 0.0, 0.0, 140.0]
    assert ask("cost_of_champion_with_losers", version="v001").set_index("part").loc["together", "runs"] == 5


def test_night_diff_lists_what_differs(ask):
    rows = ask("night_diff")
    found = {(part, name): (a, b) for part, name, a, b in rows[["part", "name", "a", "b"]].values.tolist()}
    assert found["setting", "minutes"] == ("240", "300") and ("setting", "profile") not in found
    assert found["scene", "test room"] == ("4" * 12, "5" * 12) and ("scene", "test hall") not in found
    assert found["gate", "training: speed"] == ("yes, 400 steps/s", "yes, 500 steps/s")
    assert found["night", "verdict"] == ("passed", "warned")
    assert pd.isna(found["weights", "weights of it"][0]) and found["weights", "weights of it"][1] == "v002"
    assert rows.loc[rows["name"] == "steps", "change"].tolist() == [1000.0]
    assert ask("night_diff", a="second", b="first").loc[lambda r: r["name"] == "steps", "change"].tolist() == [-1000.0]
    with pytest.raises(RecordError, match="no night third"):
        ask("night_diff", a="first", b="third")


def test_checks_history_marks_changes(ask):
    rows = ask("checks_history", check="split")
    assert rows["passed"].tolist() == [False, False, True] and rows["changed"].tolist()[:2] == [False, True]
    assert ask("checks_history", asset="warehouse")["check_name"].tolist() == ["once"]


def test_who_made_names_host_user_dagster_run_and_revision(ask):
    (row,) = ask("who_made", what="first").to_dict("records")
    assert [row[name] for name in ("kind", "host", "user", "dagster_run_id", "revision", "dirty")] == [
        "night", "alpha", "ada", "d-1", "abc123", True]  # fmt: skip
    assert len(ask("who_made")) > 10


def test_command_line_takes_parameters_by_name_and_in_order(navi):
    named = navi("night_diff", "a=second", "b=first", "--json")
    assert named.exit_code == 0 and json.loads(named.stdout) == json.loads(
        navi("night_diff", "second", "first", "--json").stdout
    )
    board = navi("ranking", "--course", "test-2x3x100", "--json")
    assert [row["subject"] for row in json.loads(board.stdout)] == ["v009"]
    assert json.loads(navi("select getvariable('n')::bigint as n", "n=3", "--json").stdout) == [{"n": 3}]


def test_unknown_parameter_error_lists_those_that_are_allowed(navi):
    error = str(navi("night_diff", "c=first").exception)
    assert (
        "no parameter 'c'" in error and "a (the earlier night" in error and "next: navi query night_diff a=…" in error
    )
    assert "belongs to no parameter" in str(navi("night_diff", "x", "y", "z").exception)
    assert "it takes none" in str(navi("champions", "x=1").exception)
    assert "course=…" in navi().stdout and "check: name of an asset check" in questions()["checks_history"]


@pytest.mark.parametrize("name", ["ranking", "night_diff", "cost_of_runs", "checks_history", "who_made"])
def test_command_line_sql_and_data_frame_agree(navi, home, name):
    frame = query(name, home=home)
    sql = Warehouse(home).query((sql_folder() / "queries" / f"{name}.sql").read_text())
    printed = json.loads(navi(name, "--json").stdout)
    assert list(frame.columns) == list(sql.columns) == list(printed[0])
    assert len(frame) == len(sql) == len(printed)
    for column in frame.select_dtypes("number").columns:
        values = [row[column] for row in printed]
        assert frame[column].astype(object).where(frame[column].notna(), None).tolist() == values


def test_data_frames_have_stable_dtypes_and_units(home):
    full, empty = query("ranking", home=home), query("ranking", home=home, course="test-2x3x100").iloc[:0]
    assert full.dtypes.equals(empty.dtypes) and full.dtypes["rank"] == "Int64"
    assert full.attrs["units"] == {"c_vis_auc_percent": "%", "low": "%", "high": "%", "collisions_per_minute": "1/min"}
    metrics = query("select * from metrics where run_id = ?", ["nobody"], home=home)
    assert metrics.empty and str(metrics.dtypes["step"]) == "Int64" and str(metrics.dtypes["value"]) == "Float64"
    assert str(metrics.dtypes["recorded_at"]) == "datetime64[us]" and str(metrics.dtypes["run_id"]) == "string"
    assert metrics.attrs["meanings"]["host"].startswith("Machine")
