"""Migrations, views and saved queries."""

import shutil

import duckdb
import pytest
import yaml

from navi_core.errors import RecordError
from navi_core.record import MetricLog
from navi_pipeline.cli.query import run_query
from navi_pipeline.lib.warehouse.database import apply_sql, sql_folder, sql_hash
from navi_pipeline.lib.warehouse.reader import saved_queries
from navi_pipeline.lib.warehouse.warehouse import Warehouse

NEXT = 1 + len(list((sql_folder() / "migrations").glob("*.sql")))
"""Number of the migration that comes after those that are shipped."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    copy = tmp_path / "sql"
    shutil.copytree(sql_folder(), copy)
    monkeypatch.setenv("NAVI_SQL", str(copy))
    return copy


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with MetricLog(home / "outbox", "ppo_policy-quick-1", {"seed": 1, "config_hash": "c"}) as log:
        for step in range(0, 1000, 100):
            log.scalars(step, {"reward_ema": step / 1000, "sps": 10.0, "view_gain": 0.5})
        log.row("stage_timings", {"stage": "env", "milliseconds": 3.0})
        log.row("stage_timings", {"stage": "forward", "milliseconds": 1.0})
        for version, parents in (("v001", []), ("v002", ["v001"]), ("v003", ["v002"])):
            log.row(
                "models", {"version": version, "parents": parents, "weights_hash": version * 2, "training_source": "rl"}
            )
        for version, day, promoted in (("v001", 1, True), ("v002", 2, True), ("v003", 3, False)):
            log.row("promotions", {"alias": "champion", "version": version, "promoted": promoted,
                                   "decided_at": f"2026-01-0{day}T00:00:00Z"})  # fmt: skip
        for subject, auc in (("random", 0.3), ("forward-plus", 0.44), ("v002", 0.8)):
            policy = subject == "v002"
            log.row("evaluations", {"evaluation_id": subject, "subject": subject, "eval_config_hash": "s",
                                    "c_vis_auc": auc, "subject_kind": "policy" if policy else "pilot",
                                    "weights_hash": "v002v002" if policy else None})  # fmt: skip
            for start in range(2):
                log.row("episodes", {"evaluation_id": subject, "subject": subject, "scene": "a", "scene_hash": "h",
                                     "start": start, "c_vis_auc": auc, "collisions_per_minute": 1.0})  # fmt: skip
    warehouse = Warehouse(home)
    assert warehouse.ingest().quarantined == {}
    return warehouse


@pytest.fixture
def more(filled, tmp_path):
    """A copy of it that a test may write to."""
    return Warehouse(shutil.copytree(filled.outbox.parent, tmp_path / "home"))


@pytest.fixture
def moved(more):
    """A copy whose aliases have moved since their promotion."""
    with MetricLog(more.outbox, "registry", {}) as log:
        for alias, version, day, action in (
            ("latest", "v003", 1, "register"),
            ("champion", "v002", 1, "promote"),
            ("champion", "v001", 2, "rollback"),
        ):
            log.row("alias_moves", {"alias": alias, "version": version, "action": action,
                                    "moved_at": f"2099-01-{day:02d}T00:00:00.5+00:00"})  # fmt: skip
    assert more.ingest().quarantined == {}
    return more


def test_training_curve_has_one_line_per_step(filled):
    curve = filled.query("select * from training_curve")
    assert curve["step"].tolist() == list(range(0, 1000, 100))
    assert curve["reward_ema"].iloc[-1] == 0.9


def test_model_lineage_walks_to_the_first_ancestor(filled):
    lines = filled.query("select ancestor, depth, aliases from model_lineage where version = 'v003' order by depth")
    assert lines["ancestor"].tolist() == ["v003", "v002", "v001"]
    assert lines["aliases"].tolist()[1] == "champion"


def test_leaderboard_ranks_by_coverage_and_names_the_model(filled):
    board = filled.query("select * from leaderboard")
    assert board["subject"].tolist() == ["v002", "forward-plus", "random"] and board["rank"].tolist() == [1, 2, 3]
    assert board["model"].iloc[0] == "v002"


def test_an_alias_points_to_the_last_promoted_version(filled):
    assert filled.query("select version from aliases where alias = 'champion'")["version"].tolist() == ["v002"]


def test_alias_view_follows_moves_after_the_promotion(moved):
    rows = moved.query("select alias, version, reason, lead_points is null from aliases order by alias")
    assert rows.values.tolist() == [["champion", "v001", "rollback", True], ["latest", "v003", "register", True]]


def test_every_table_view_and_column_has_a_comment(filled):
    """Any DuckDB can read the comments; `sql/columns.yaml` names only existing columns."""
    silent = "select table_name, column_name from duckdb_columns() where not internal and coalesce(comment, '') = ''"
    assert filled.query(silent).values.tolist() == []
    for kind in ("table", "view"):
        names = f"select {kind}_name from duckdb_{kind}s() where not internal and coalesce(comment, '') = ''"
        assert filled.query(names).values.tolist() == []
    columns = filled.query("select table_name, column_name from duckdb_columns() where not internal")
    there = {f"{table}.{name}" for table, name in columns.values} | set(columns["column_name"])
    printed = yaml.safe_load((sql_folder() / "columns.yaml").read_text())
    assert set(printed["columns"]) <= there and set(printed["tables"]) <= set(columns["table_name"])


def test_changed_column_comment_is_published_by_next_ingest(folder, tmp_path):
    warehouse = Warehouse(tmp_path / "home")
    warehouse.ingest()
    file = folder / "columns.yaml"
    file.write_text(file.read_text().replace("seed: Seed of what", "seed: The run's seed, of what"))
    warehouse.ingest()
    printed = warehouse.query(
        "select comment from duckdb_columns() where table_name = 'metrics' and column_name = 'seed'"
    )
    assert printed["comment"][0].startswith("The run's seed")


def test_training_curve_has_training_time_without_pauses(filled):
    """100 decisions at 10 per second; a pause before a resume does not count."""
    times = filled.query("select wall_time_seconds from training_curve order by step")["wall_time_seconds"]
    assert times.tolist() == [10.0 * step for step in range(10)]


def test_views_give_leads_in_percentage_points(tmp_path):
    with MetricLog(tmp_path / "outbox", "promote-v001", {}) as log:
        log.row("promotions", {"alias": "champion", "version": "v001", "promoted": True, "opponent": "random",
                               "mean_difference": 0.25, "low": 0.2, "high": 0.3,
                               "decided_at": "2026-01-01T00:00:00Z"})  # fmt: skip
    warehouse = Warehouse(tmp_path)
    warehouse.ingest()
    saved = saved_queries(sql_folder())
    for sql in ("from aliases", saved["promotion_history"].sql, saved["champions"].sql):
        assert warehouse.query(sql)["lead_points"].tolist() == [25.0], sql
    assert warehouse.query("from aliases")[["low", "high"]].values.tolist() == [[20.0, 30.0]]


def test_champions_query_lists_promotions_and_rollbacks(moved):
    rows = moved.query(saved_queries(sql_folder())["champions"].sql)
    assert rows["version"].tolist() == ["v001", "v002", "v001"]
    assert rows["action"].tolist() == ["rollback", "promote", "promote"]
    assert rows["until"].isna().tolist() == [True, False, False]
    assert rows["until"].tolist()[1:] == rows["since"].tolist()[:2]


def test_views_may_reference_views_in_any_name_order(folder):
    (folder / "views" / "aaa.sql").write_text("create or replace view aaa as select * from leaderboard;")
    with duckdb.connect() as connection:
        apply_sql(connection, folder)
        (folder / "views" / "aaa.sql").unlink()
        apply_sql(connection, folder)
        names = {name for (name,) in connection.execute("select view_name from duckdb_views()").fetchall()}
    assert "leaderboard" in names and "aaa" not in names


def test_broken_view_error_names_its_file(folder):
    (folder / "views" / "aaa.sql").write_text("create or replace view aaa as select * from nowhere;")
    with duckdb.connect() as connection, pytest.raises(RecordError, match=r"aaa\.sql failed.*nowhere"):
        apply_sql(connection, folder)


def test_new_migrations_are_applied_once_and_in_order(folder):
    shipped = sorted(file.stem for file in (folder / "migrations").glob("*.sql"))
    with duckdb.connect() as connection:
        assert apply_sql(connection, folder) == shipped
        (folder / "migrations" / f"{NEXT:03d}_more.sql").write_text("create table more (a integer);")
        assert apply_sql(connection, folder) == [f"{NEXT:03d}_more"]
        assert apply_sql(connection, folder) == []


def test_failed_migration_is_rolled_back(folder):
    (folder / "migrations" / f"{NEXT:03d}_bad.sql").write_text("create table more (a integer); select * from nope;")
    with duckdb.connect() as connection:
        with pytest.raises(RecordError, match=f"{NEXT:03d}_bad"):
            apply_sql(connection, folder)
        assert not connection.execute("select * from duckdb_tables() where table_name = 'more'").fetchall()


@pytest.mark.parametrize(
    ("name", "word"),
    [("2_x.sql", "misnamed"), (f"{NEXT + 1:03d}_gap.sql", "without gaps"), ("001_twice.sql", "two migrations")],
)
def test_misnumbered_migrations_are_refused(folder, name, word):
    (folder / "migrations" / name).write_text("select 1;")
    with duckdb.connect() as connection, pytest.raises(RecordError, match=word):
        apply_sql(connection, folder)


def test_a_migration_changed_after_it_was_applied_is_refused(folder):
    with duckdb.connect() as connection:
        apply_sql(connection, folder)
        file = folder / "migrations" / "001_record.sql"
        file.write_text(file.read_text() + "-- changed\n")
        with pytest.raises(RecordError, match="changed after"):
            apply_sql(connection, folder)


def test_changed_view_is_published_by_next_ingest(folder, tmp_path):
    warehouse = Warehouse(tmp_path / "home")
    warehouse.ingest()
    before = sql_hash(folder)
    (folder / "views" / "answer.sql").write_text("create or replace view answer as select 42 as a;")
    assert sql_hash(folder) != before
    warehouse.ingest()
    assert warehouse.query("select a from answer")["a"][0] == 42


def test_missing_sql_folder_error_names_navi_sql(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_SQL", str(tmp_path / "none"))
    with pytest.raises(RecordError, match="NAVI_SQL"):
        sql_folder()


def test_column_comments_are_written_in_one_statement():
    """One transaction for each of about 700 comments took longer than the rest of a first ingest."""
    with duckdb.connect() as connection:
        orders = []

        class Counted:
            def execute(self, sql, *values):
                orders.append(sql)
                return connection.execute(sql, *values)

        apply_sql(Counted(), sql_folder())
        explained = "select count(*) from duckdb_columns() where not internal and comment is null"
        assert connection.execute(explained).fetchone() == (0,)
    assert sum("comment on " in sql for sql in orders) == 1


def test_mean_sps_is_total_decisions_over_total_time(tmp_path):
    warehouse = Warehouse(tmp_path / "home")
    with MetricLog(warehouse.outbox, "run-1", {}) as log:
        log.scalars(100, {"sps": 100.0, "reward_ema": 0.1})  # 1 s
        log.scalars(300, {"sps": 50.0, "reward_ema": 0.2})  # 4 s
    with MetricLog(warehouse.outbox, "run-2", {}) as log:
        log.scalars(200, {"sps": 100.0})
    with MetricLog(warehouse.outbox, "run-1", {}) as log:
        log.row("evaluations", {"evaluation_id": "e", "subject": "p", "subject_kind": "policy", "c_vis_auc": 0.5})
    warehouse.ingest()
    speeds = warehouse.query("select run_id, mean_sps from run_summary order by run_id").values.tolist()
    assert speeds == [["run-1", 60.0], ["run-2", 100.0]]
    assert warehouse.query("select steps_per_second, steps from pareto_quality_speed").values.tolist() == [[60.0, 300]]


def test_champion_cost_sums_the_trainings_of_its_lineage(tmp_path):
    warehouse = Warehouse(tmp_path / "home")
    for number, (run, cpu) in enumerate((("clone", 60.0), ("first", 600.0), ("last", 1200.0), ("other", 6000.0)), 1):
        with MetricLog(warehouse.outbox, run, {}) as log:
            log.row("runs", {"step": 1000 * number, "wall_time_seconds": cpu / 2, "cpu_seconds": cpu})
            parents = [f"v{number - 1:03d}"] if number > 1 else []
            log.row("models", {"version": f"v{number:03d}", "parents": parents})
    with MetricLog(warehouse.outbox, "promotion", {}) as log:
        log.row("promotions", {"alias": "champion", "version": "v003", "promoted": True,
                               "decided_at": "2026-01-01T00:00:00Z"})  # fmt: skip
    warehouse.ingest()
    ask = saved_queries(sql_folder())["cost_of_champion"].sql
    cost = warehouse.query(ask)
    assert cost["version"].tolist() == ["v003", "v002", "v001", "together"]
    assert cost["cpu_minutes"].tolist() == [20.0, 10.0, 1.0, 31.0] and cost["decisions"].tolist()[-1] == 6000
    with MetricLog(warehouse.outbox, "first", {}) as log:
        log.row("runs", {"step": 2000, "wall_time_seconds": 300.0})
    warehouse.ingest()
    assert warehouse.query(ask)["cpu_minutes"].isna().tolist() == [False, True, False, True]
    with MetricLog(warehouse.outbox, "from elsewhere", {}) as log:
        log.row("models", {"version": "v001", "parents": []})
    warehouse.ingest()
    assert warehouse.query(ask)["version"].tolist() == ["v003", "v002", "v001", "together"]
    assert warehouse.query(ask)["decisions"].isna().tolist() == [False, False, True, True]


def test_looks_count_comparisons_of_shared_flights_and_metric(tmp_path):
    flown = {"more": "abcdef", "part": "abcde", "others": "vwxyz"}
    with MetricLog(tmp_path / "outbox", "compare", {}) as log:
        for name, metric in (("more", "auc"), ("part", "auc"), ("others", "auc"), ("part", "hits")):
            sides = {"a": list(flown[name]), "b": ["p"]}
            log.row("comparisons", {"comparison_id": name, "metric": metric, "seeds": len(flown[name]),
                                    "over": "seeds and scenes", "evaluations": sides})  # fmt: skip
    warehouse = Warehouse(tmp_path)
    warehouse.ingest()
    looks = warehouse.query("select comparison_id, looks from comparison_looks where metric = 'auc'")
    assert dict(looks.values.tolist()) == {"more": 2, "part": 1, "others": 1}


def test_leaderboard_reports_the_flight_code(more):
    with MetricLog(more.outbox, "evaluate-new", {}) as log:
        log.row("evaluations", {"evaluation_id": "new", "subject": "new", "c_vis_auc": 0.1, "flight_code": "abc"})
    more.ingest()
    ranks = more.query("select subject, flight_code from leaderboard")
    assert dict(ranks.values.tolist())["new"] == "abc" and ranks["flight_code"].isna().sum() == len(ranks) - 1


def of_a_newer_navi(folder, home, *, compacted=False):
    """A warehouse with a table column that the shipped migrations lack; the folder is as it was before."""
    later = folder / "migrations" / f"{NEXT:03d}_later.sql"
    later.write_text("alter table runs add column of_tomorrow double;")
    with MetricLog(home / "outbox", "run-1", {}) as log:
        log.row("runs", {"of_tomorrow": 2.5})
    warehouse = Warehouse(home)
    warehouse.ingest()
    if compacted:
        warehouse.compact()
    later.unlink()
    return warehouse


def test_warehouse_of_a_newer_navi_is_read_only(folder, tmp_path, capsys):
    home = tmp_path / "home"
    warehouse = of_a_newer_navi(folder, home)
    with MetricLog(home / "outbox", "run-2", {}) as log:
        log.row("runs", {})
    for write in (warehouse.ingest, warehouse.compact):
        with pytest.raises(RecordError, match=rf"newer Navi: it has migration {NEXT:03d}_later.*update this checkout"):
            write()
    run_query("select run_id, of_tomorrow from runs", as_csv=True, home=home)
    out, err = capsys.readouterr()
    assert out.splitlines() == ["run_id,of_tomorrow", "run-1,2.5"] and "the answer is as of" in err
    (folder / "migrations" / f"{NEXT:03d}_later.sql").write_text("alter table runs add column of_tomorrow double;")
    assert warehouse.ingest().segments == 1, "the segment recorded meanwhile was kept"


def test_newer_migration_is_detected_without_the_sql_hash(folder, tmp_path):
    """A newer Navi was killed after its migration and before it wrote the hash of its SQL."""
    home = tmp_path / "home"
    of_a_newer_navi(folder, home)
    (home / "warehouse" / "sql.sha256").write_text(sql_hash(folder))
    with pytest.raises(RecordError, match="is of a newer Navi: it has migration"):
        Warehouse(home).compact()  # no segment waits, so no ingest has checked
    with MetricLog(home / "outbox", "run-2", {}) as log:
        log.row("runs", {})
    with pytest.raises(RecordError, match="newer Navi"):
        Warehouse(home).ingest()
    assert Warehouse(home).query("select of_tomorrow from runs").values.tolist() == [[2.5]]


def test_archive_of_a_newer_navi_is_not_rebuilt(folder, tmp_path):
    warehouse = of_a_newer_navi(folder, tmp_path / "home", compacted=True)
    with pytest.raises(RecordError, match="is of a newer Navi"):
        warehouse.rebuild()
    assert warehouse.query("select of_tomorrow from runs").values.tolist() == [[2.5]]
