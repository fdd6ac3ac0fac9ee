"""The views' answers, computed by hand from a few rows; and every saved query in plain DuckDB."""

import json
import re
import subprocess
import sys

import duckdb
import pytest

from navi_core.record import MetricLog
from navi_pipeline.lib.warehouse.database import apply_sql, sql_folder
from navi_pipeline.lib.warehouse.reader import saved_queries
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from tests.pipeline.empty_warehouse import start_warehouse

AT = "timestamp '2026-01-01' + to_days({})"
CELL = """insert into benchmarks
          (run_id, benchmark, cell, repeat, name, value, unit, outcome, seed, hardware, recorded_at, step, profile)
          values ('{run}', '{benchmark}', '{cell}', {repeat}, '{name}', {value}, '{unit}', '{outcome}', {seed}, 'h',
          {at}, 25000, '{profile}')"""


def cell(
    run,
    benchmark,
    cell,
    value,
    *,
    name="steps_per_second",
    unit="1/s",
    repeat=0,
    seed=0,
    day=0,
    outcome="ok",
    profile="full",
):
    return CELL.format(run=run, benchmark=benchmark, cell=cell, value=value, name=name, unit=unit, repeat=repeat,
                       seed=seed, outcome=outcome, at=AT.format(day), profile=profile)  # fmt: skip


ROWS = [
    # Training runs with metrics and evaluations.
    "insert into runs (run_id, status, algorithm, recorded_at) values ('a', 'finished', 'ppo', now()::timestamp), "
    "('b', 'stopped', 'ppo', now()::timestamp)",
    "insert into metrics (run_id, step, name, value, recorded_at) values "
    "('a', 100, 'reward_ema', 0.5, timestamp '2026-01-01'), ('a', 100, 'sps', 1000, timestamp '2026-01-01'), "
    "('b', 100, 'reward_ema', 0.4, timestamp '2026-01-02'), ('b', 100, 'sps', 3000, timestamp '2026-01-02'), "
    "('c', 100, 'reward_ema', 0.4, timestamp '2026-01-03'), ('c', 100, 'sps', 2000, timestamp '2026-01-03')",
    "insert into evaluations (evaluation_id, subject, subject_kind, run_id, c_vis_auc, eval_config_hash, weights_hash, "
    "recorded_at) values ('ea', 'a', 'policy', 'a', 0.8, 'p', 'wa', now()::timestamp), ('eb', 'b', 'policy', 'b', 0.6, "
    "'p', 'wb', now()::timestamp), ('ec', 'c', 'policy', 'c', 0.55, 'p', 'wc', now()::timestamp), "
    "('er', 'random', 'pilot', null, 0.2, 'p', null, now()::timestamp)",
    "insert into episodes (evaluation_id, scene, start, scene_hash, subject, c_vis_auc) values "
    "('ea', 's', 0, 'h', 'a', 0.8), ('eb', 's', 0, 'h', 'b', 0.6), ('ec', 's', 0, 'h', 'c', 0.55), "
    "('er', 's', 0, 'h', 'random', 0.2)",
    "insert into models (version, parents, run_id, weights_hash) values ('v001', '[]', 'a', 'wa'), "
    "('v002', '[\"v001\"]', 'b', 'wb')",
    "insert into promotions (alias, version, decided_at, promoted) values "
    "('champion', 'v002', timestamp '2026-01-02', true)",
    "insert into stage_timings (run_id, step, stage, milliseconds, total_milliseconds) values "
    "('a', 100, 'rollout/environment_step', 3, 300), ('a', 100, 'update/backward', 10, 100)",
    "insert into checkpoints (run_id, step) values ('a', 100)",
    "insert into scenes (name, source_hash, compile_hash) values ('s', 'a', 'b')",
    "insert into studies (study, learner, status, best_trial, best_value) values ('ppo-1', 'ppo', 'finished', 1, 0.7)",
    "insert into comparisons (comparison_id, metric, evaluations) values ('c', 'c_vis_auc', '{\"a\": [\"ea\"]}')",
    "insert into trials (study, trial, state, value) values ('ppo-1', 0, 'complete', 0.5), "
    "('ppo-1', 1, 'complete', 0.7), ('ppo-1', 2, 'pruned', null), ('ppo-1', 3, 'failed', null)",
    "insert into events (run_id, step, event, recorded_at) values ('n', 0, 'night', now()::timestamp)",
    # A sweep measured twice: the earlier figure of 256x48 is history.
    cell("r0", "resolution_sweep", "256x48", 500, day=0),
    cell("r1", "resolution_sweep", "256x48", 1000, day=1),
    cell("r1", "resolution_sweep", "512x96", 250, day=1),
    cell("r1", "resolution_sweep", "768x144", "null", name="outcome", day=1, outcome="out_of_memory"),
    *[cell(f"t{s}", "temporal_core_sweep", core, reward, name="reward_ema", unit="1", seed=s)
      for core, rewards in (("gru", (0.1, 0.2, 0.3)), ("mamba2", (0.4, 0.5, 0.6))) for s, reward in enumerate(rewards)],
    cell("t9", "temporal_core_sweep", "gru", 2.5, name="forward_ms", unit="ms"),
    cell("t9", "temporal_core_sweep", "mamba2", 5.0, name="forward_ms", unit="ms"),
    cell("t9", "temporal_core_sweep", "mambapy", "null", name="outcome", outcome="timeout"),
    *[cell(f"n{day}", "nightly", scene, value, day=day)
      for scene in ("apartment", "maze") for day, value in enumerate((90, 100, 110, 100, 80))],
]  # fmt: skip


