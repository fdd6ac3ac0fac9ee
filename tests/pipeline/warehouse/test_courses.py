"""Leaderboards rank flights of one course (starts and protocol) on scenes unseen in training."""

import shutil

import duckdb
import pytest

from navi_core.config import NOISY_SENSOR, CompileConfig, EvalConfig, SensorConfig, config_hash
from navi_core.evaluate import compare, evaluate, record_comparison, record_evaluation
from navi_core.record import MetricLog, outbox_path
from navi_core.scenes import compile_mesh, generate_scene
from navi_pipeline.lib.evaluation.scoring import ranking
from navi_pipeline.lib.reports.warehouse_report import run_report
from navi_pipeline.lib.warehouse.database import sql_folder
from navi_pipeline.lib.warehouse.warehouse import Warehouse

SHORT = EvalConfig(starts=2, max_steps=20, azimuth_bins=16, elevation_bins=8)
LONG = SHORT.model_copy(update={"max_steps": 60})
NOISY = SHORT.model_copy(update={"sensor": NOISY_SENSOR})
CAMERA = SHORT.model_copy(update={"sensor": SensorConfig(profiles=("camera",))})
GOALS = SHORT.model_copy(update={"task": "point_goal"})
BOARD = "select subject, rank, decisions, sensor, c_vis_auc_percent from leaderboard order by course, rank, subject"


@pytest.fixture(scope="module")
def flights():
    """Real flights over one scene from the same starts, by four protocols."""
    scenes = [compile_mesh(generate_scene("apartment", 100), CompileConfig(resolution=128))]
    made = {(pilot, "short"): evaluate(pilot, scenes, SHORT) for pilot in ("random", "forward-plus")}
    made["forward-plus", "long"] = evaluate("forward-plus", scenes, LONG)
    made["random", "noisy"] = evaluate("random", scenes, NOISY)
    made |= {(pilot, "camera"): evaluate(pilot, scenes, CAMERA) for pilot in ("random", "planner")}
    made["planner", "goals"] = evaluate("planner", scenes, GOALS)
    for number, kind in enumerate(("knows", "unseen")):
        policy = evaluate("forward-plus", scenes, SHORT, name=kind)
        policy.summary.update(subject_kind="checkpoint", weights_hash=kind, scenes_trained_on=1 - number)
        policy.summary["evaluation_id"] = kind
        made[kind, "short"] = policy
    return made


def recorded(flights, *names):
    """Record some of them as the command does, and return the warehouse."""
    for name in names:
        record_evaluation(flights[name])
    warehouse = Warehouse()
    assert warehouse.ingest().quarantined == {}
    return warehouse


def saved(warehouse, name):
    return warehouse.query(name)


def test_leaderboard_of_a_limited_sensor_ranks_by_what_it_saw(flights):
    made = {pilot: flights[pilot, "camera"].summary for pilot in ("random", "planner")}
    rows = recorded(flights, ("random", "camera"), ("planner", "camera")).query("select * from leaderboard")
    best = max(made, key=lambda pilot: made[pilot]["c_seen_auc"])
    assert rows["subject"][0] == best and rows["c_seen_auc_percent"][0] == round(made[best]["c_seen_auc"], 1)
    assert (rows["c_seen_auc_percent"] < rows["c_vis_auc_percent"]).all()


