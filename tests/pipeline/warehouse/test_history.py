"""One history of several homes: published Parquet, read by the same tables, views and questions."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import duckdb
import pytest

from navi_core.errors import RecordError
from navi_core.record import MetricLog, row_context
from navi_pipeline.lib.warehouse.history import History
from navi_pipeline.lib.warehouse.warehouse import Warehouse

WRITERS, ROWS = 20, 30
KEYS = "count(distinct (run_id, step, name))"


def write(home: Path, host: str, number: int) -> None:
    """Record one run as a process of its own."""
    context = row_context() | {"seed": number, "host": host}
    with MetricLog(home / "outbox", f"run-{number}", context) as log:
        for step in range(ROWS):
            log.scalars(step, {"sps": 10.0, "reward_ema": float(step)})
            if step % 10 == 0:
                log.flush()
        log.row("runs", {"status": "finished"})
        log.row("models", {"version": f"v{number:03d}", "weights_hash": f"{host}{number}",
                           "parents": [f"v{number - 1:03d}"] if number else []})  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Two homes on two hosts, filled by twenty concurrent writers while both are published."""
    root = tmp_path_factory.mktemp("homes")
    fork = multiprocessing.get_context("fork")
    # Both homes have runs and versions of the same names.
    homes = {host: root / host for host in ("alpha", "beta")}
    writers = [
        fork.Process(target=write, args=(homes[host], host, number)) for host in homes for number in range(WRITERS // 2)
    ]
    for writer in writers:
        writer.start()
    for _ in range(2):
        for host, home in homes.items():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("NAVI_HOST", host)
                Warehouse(home).publish_to(root / "history")
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    for home in homes.values():
        Warehouse(home).publish_to(root / "history")
    return root


@pytest.mark.slow
def test_one_select_counts_every_row_of_twenty_writers_once(published):
    history = History(published / "history")
    rows = history.query(f"select host, count(*) as n, {KEYS} as keys from metrics group by 1")
    each = WRITERS // 2 * ROWS * 2
    assert sorted(rows.values.tolist()) == [["alpha", each, each], ["beta", each, each]]
    assert history.query("select count(*) as n from runs")["n"][0] == WRITERS


@pytest.mark.slow
def test_ids_of_two_homes_stay_apart_in_views(published):
    history = History(published / "history")
    summary = history.query("select run_id, last_step, mean_sps from run_summary")
    assert len(summary) == WRITERS and set(summary["mean_sps"]) == {10.0}
    lineage = history.query("select version, max(depth) as depth from model_lineage group by version")
    assert len(lineage) == WRITERS and sorted(lineage["depth"]) == sorted([*range(WRITERS // 2)] * 2)
    views, tables = history.relations()
    assert "leaderboard" in views and "metrics" in tables
    with history.reader() as ask:
        for view in views:
            ask(f"select * from {view}")
    assert history.query("who_made", values={"what": summary["run_id"][0]})["host"].nunique() == 1


def test_plain_duckdb_reads_the_parquet_by_table_host_and_month(published):
    with duckdb.connect() as connection:
        sql = f"from read_parquet('{published}/history/metrics/*/*/*.parquet', hive_partitioning = true)"
        hosts = connection.execute(f"select host, count(*) {sql} group by 1 order by 1").fetchall()
    assert hosts == [("alpha", 600), ("beta", 600)]


def test_history_gives_no_access_to_other_files(published, tmp_path):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with pytest.raises(RecordError, match=r"(?i)permission|disabled|not allowed"):
        History(published / "history").query(f"select * from '{tmp_path}/secret.csv'")


def test_publishing_again_writes_what_has_changed(tmp_path, monkeypatch):
    home, folder = tmp_path / "home", tmp_path / "history"
    write(home, "alpha", 0)
    first = Warehouse(home).publish_to(folder)
    assert first["written"] == first["files"] == 3
    assert Warehouse(home).publish_to(folder)["written"] == 0
    with MetricLog(home / "outbox", "run-0", {"host": "alpha"}) as log:
        log.scalars(0, {"sps": 11.0})
    unlink = Path.unlink

    def unlink_late(file, **options):
        if file.suffix == ".parquet":
            os.remove(file)  # as if another process had removed the replaced file
        unlink(file, **options)

    monkeypatch.setattr(Path, "unlink", unlink_late)
    assert Warehouse(home).publish_to(folder)["written"] == 1
    values = History(folder).query("select value from metrics where step = 0 and name = 'sps'")["value"]
    assert values.tolist() == [11.0]
    assert len(list(folder.glob("metrics/**/*.parquet"))) == 1


def test_interrupted_publication_changes_nothing_and_is_continued(tmp_path, monkeypatch):
    home, folder = tmp_path / "home", tmp_path / "history"
    write(home, "alpha", 0)
    Warehouse(home).publish_to(folder)
    before = History(folder).query("from metrics order by all").to_csv()
    write(home, "alpha", 1)
    moved, replace = [], os.replace

    def fail_at_the_second(source, target):
        moved.extend([target] * (".parquet" in str(target)))
        if len(moved) == 2:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_at_the_second)
    with pytest.raises(RecordError, match="give the command again"):
        Warehouse(home).publish_to(folder)
    monkeypatch.undo()
    assert History(folder).query("from metrics order by all").to_csv() == before
    assert Warehouse(home).publish_to(folder)["written"] == 2
    assert History(folder).query("select count(*) as n from runs")["n"][0] == 2


def test_history_of_nothing_names_the_command(tmp_path):
    with pytest.raises(RecordError, match="next: navi warehouse publish"):
        History(tmp_path)
    (tmp_path / "homes").mkdir()
    (tmp_path / "homes" / "x.json").write_text(json.dumps({"navi_history": 2, "files": {}}))
    with pytest.raises(RecordError, match=r"x\.json is broken.*update this checkout"):
        History(tmp_path).query("select 1")


@pytest.mark.slow
def test_migrations_keep_their_dates_when_the_database_is_made_anew(tmp_path):
    write(tmp_path, "alpha", 0)
    warehouse = Warehouse(tmp_path)
    warehouse.ingest()
    dates = warehouse.query("select applied_at from migrations order by number")["applied_at"].tolist()
    warehouse.compact()
    warehouse.rebuild()
    assert warehouse.query("select applied_at from migrations order by number")["applied_at"].tolist() == dates