def filled(path, rows):
    """Open a new database with these rows."""
    connection = duckdb.connect(str(path))
    apply_sql(connection, sql_folder())
    for row in rows:
        connection.execute(row)
    return connection


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A database with a few rows in every table, closed."""
    path = tmp_path_factory.mktemp("views") / "navi.duckdb"
    filled(path, ROWS).close()
    return path


QUICK = [
    # A quick sweep after the full one: of the same seeds, and the other core is ahead.
    *[cell(f"q{s}", "temporal_core_sweep", core, reward, name="reward_ema", unit="1", seed=s, day=2, profile="quick")
      for core, rewards in (("gru", (0.3, 0.3)), ("mamba2", (-0.2, -0.2))) for s, reward in enumerate(rewards)],
    cell("q9", "resolution_sweep", "256x48", 10, day=2, profile="quick"),
    cell("q9", "resolution_sweep", "512x96", 5, day=2, profile="quick"),
]  # fmt: skip


@pytest.fixture(scope="module")
def ask_of_two(tmp_path_factory):
    """The same database after a quick sweep."""
    with filled(tmp_path_factory.mktemp("profiles") / "navi.duckdb", ROWS + QUICK) as connection:
        yield lambda sql: connection.execute(sql).fetchall()


@pytest.fixture(scope="module")
def ask(file):
    with duckdb.connect(str(file), read_only=True) as connection:

        def ask(sql):
            return connection.execute(sql).fetchall()

        yield ask


def test_every_view_returns_rows(ask):
    views = [name for (name,) in ask("select view_name from duckdb_views() where not internal")]
    assert {"leaderboard", "model_lineage", "benchmark_history", "drift_vs_baseline", "pareto_quality_speed",
            "stage_share", "sweep_best", "resolution_scaling", "core_comparison"} <= set(views)  # fmt: skip
    for view in views:
        assert ask(f"select * from {view}"), view


def test_saved_queries_have_explanations_and_run_in_plain_duckdb(file):
    queries = saved_queries(sql_folder())
    assert len(queries) >= 15 and all(len(query.explanation) > 15 for query in queries.values())
    code = (
        "import duckdb, pathlib, sys\n"
        "with duckdb.connect(sys.argv[1], read_only=True) as con:\n"
        "    for file in pathlib.Path(sys.argv[2]).glob('*.sql'):\n"
        "        con.execute(file.read_text()).fetchall()\n"
        "assert not any(name.startswith('navi') for name in sys.modules)\n"
    )
    command = [sys.executable, "-I", "-c", code, str(file), str(sql_folder() / "queries")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_resolution_scaling_uses_the_latest_run_of_each_cell(ask):
    rows = ask("select resolution, rays, value, times_smallest, outcome from resolution_scaling order by rays")
    assert rows[0] == ("256x48", 12288, 1000.0, 1.0, "ok") and rows[1] == ("512x96", 49152, 250.0, 0.25, "ok")
    assert rows[2][0] == "768x144" and rows[2][4] == "out_of_memory"


def test_cores_are_compared_by_means_over_seeds(ask):
    sql = "select core, seeds, reward_ema, reward_ema_deviation, forward_ms, failed, outcome from core_comparison"
    assert ask(sql)[:2] == [
        ("mamba2", 3, 0.5, 0.1, 5.0, 0, None),
        ("gru", 3, 0.2, 0.1, 2.5, 0, None),
    ]
    assert ask(sql)[2][0] == "mambapy" and ask(sql)[2][-2:] == (1, "timeout")


def test_sweep_best_maximises_reward_and_minimises_time(ask):
    rows = dict(((sweep, name), (best, lead)) for sweep, name, best, lead in
                ask("select sweep, name, best, lead_percent from sweep_best"))  # fmt: skip
    assert rows["temporal_core_sweep", "reward_ema"] == ("mamba2", 150.0)
    assert rows["temporal_core_sweep", "forward_ms"] == ("gru", 50.0)
    assert rows["resolution_sweep", "steps_per_second"] == ("256x48", 300.0)


def test_quick_and_full_sweeps_are_not_averaged(ask_of_two):
    rows = ask_of_two("select profile, core, seeds, reward_ema from core_comparison where reward_ema is not null")
    assert rows == [
        ("quick", "gru", 2, 0.3),
        ("quick", "mamba2", 2, -0.2),
        ("full", "mamba2", 3, 0.5),
        ("full", "gru", 3, 0.2),
    ]
    best = ask_of_two("select profile, best, mean from sweep_best where name = 'reward_ema'")
    assert best == [("full", "mamba2", 0.5), ("quick", "gru", 0.3)]
    rows = ask_of_two("select profile, value, times_smallest from resolution_scaling where resolution = '512x96'")
    assert rows == [("full", 250.0, 0.25), ("quick", 5.0, 0.5)]


def test_benchmark_history_separates_profiles(ask_of_two):
    sql = (
        "select profile, value, change_percent from benchmark_history where benchmark = 'resolution_sweep' and cell = "
    )
    assert ask_of_two(sql + "'256x48'") == [("full", 1000.0, 100.0), ("full", 500.0, None), ("quick", 10.0, None)]


def test_benchmark_views_separate_unprofiled_cells_by_parameters():
    with duckdb.connect() as connection:
        apply_sql(connection, sql_folder())
        for given, reported in (
            ({"profile": "quick", "core": "gru"}, "quick"),
            ({"preset": "demo", "steps": 300, "scenes": ["rooms:0-3"]}, 'demo, steps 300, scenes ["rooms:0-3"]'),
            ({"drones": 64}, None),
        ):
            printed = connection.execute("select profile_of(null, cast(? as json))", [json.dumps(given)]).fetchall()
            assert printed == [(reported,)]
        assert connection.execute("select profile_of('full', null)").fetchall() == [("full",)]


@pytest.mark.parametrize(("direction", "order"), [("minimize", [0, 2, 1, 3]), ("maximize", [2, 0, 3, 1])])
def test_ranked_trials_follow_study_direction_and_feasibility(direction, order):
    with duckdb.connect() as connection:
        apply_sql(connection, sql_folder())
        connection.execute("insert into studies (study, directions) values ('x', ?)", [f'["{direction}"]'])
        for trial, (value, feasible) in enumerate(((1.0, True), (0.5, False), (2.0, True), (3.0, False), (9.0, None))):
            state = "pruned" if trial == 4 else "complete"
            connection.execute(
                "insert into trials (study, trial, state, value, feasible) values ('x', ?, ?, ?, ?)",
                [trial, state, value, feasible],
            )
        query = saved_queries(sql_folder())["best_trials"].sql
        assert [row[0] for row in connection.execute(query).fetchall()] == order
        assert connection.execute("select distinct direction from ranked_trials").fetchall() == [(direction,)]


def test_cores_in_flight_uses_the_last_flight_of_each_policy():
    """Equal weights count as one policy; flights that confirm a win are excluded."""
    with duckdb.connect() as connection:
        apply_sql(connection, sql_folder())
        for version, weights, core in (
            ("v001", "one", "gru"), ("v002", "two", "gru"), ("v003", "one", "gru"), ("v004", "three", "mamba2"),
        ):  # fmt: skip
            connection.execute(
                "insert into models (version, parents, weights_hash, temporal_core) values (?, '[]', ?, ?)",
                [version, weights, core],
            )
        for flight, weights, auc, day, confirms in (
            ("a", "one", 0.2, 1, False), ("b", "one", 0.4, 2, False), ("c", "two", 0.6, 1, None),
            ("d", "three", 0.3, 1, False), ("e", "three", 0.9, 2, True),
        ):  # fmt: skip
            connection.execute(
                "insert into evaluations (evaluation_id, weights_hash, c_vis_auc, collisions_per_minute, success, "
                f"eval_config_hash, confirms, recorded_at) values (?, ?, ?, ?, ?, 'p', ?, {AT.format(day)})",
                [flight, weights, auc, 10 * auc, auc, confirms],
            )
            connection.execute(
                "insert into episodes (evaluation_id, scene, scene_hash, start, subject) values (?, 's', 'h', 0, 'p')",
                [flight],
            )
        rows = connection.execute(saved_queries(sql_folder())["cores_in_flight"].sql).fetchall()
    assert [row[2:7] for row in rows] == [("gru", 2, 50.0, 50.0, 5.0), ("mamba2", 1, 30.0, 30.0, 3.0)]


def test_benchmark_history_has_change_against_the_previous_run(ask):
    rows = ask("select value, change_percent from benchmark_history where cell = 'maze'")
    assert rows == [(80.0, -20.0), (100.0, -9.1), (110.0, 10.0), (100.0, 11.1), (90.0, None)]


def test_drift_compares_with_the_median_of_earlier_runs(ask):
    rows = ask(
        "select cell, value, baseline, slowdown_percent, benchmark_slowdown_percent, cell_drifts, "
        "benchmark_drifts, earlier_runs from drift_vs_baseline where benchmark = 'nightly' order by 1"
    )
    assert rows == [(name, 80.0, 100.0, 25.0, 25.0, True, True, 4) for name in ("apartment", "maze")]


def test_dominated_policy_is_not_on_the_pareto_front(ask):
    rows = ask("select subject, on_front from pareto_quality_speed order by subject")
    assert rows == [("a", True), ("b", True), ("c", False)]


def test_shares_of_stages_sum_to_one_hundred(ask):
    assert ask("select stage, percent from stage_share where run_id = 'a'") == [
        ("rollout/environment_step", 75.0),
        ("update/backward", 25.0),
    ]


def test_lineage_walks_from_the_champion_to_the_first(ask):
    sql = "select ancestor, depth, aliases from model_lineage where version = 'v002' order by depth"
    assert ask(sql) == [("v002", 0, "champion"), ("v001", 1, None)]


def test_a_study_counts_its_trials_by_state(ask):
    sql = "select trials, complete, pruned, failed, running, best_trial from study_progress"
    assert ask(sql) == [(4, 2, 1, 1, 0, 1)]
    assert json.loads(json.dumps(ask("select best_value from study_progress"))) == [[0.7]]


def family(parents):
    """An empty database with a family of versions; parents by version."""
    connection = duckdb.connect()
    apply_sql(connection, sql_folder())
    rows = [(version, json.dumps(held)) for version, held in parents.items()]
    connection.executemany("insert into models (version, parents) values (?, ?)", rows)
    connection.execute(
        "insert into alias_moves (alias, version, moved_at, action) values ('champion', ?, '2026-01-01', 'promote')",
        [rows[-1][0]],
    )
    return connection


@pytest.mark.slow
def test_lineage_of_1200_versions_is_complete_and_ordered():
    count = 1200
    with family({f"v{n:03d}": [f"v{n - 1:03d}"] if n > 1 else [] for n in range(1, count + 1)}) as connection:
        sql = f"select ancestor, depth, child from model_lineage where version = 'v{count}' order by depth"
        lines = connection.execute(sql).fetchall()
        assert [depth for _, depth, _ in lines] == list(range(count))
        assert lines[0] == ("v1200", 0, None) and lines[-1] == ("v001", count - 1, "v002")
        champion = connection.execute((sql_folder() / "queries" / "lineage_of_champion.sql").read_text()).fetchall()
        assert [row[:2] for row in champion] == [(depth, ancestor) for ancestor, depth, _ in lines]
        newest = connection.execute("select version from model_lineage limit 1").fetchone()
        assert newest == ("v1200",)


def test_lineage_with_cycles_and_merges_terminates():
    circle = {"v001": ["v003"], "v002": ["v001"], "v003": ["v002"]}
    # The ladder of pairs has 2^40 paths.
    ladder = {f"v{n:03d}": [f"v{p:03d}" for p in (n - 2 - n % 2, n - 1 - n % 2) if p >= 10] for n in range(10, 90)}
    with family(circle | ladder) as connection:
        assert connection.execute("select ancestor, depth from model_lineage where version = 'v003'").fetchall() == [
            ("v003", 0), ("v002", 1), ("v001", 2),
        ]  # fmt: skip
        champion = connection.execute((sql_folder() / "queries" / "lineage_of_champion.sql").read_text()).fetchall()
        assert len(champion) == 79 and champion[-1][0] == 39


def test_hardest_scenes_use_policies_of_the_latest_protocol():
    with duckdb.connect() as connection:
        apply_sql(connection, sql_folder())
        flights = (
            ("old", "v001", "policy", "short", "attic", 0.1, 1),
            ("new", "v002", "policy", "long", "attic", 0.9, 2),
            ("new", "v002", "policy", "long", "hall", 0.8, 2),
            ("rule", "planner", "pilot", "long", "hall", 0.2, 3),
        )
        for number, (evaluation, subject, kind, protocol, scene, auc, day) in enumerate(flights):
            connection.execute(
                "insert or ignore into evaluations "
                "(evaluation_id, subject, subject_kind, eval_config_hash, recorded_at) "
                f"values ('{evaluation}', '{subject}', '{kind}', '{protocol}', '2026-01-0{day}')"
            )
            connection.execute(
                "insert into episodes (evaluation_id, subject, scene, scene_hash, start, c_vis_auc, "
                "collisions_per_minute) values (?, ?, ?, ?, ?, ?, 0)",
                [evaluation, subject, scene, scene, number, auc],
            )
        rows = connection.execute((sql_folder() / "queries" / "hardest_scenes.sql").read_text()).fetchall()
        assert [(row[0], row[1]) for row in rows] == [("hall", 80.0), ("attic", 90.0)]


def test_warehouse_guide_query_compares_versions_by_scene(tmp_path):
    guide = (sql_folder().parent / "docs/concepts/warehouse.md").read_text()
    (sql,) = re.findall(r"```sql\n(.*?)```", guide, re.DOTALL)
    with MetricLog(tmp_path / "outbox", "evaluate", {"config_hash": "protocol"}) as log:
        for version, worse in (("v001", 0.0), ("v002", 0.1)):
            log.row("evaluations", {"evaluation_id": version, "subject": version, "model_version": version})
            for start in range(3):
                for scene, auc in (("a", 0.6), ("b", 0.8)):
                    flown = auc - worse * (scene == "b") * start
                    log.row("episodes", {"evaluation_id": version, "scene": scene, "scene_hash": scene,
                                         "start": start, "c_vis_auc": flown})  # fmt: skip
    warehouse = Warehouse(start_warehouse(tmp_path))
    assert warehouse.ingest().quarantined == {}
    rows = warehouse.query(sql)[["scene", "starts", "change_points", "standard_error"]]
    assert rows.values.tolist() == [["b", 3, -10.0, 5.8], ["a", 3, 0.0, 0.0]]