def test_leaderboard_ranks_each_protocol_separately(flights):
    warehouse = recorded(flights, ("random", "short"), ("forward-plus", "short"))
    assert warehouse.query(BOARD)["rank"].tolist() == [1, 2]
    recorded(flights, ("forward-plus", "long"), ("random", "noisy"), ("planner", "goals"))
    board = warehouse.query("select * from leaderboard")
    by_course = {
        course: sorted(zip(rows["subject"], rows["rank"], rows["decisions"], rows["sensor"] == "clean", strict=True))
        for course, rows in board.groupby("course")
    }
    short = [("forward-plus", 1, 20, True), ("random", 2, 20, True)]
    assert sorted(by_course.values()) == sorted([short, [("forward-plus", 1, 60, True)], [("random", 1, 20, False)]])
    # The producer's hash of a course is that of the view.
    named = warehouse.query("select course, name from named_courses order by name")
    assert set(named["course"]) == set(warehouse.query("select course from courses")["course"])
    assert named["name"].tolist()[:2] == ["explore-1x2x20", f"explore-1x2x20-{config_hash(NOISY_SENSOR)}"]
    hashes = warehouse.query("select eval_config_hash, config_hash from evaluations")
    assert hashes["eval_config_hash"].equals(hashes["config_hash"])
    assert set(hashes["config_hash"]) == {config_hash(one) for one in (SHORT, LONG, NOISY, GOALS)}
    assert saved(warehouse, "goals")["subject"].tolist() == ["planner"]
    assert saved(warehouse, "surface_and_sensor").groupby("course").ngroups == 3


def test_ranking_and_report_use_the_latest_course_without_a_champion(flights):
    for name in (("random", "short"), ("forward-plus", "short"), ("forward-plus", "long"), ("random", "noisy")):
        with MetricLog(outbox_path(), f"evaluate-{'-'.join(name)}", {"seed": 0}) as log:
            moment = "2026-01-02T00:00:00Z" if name[1] == "short" else "2026-01-01T00:00:00Z"
            for table, rows in flights[name].to_rows().items():
                for row in rows:
                    log.row(table, row | {"split": "test", "recorded_at": moment})
    Warehouse().ingest()
    rows = ranking()
    assert [(row["subject"], row["rank"], row["decisions"]) for row in rows] == [
        ("forward-plus", 1, 20),
        ("random", 2, 20),
    ]
    assert all(isinstance(row[name], int) for row in rows for name in ("rank", "scenes_trained_on", "episodes"))
    html = run_report().read_text()
    part = html[html.index(">Leaderboard</h2>") : html.index(">Coverage over a flight</h2>")]
    assert part.count(">forward-plus</td>") == 1 and part.count(">random</td>") == 1
    chart = part[part.index("<svg") : part.index("</svg>")]
    assert chart.count(">forward-plus<") == 1 and chart.count(">random<") == 1


def test_leaderboard_gives_no_rank_to_a_policy_trained_on_its_scenes(flights):
    warehouse = recorded(flights, ("random", "short"), ("knows", "short"), ("unseen", "short"))
    board = warehouse.query("select subject, rank, scenes_trained_on from leaderboard")
    assert board["subject"].tolist() == ["unseen", "random", "knows"]
    assert board["rank"].tolist()[:2] == [1, 2] and board["rank"].isna().tolist() == [False, False, True]
    assert board["scenes_trained_on"].tolist() == [0, 0, 1]
    assert saved(warehouse, "best_policy")["subject"].tolist() == ["unseen"]
    assert saved(warehouse, "hardest_scenes")["policies"].tolist() == [2]  # the random pilot is no policy
    known = warehouse.query("select subject, scenes_trained_on, extra from evaluations where subject = 'knows'")
    assert known["scenes_trained_on"][0] == 1 and "scenes_trained_on" not in str(known["extra"][0])


def test_ranking_lists_policies_trained_on_its_scenes_last(flights):
    for name in ("random", "knows"):
        with MetricLog(outbox_path(), f"evaluate-{name}", {"seed": 0}) as log:
            for table, rows in flights[name, "short"].to_rows().items():
                for row in rows:
                    log.row(table, row | {"split": "test"})
    Warehouse().ingest()
    rows = ranking()
    assert [(row["subject"], row["rank"], row["scenes_trained_on"]) for row in rows] == [
        ("random", 1, 0),
        ("knows", None, 1),
    ]
    assert rows[0]["model"] is None


