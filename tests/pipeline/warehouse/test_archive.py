"""Compaction to Parquet: a row counts once, a rebuild gives the same, a kill anywhere loses nothing."""

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.errors import RecordError
from navi_core.machine.file_lock import is_locked
from navi_core.models import Registry
from navi_core.record import MetricLog
from navi_pipeline.lib.warehouse import warehouse as warehouse_module
from navi_pipeline.lib.warehouse.archive import Archive
from navi_pipeline.lib.warehouse.database import sql_folder
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from tests.models.conftest import make_checkpoint  # noqa: F401 - a fixture
from tests.pipeline.warehouse.kill_storm import die_after

ROWS = "select run_id, step, name, value, segment from metrics order by all"


@pytest.fixture
def warehouse(tmp_path):
    """Two runs of 20 steps in several segments, step 3 written twice, folded in."""
    warehouse = Warehouse(tmp_path / "home")
    for value, steps in ((0.0, range(4)), (1.0, range(3, 20))):
        write(warehouse, "old", steps, value)
        write(warehouse, "kept", steps, value)
    with MetricLog(warehouse.outbox, "kept", {}) as log:
        log.row("models", {"version": "v001", "parents": []})
    warehouse.ingest()
    return warehouse


def write(warehouse, run, steps, value):
    with MetricLog(warehouse.outbox, run, {"seed": 1}) as log:
        for step in steps:
            log.row("metrics", {"step": step, "name": "a", "value": value + step,
                                "recorded_at": "2026-01-01T00:00:00Z"})  # fmt: skip


def rows(warehouse, sql=ROWS):
    return warehouse.query(sql).values.tolist()


def test_compaction_replaces_segments_and_changes_no_answer(warehouse):
    before = rows(warehouse)
    report = warehouse.compact()
    assert (report.rows, report.segments, report.thinned) == (41, 5, 0)
    assert not list(warehouse.done.iterdir()) and rows(warehouse) == before
    warehouse.compact()
    assert rows(warehouse) == before and len(list(warehouse.archive.folder.iterdir())) == 2


def test_a_rebuild_from_parquet_and_the_segments_since_gives_the_same(warehouse):
    warehouse.compact()
    write(warehouse, "old", [3, 20], 5.0)
    warehouse.ingest()
    before = rows(warehouse)
    assert len(before) == 41 and next(r for r in before if r[:2] == ["old", 3])[3] == 8.0
    warehouse.database.write_bytes(b"broken")
    warehouse.rebuild()
    assert rows(warehouse) == before
    parquet = str(warehouse.archive.folder / "*" / "metrics.parquet")
    assert duckdb.sql(f"select count(*), count(distinct (run_id, step)) from '{parquet}'").fetchall() == [(40, 40)]


def test_a_segment_that_comes_again_after_its_compaction_is_known(warehouse):
    file = sorted(warehouse.done.glob("*metrics*"))[0]
    data = file.read_bytes()
    before = rows(warehouse)
    warehouse.compact()
    (warehouse.outbox / file.name).write_bytes(data)
    assert warehouse.ingest().repeated == 1 and rows(warehouse) == before
    warehouse.rebuild()
    assert rows(warehouse) == before


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Archive, "write"),
        (Archive, "adopt"),
        (Warehouse, "_restored"),
        (Warehouse, "_exchange"),
        (warehouse_module, "publish"),
    ],
)
def test_a_compaction_killed_anywhere_loses_and_doubles_nothing(warehouse, owner, name):
    before = rows(warehouse)
    die_after(owner, name, warehouse.compact)
    assert rows(warehouse) == before
    warehouse.rebuild()
    assert rows(warehouse) == before
    warehouse.compact()
    assert rows(warehouse) == before and not list(warehouse.done.iterdir())


@pytest.mark.parametrize(("owner", "name"), [(Archive, "write"), (Warehouse, "_restored")])
def test_a_compaction_keeps_no_ingest_waiting_and_loses_nothing_of_it(warehouse, monkeypatch, owner, name):
    done, meanwhile = getattr(owner, name), Warehouse(warehouse.folder.parent, lock_timeout=0.1)

    def busy(self, *rest):
        made = done(self, *rest)
        write(meanwhile, "new", [1, 2], 7.0)
        write(meanwhile, "old", [3], 7.0)
        with MetricLog(meanwhile.outbox, "kept", {"seed": 1}) as log:
            log.forget()
        meanwhile.ingest()
        return made

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, busy)
        warehouse.compact()
    after = rows(warehouse)
    assert [(run, step) for run, step, *_ in after] == [("new", 1), ("new", 2), *(("old", step) for step in range(20))]
    assert next(value for run, step, _, value, _ in after if (run, step) == ("old", 3)) == 10.0
    assert len(list(warehouse.done.glob("*.ndjson"))) == 3, "what came since is not in the archive"
    warehouse.rebuild()
    assert rows(warehouse) == after


