"""Compaction to Parquet: rows count once, a rebuild gives the same rows, and a kill loses none."""

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
from tests.pipeline.empty_warehouse import start_warehouse
from tests.pipeline.warehouse.kill_storm import die_after

ROWS = "select run_id, step, name, value, segment from metrics order by all"


@pytest.fixture
def warehouse(tmp_path):
    """Two runs of 20 steps in several segments, step 3 written twice, folded in."""
    warehouse = Warehouse(start_warehouse(tmp_path / "home"))
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
    assert report == {"rows": 41, "segments": 5, "thinned": 0}
    assert not list(warehouse.done.iterdir()) and rows(warehouse) == before
    warehouse.compact()
    assert rows(warehouse) == before and len(list(warehouse.archive.folder.iterdir())) == 2


def test_rebuild_from_archive_and_later_segments_keeps_all_rows(warehouse):
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


@pytest.mark.slow
def test_segment_repeated_after_compaction_is_skipped(warehouse):
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
        pytest.param(Archive, "write", marks=pytest.mark.slow),
        pytest.param(Archive, "adopt", marks=pytest.mark.slow),
        pytest.param(Warehouse, "_restored", marks=pytest.mark.slow),
        (Warehouse, "_exchange"),
        pytest.param(warehouse_module, "publish", marks=pytest.mark.slow),
    ],
)
def test_killed_compaction_loses_and_duplicates_no_row(warehouse, owner, name):
    before = rows(warehouse)
    die_after(owner, name, warehouse.compact)
    assert rows(warehouse) == before
    warehouse.rebuild()
    assert rows(warehouse) == before
    warehouse.compact()
    assert rows(warehouse) == before and not list(warehouse.done.iterdir())


@pytest.mark.parametrize(
    ("owner", "name"), [pytest.param(Archive, "write", marks=pytest.mark.slow), (Warehouse, "_restored")]
)
def test_ingest_during_compaction_does_not_wait_or_lose_rows(warehouse, monkeypatch, owner, name):
    done, meanwhile = getattr(owner, name), Warehouse(warehouse.folder.parent, lock_timeout=0.1)

    def busy(self, *rest):
        made = done(self, *rest)
        assert (warehouse.folder / "navi.duckdb.old").exists() == (name == "write"), "one copy at a time needs room"
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
    assert len(list(warehouse.done.glob("*.ndjson"))) == 3, "later segments are not in the archive"
    warehouse.rebuild()
    assert rows(warehouse) == after


@pytest.mark.slow
def test_compaction_ignores_leftovers_of_a_killed_one(warehouse):
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


def test_concurrent_compaction_error_names_the_lock(warehouse):
    with warehouse._locked("compact.lock"), pytest.raises(RecordError, match=r"compact\.lock"):
        Warehouse(warehouse.folder.parent, lock_timeout=0.1).compact()