def test_pareto_front_excludes_policies_trained_on_its_scenes(flights):
    for kind, speed in (("knows", 900.0), ("unseen", 100.0)):
        with MetricLog(outbox_path(), f"run-{kind}", {"seed": 0}) as log:
            log.scalars(100, {"sps": speed})
            for table, rows in flights[kind, "short"].to_rows().items():
                for row in rows:
                    log.row(table, row)
    warehouse = Warehouse()
    warehouse.ingest()
    assert saved(warehouse, "quality_for_speed")["subject"].tolist() == ["unseen"]


def test_comparison_reports_training_scenes_of_each_side(flights):
    a, b = flights["knows", "short"], flights["random", "short"]
    record_comparison(compare(a, b), [a], [b])
    warehouse = recorded(flights, ("knows", "short"), ("random", "short"))
    reported = saved(warehouse, "verdicts")
    assert (reported["a"][0], reported["a_trained_on"][0], reported["b_trained_on"][0]) == ("knows", 1, 0)
    assert "a trained on" in run_report().read_text()


@pytest.fixture
def older(flights, tmp_path, monkeypatch):
    """Warehouse of the SQL before evaluations recorded their protocol and training scenes."""
    monkeypatch.setenv("NAVI_HOME", str(tmp_path / "home"))
    old = tmp_path / "sql"
    shutil.copytree(sql_folder() / "migrations", old / "migrations", ignore=shutil.ignore_patterns("00[7-9]_*", "01*"))
    monkeypatch.setenv("NAVI_SQL", str(old))
    for name in (("random", "short"), ("knows", "short"), ("forward-plus", "long")):
        with MetricLog(outbox_path(), f"evaluate-{'-'.join(name)}", {"seed": 0}) as log:
            for table, rows in flights[name].to_rows().items():
                for row in rows:
                    log.row(table, {key: value for key, value in row.items() if key != "eval_config_hash"})
    with MetricLog(outbox_path(), "temporal_core_sweep-full-1", {"hardware": "h"}) as log:
        log.row("benchmarks", {"benchmark": "temporal_core_sweep", "cell": "gru", "repeat": 0, "name": "reward_ema",
                               "value": 1.0, "seed": 0, "parameters": {"profile": "full"}})  # fmt: skip
    Warehouse().ingest()
    return Warehouse()


def check_migrated_rows(flights, warehouse):
    """Check that old rows stand beside the new ones of their protocol, and not beside others."""
    recorded(flights, ("unseen", "short"))
    board = warehouse.query("select subject, rank, scenes_trained_on, course from leaderboard where decisions = 20")
    assert board["subject"].tolist() == ["unseen", "random", "knows"] and board["course"].nunique() == 1
    assert board["rank"].tolist()[:2] == [1, 2] and board["scenes_trained_on"].tolist() == [0, 0, 1]
    assert warehouse.query("select rank from leaderboard where decisions = 60")["rank"].tolist() == [1]
    assert warehouse.query("select profile, core from core_comparison").values.tolist() == [["full", "gru"]]


def test_older_warehouse_rows_are_migrated_to_their_protocol(flights, older, monkeypatch):
    monkeypatch.delenv("NAVI_SQL")
    assert older.ingest().migrations[0] == "007_trained_on_and_profiles"
    with duckdb.connect(str(older.snapshot), read_only=True) as connection:
        reported = "select scenes_trained_on from evaluations where subject = 'knows'"
        assert connection.execute(reported).fetchall() == [(1,)]
        assert connection.execute("select profile from benchmarks").fetchall() == [("full",)]
    check_migrated_rows(flights, older)


def test_older_archive_rows_are_migrated_to_their_protocol(flights, older, monkeypatch):
    older.compact()
    monkeypatch.delenv("NAVI_SQL")
    older.rebuild()
    assert older.status()["migration"] == max(file.stem for file in (sql_folder() / "migrations").glob("*.sql"))
    check_migrated_rows(flights, older)