def test_what_a_killed_compaction_left_is_not_taken_for_ours(warehouse):
    before = rows(warehouse)
    copy = warehouse.folder / "navi.duckdb.old"
    shutil.copyfile(warehouse.database, copy)
    with duckdb.connect(str(copy)) as connection:
        connection.execute("set checkpoint_threshold = '1 GB'; set wal_autocheckpoint = '1 GB'")
        connection.execute("delete from metrics")
        kept = Path(f"{copy}.wal").read_bytes()
    Path(f"{copy}.wal").write_bytes(kept)
    warehouse.compact()
    assert rows(warehouse) == before and not copy.exists() and not Path(f"{copy}.wal").exists()


def test_two_compactions_take_turns(warehouse):
    with warehouse._locked("compact.lock"), pytest.raises(RecordError, match=r"compact\.lock"):
        Warehouse(warehouse.folder.parent, lock_timeout=0.1).compact()


def test_a_compaction_asks_for_room_before_it_fills_the_disk(warehouse, monkeypatch):
    before, usage = rows(warehouse), shutil.disk_usage(warehouse.folder)
    warehouse.compact()
    wanted = warehouse.database.stat().st_size + sum(f.stat().st_size for f in warehouse.archive.folder.rglob("*.p*t"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=wanted - 1))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", lambda *_: pytest.fail("the copy was begun"))
        with pytest.raises(RecordError, match="free some space"):
            warehouse.compact()
    assert rows(warehouse) == before


def test_a_backup_under_the_lock_of_ingests_misses_nothing_that_a_compaction_removes(warehouse, monkeypatch):
    held, adopt = [], Archive.adopt

    def watched(self, *rest):
        held.append(is_locked(warehouse.folder / "ingest.lock"))
        adopt(self, *rest)

    monkeypatch.setattr(Archive, "adopt", watched)
    warehouse.compact()
    assert held == [True]


@pytest.mark.parametrize("owner", [Archive, Warehouse])
def test_a_compaction_that_fails_late_keeps_the_archive_that_counts(warehouse, monkeypatch, owner):
    before = rows(warehouse)
    warehouse.compact()
    name = {Archive: "adopt", Warehouse: "_exchange"}[owner]
    done = getattr(owner, name)

    def fails(self, *rest):
        done(self, *rest)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fails)
        with pytest.raises(RecordError, match="Input/output error"):
            warehouse.compact()
    warehouse.rebuild()
    assert rows(warehouse) == before


def test_views_that_changed_during_a_compaction_are_not_undone(warehouse, monkeypatch, tmp_path):
    shutil.copytree(sql_folder(), tmp_path / "sql")
    monkeypatch.setenv("NAVI_SQL", str(tmp_path / "sql"))
    warehouse.ingest()
    restored = Warehouse._restored

    def updated(self, *rest):
        made = restored(self, *rest)
        (tmp_path / "sql" / "views" / "one.sql").write_text("create or replace view one as select 1 as n;")
        Warehouse(warehouse.folder.parent).ingest()
        return made

    monkeypatch.setattr(Warehouse, "_restored", updated)
    warehouse.compact()
    assert rows(warehouse, "select n from one") == [[1]]


def test_a_migration_during_a_compaction_is_not_undone(warehouse, monkeypatch):
    before, done = rows(warehouse), Warehouse._restored

    def migrated(self, *rest):
        made = done(self, *rest)
        with duckdb.connect(str(warehouse.database)) as connection:
            connection.execute("insert into migrations values (99, 'a_later_one', 'x', now()::timestamp)")
        return made

    monkeypatch.setattr(Warehouse, "_restored", migrated)
    with pytest.raises(RecordError, match="has migration 99, the copy had"):
        warehouse.compact()
    assert not list(warehouse.archive.folder.iterdir()), "what does not count is gone"
    with duckdb.connect(str(warehouse.database), read_only=True) as connection:
        assert connection.execute(ROWS).fetchall() == [tuple(row) for row in before]


def test_old_runs_are_thinned_and_those_that_models_came_from_are_kept_whole(warehouse):
    report = warehouse.compact(keep_days=7, points=5)
    steps = {run: [s for r, s in rows(warehouse, "select run_id, step from metrics order by all") if r == run]
             for run in ("old", "kept")}  # fmt: skip
    assert steps["kept"] == list(range(20))
    assert len(steps["old"]) == 5 and steps["old"][-1] == 19 and report.thinned == 15
    warehouse.rebuild()
    assert len(rows(warehouse)) == 25
    assert warehouse.compact(keep_days=7, points=5).thinned == 0