def test_compaction_checks_free_space_before_copying(warehouse, monkeypatch):
    before, usage = rows(warehouse), shutil.disk_usage(warehouse.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    free = warehouse.database.stat().st_size  # just enough without an archive
    warehouse.compact()
    wanted = warehouse.database.stat().st_size + sum(f.stat().st_size for f in warehouse.archive.folder.rglob("*.p*t"))
    free = wanted - 1
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", lambda *_: pytest.fail("the copy was begun"))
        with pytest.raises(RecordError, match="free some space"):
            warehouse.compact()
    assert rows(warehouse) == before


@pytest.mark.slow
def test_compaction_adopts_the_archive_under_the_ingest_lock(warehouse, monkeypatch):
    held, adopt = [], Archive.adopt

    def watched(self, *rest):
        held.append(is_locked(warehouse.folder / "ingest.lock"))
        adopt(self, *rest)

    monkeypatch.setattr(Archive, "adopt", watched)
    warehouse.compact()
    assert held == [True]


@pytest.mark.slow
@pytest.mark.parametrize("owner", [Archive, Warehouse])
def test_compaction_that_fails_late_keeps_a_valid_archive(warehouse, monkeypatch, owner):
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


@pytest.mark.slow
def test_compaction_keeps_views_changed_meanwhile(warehouse, monkeypatch, tmp_path):
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


@pytest.mark.slow
def test_compaction_is_refused_after_a_concurrent_migration(warehouse, monkeypatch):
    before, done = rows(warehouse), Warehouse._restored

    def migrated(self, *rest):
        made = done(self, *rest)
        with duckdb.connect(str(warehouse.database)) as connection:
            connection.execute("insert into migrations values (99, 'a_later_one', 'x', now()::timestamp)")
        return made

    monkeypatch.setattr(Warehouse, "_restored", migrated)
    with pytest.raises(RecordError, match="has migration 99, the copy had"):
        warehouse.compact()
    assert not list(warehouse.archive.folder.iterdir()), "the refused archive is removed"
    with duckdb.connect(str(warehouse.database), read_only=True) as connection:
        assert connection.execute(ROWS).fetchall() == [tuple(row) for row in before]


@pytest.mark.slow
def test_compaction_thins_old_runs_except_those_of_models(warehouse):
    report = warehouse.compact(keep_days=7, points=5)
    steps = {run: [s for r, s in rows(warehouse, "select run_id, step from metrics order by all") if r == run]
             for run in ("old", "kept")}  # fmt: skip
    assert steps["kept"] == list(range(20))
    assert len(steps["old"]) == 5 and steps["old"][-1] == 19 and report["thinned"] == 15
    warehouse.rebuild()
    assert len(rows(warehouse)) == 25
    assert warehouse.compact(keep_days=7, points=5)["thinned"] == 0


@pytest.mark.slow
def test_runs_of_models_have_a_separate_retention(warehouse):
    assert warehouse.compact(keep_model_days=36500, points=5)["thinned"] == 0
    assert warehouse.compact(keep_model_days=7, points=5)["thinned"] == 15
    assert [
        run for run, *_ in rows(warehouse, "select run_id, count(*) from metrics group by 1 having count(*) = 5")
    ] == ["kept"]


@pytest.mark.slow
def test_compaction_drops_old_service_experiences(warehouse):
    now = datetime.now(UTC)
    with MetricLog(warehouse.outbox, "service-a", {"seed": 1}) as log:
        for number in range(10):
            moment = (now - timedelta(days=number)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
            log.row("service_experiences", {"number": number, "actual_reward": 0.5, "recorded_at": moment})
        log.row("service_versions", {"model_version": 1, "fate": "trained", "recorded_at": "2026-01-01T00:00:00Z"})
    assert warehouse.compact()["thinned"] == 0
    assert warehouse.compact(keep_days=6.5, points=1000)["thinned"] == 3
    warehouse.rebuild()
    assert [n for (n,) in rows(warehouse, "select number from service_experiences order by 1")] == list(range(7))
    assert len(rows(warehouse, "select * from service_versions")) == 1


@pytest.mark.parametrize(
    ("owner", "name", "kind"),
    [
        pytest.param(Archive, "write", OSError, marks=pytest.mark.slow),
        pytest.param(Archive, "write", duckdb.Error, marks=pytest.mark.slow),
        pytest.param(Warehouse, "_restored", OSError, marks=pytest.mark.slow),
        pytest.param(Warehouse, "_restored", duckdb.Error, marks=pytest.mark.slow),
        (Archive, "adopt", OSError),
        pytest.param(Archive, "adopt", duckdb.Error, marks=pytest.mark.slow),
    ],
)
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
            # Rows due for thinning are kept, too.
            warehouse.compact(keep_days=0, keep_model_days=0, points=5)
    warehouse.publish()
    assert set(warehouse.folder.rglob("*")) == lying and rows(warehouse) == before
    warehouse.compact()
    assert rows(warehouse) == before


@pytest.mark.parametrize("name", [pytest.param("write", marks=pytest.mark.slow), "restore"])
def test_failed_compaction_keeps_an_archive_whose_manifest_is_missing(warehouse, monkeypatch, name):
    warehouse.compact()
    (warehouse.archive.folder / "manifest.json").unlink()
    kept = {file: file.read_bytes() for file in warehouse.archive.folder.rglob("*.parquet")}

    def fails(*_):
        raise OSError("no room")

    if name == "write":
        monkeypatch.setattr(os, "fsync", fails)
    else:
        monkeypatch.setattr(Archive, name, fails)
    with pytest.raises(RecordError, match="was not compacted: no room"):
        warehouse.compact()
    assert kept and {file: file.read_bytes() for file in warehouse.archive.folder.rglob("*.parquet")} == kept


@pytest.mark.slow
def test_young_runs_are_not_thinned(warehouse):
    assert warehouse.compact(keep_days=36500, points=5)["thinned"] == 0


def test_rebuild_refuses_a_damaged_archive_and_keeps_the_database(warehouse):
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


@pytest.mark.slow
def test_rebuild_restores_an_archive_older_than_a_table(warehouse):
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


def test_compact_command_keeps_runs_of_registered_models(warehouse, make_checkpoint):  # noqa: F811
    """The registry may hold versions that have no row yet."""
    home = warehouse.folder.parent
    Registry(home / "models").register(make_checkpoint("a.pt", run_id="old"))
    arguments = ["warehouse", "compact", "--keep-days", "0", "--points", "5", "--home", str(home), "--json"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0 and json.loads(result.stdout)["thinned"] == 15
    # The registry's v001 replaces the recorded one, so no model refers to that run any more.
    assert rows(warehouse, "select version, run_id from models") == [["v001", "old"]]
    assert rows(warehouse, "select count(*) from metrics where run_id = 'old'") == [[20]]


def test_verify_counts_lost_doubled_and_changed_rows(warehouse):
    write(warehouse, "old", [40], 0.0)
    warehouse.compact()
    write(warehouse, "kept", [3, 41], 9.0)
    assert warehouse.verify()["metrics"] == {"rows": 42} | dict.fromkeys(
        ("missing database", "extra database", "missing snapshot", "extra snapshot"), 0
    )
    assert not list(warehouse.folder.glob("*.verify*"))
    with duckdb.connect(str(warehouse.database)) as connection:
        connection.execute("update metrics set value = -1 where run_id = 'old' and step = 5")
        connection.execute("insert into metrics select * from metrics where run_id = 'old' and step = 6")
    found = warehouse.verify()["metrics"]
    assert (found["missing database"], found["extra database"]) == (1, 2)
    command = ["query", "--verify", "--home", str(warehouse.folder.parent)]
    error = CliRunner().invoke(build_app(groups=()), command).exception
    assert isinstance(error, RecordError) and "metrics: 1 missing in the database, 2 extra in the database" in str(
        error
    )
    warehouse.rebuild()
    assert not any(count for name, count in warehouse.verify()["metrics"].items() if name != "rows")