def test_runs_that_models_came_from_have_a_term_of_their_own(warehouse):
    assert warehouse.compact(keep_model_days=36500, points=5).thinned == 0
    assert warehouse.compact(keep_model_days=7, points=5).thinned == 15
    assert [
        run for run, *_ in rows(warehouse, "select run_id, count(*) from metrics group by 1 having count(*) = 5")
    ] == ["kept"]


def test_old_experiences_of_services_are_dropped_and_young_ones_stay(warehouse):
    now = datetime.now(UTC)
    with MetricLog(warehouse.outbox, "service-a", {"seed": 1}) as log:
        for number in range(10):
            moment = (now - timedelta(days=number)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
            log.row("service_experiences", {"number": number, "actual_reward": 0.5, "recorded_at": moment})
        log.row("service_versions", {"model_version": 1, "fate": "trained", "recorded_at": "2026-01-01T00:00:00Z"})
    assert warehouse.compact().thinned == 0
    assert warehouse.compact(keep_days=6.5, points=1000).thinned == 3
    warehouse.rebuild()
    assert [n for (n,) in rows(warehouse, "select number from service_experiences order by 1")] == list(range(7))
    assert len(rows(warehouse, "select * from service_versions")) == 1


@pytest.mark.parametrize("kind", [OSError, duckdb.Error], ids=["system", "database"])
@pytest.mark.parametrize(("owner", "name"), [(Archive, "write"), (Warehouse, "_restored"), (Archive, "adopt")])
def test_compaction_without_disk_space_raises_and_leaves_no_files(warehouse, monkeypatch, owner, name, kind):
    warehouse.compact()
    write(warehouse, "old", [30], 5.0)
    warehouse.ingest()
    before, lying = rows(warehouse), set(warehouse.folder.rglob("*"))

    def fails(self, *rest):
        done(self, *rest) if name == "_restored" else None
        raise kind("no room")

    with monkeypatch.context() as patch:
        done = getattr(owner, name)
        if name == "write":
            patch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(kind("no room")))
        else:
            patch.setattr(owner, name, fails)
        with pytest.raises(RecordError, match=r"was not compacted: .*every row is where it was"):
            # Rows that are to be thinned are where they were, too.
            warehouse.compact(keep_days=0, keep_model_days=0, points=5)
    warehouse.publish()
    assert set(warehouse.folder.rglob("*")) == lying and rows(warehouse) == before
    warehouse.compact()
    assert rows(warehouse) == before


def test_young_runs_are_not_thinned(warehouse):
    assert warehouse.compact(keep_days=36500, points=5).thinned == 0


def test_a_damaged_archive_is_refused_and_the_database_left_as_it_is(warehouse):
    warehouse.compact()
    before = rows(warehouse)
    file = next(warehouse.archive.folder.glob("*/metrics.parquet"))
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(RecordError, match="changed since"):
        warehouse.rebuild()
    assert rows(warehouse) == before
    os.remove(file)
    with pytest.raises(RecordError, match="is missing"):
        warehouse.rebuild()
    manifest = warehouse.archive.folder / "manifest.json"
    manifest.write_text(json.dumps({"navi_archive": 9}))
    with pytest.raises(RecordError, match="broken"):
        warehouse.rebuild()
    assert rows(warehouse) == before


def test_an_archive_that_is_older_than_a_table_is_restored(warehouse):
    warehouse.compact()
    before = rows(warehouse)
    manifest = warehouse.archive.folder / "manifest.json"
    document = json.loads(manifest.read_text())
    del document["tables"]["comparisons"]
    manifest.write_text(json.dumps(document))
    with pytest.raises(RecordError, match=r"does not know .*comparisons\.parquet"):
        warehouse.rebuild()
    assert rows(warehouse) == before
    os.remove(next(warehouse.archive.folder.glob("*/comparisons.parquet")))
    warehouse.rebuild()
    assert rows(warehouse) == before and rows(warehouse, "select * from comparisons") == []
    warehouse.compact()
    assert rows(warehouse) == before and json.loads(manifest.read_text())["tables"]["comparisons"]["rows"] == 0


def test_the_command_thins_no_run_that_a_registered_model_came_from(warehouse, make_checkpoint):  # noqa: F811
    """The registry may know versions that no row was written of yet."""
    home = warehouse.folder.parent
    Registry(home / "models").register(make_checkpoint("a.pt", run_id="old"))
    arguments = ["warehouse", "compact", "--keep-days", "0", "--points", "5", "--home", str(home), "--json"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0 and json.loads(result.stdout)["thinned"] == 15
    # The registry's v001 takes the place of the row's, whose run is nobody's now.
    assert rows(warehouse, "select version, run_id from models") == [["v001", "old"]]
    assert rows(warehouse, "select count(*) from metrics where run_id = 'old'") == [[20]]
