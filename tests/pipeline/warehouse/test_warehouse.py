"""The warehouse: no acknowledged row lost, none doubled, readers never disturbed."""

import hashlib
import json
import os
import time
from pathlib import Path

import duckdb
import pytest

from navi_core.errors import RecordError
from navi_core.record import NATURAL_KEYS, MetricLog
from navi_core.record.metric_log import UNINDEXED_TABLES
from navi_pipeline.cli.query import run_query
from navi_pipeline.lib.warehouse import outbox
from navi_pipeline.lib.warehouse.outbox import Outbox
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from tests.pipeline.empty_warehouse import start_warehouse
from tests.pipeline.warehouse.kill_storm import die_after, run_storm

CONTEXT = {"seed": 3, "hardware": "a machine", "versions": {"numpy": "2"}, "revision": "r", "config_hash": "abcd"}
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def home(tmp_path):
    return start_warehouse(tmp_path / "home")


def log_of(home, run="run", **context):
    return MetricLog(home / "outbox", run, CONTEXT | context)


def count(warehouse, table="metrics"):
    return int(warehouse.query(f"select count(*) as n from {table}")["n"][0])


def test_rows_arrive_with_their_context_and_types(home):
    with log_of(home, colour="red") as log:
        log.scalars(7, {"a": 0.1, "b": float("nan"), "c": float("-inf")})
        log.row("promotions", {"alias": "champion", "version": "v001", "decided_at": "2026-01-02T03:04:05Z",
                               "promoted": True, "margin": 0.5})  # fmt: skip
    warehouse = Warehouse(home)
    report = warehouse.ingest()
    assert (report.segments, report.rows) == (2, 4)
    row = warehouse.query("select * from metrics where name = 'a'").iloc[0]
    assert (row.run_id, row.step, row.value, row.seed, row.revision) == ("run", 7, 0.1, 3, "r")
    assert json.loads(row.versions) == {"numpy": "2"} and json.loads(row.extra) == {"colour": "red"}
    assert warehouse.query("select count(*) as n from metrics where isnan(value)")["n"][0] == 1
    decision = warehouse.query("select promoted, extra->>'margin' as margin, decided_at from promotions").iloc[0]
    assert bool(decision.promoted) and decision.margin == "0.5" and decision.decided_at.hour == 3


def test_a_row_written_again_replaces_the_first(home):
    warehouse = Warehouse(home)
    for value in (1.0, 2.0):
        with log_of(home) as log:
            log.scalars(1, {"a": value})
        warehouse.ingest()
    with log_of(home) as log:  # twice within one segment and one transaction
        log.scalars(2, {"a": 1.0})
        log.scalars(2, {"a": 5.0})
    warehouse.ingest()
    assert warehouse.query("select value from metrics order by step")["value"].tolist() == [2.0, 5.0]


def test_fresh_start_drops_run_rows_and_keeps_history(home):
    with log_of(home) as log, log_of(home, "other") as other:
        log.scalars(1, {"a": 1.0})
        log.row("models", {"version": "v001"})
        other.scalars(1, {"a": 1.0})
    log.forget()
    log.scalars(2, {"a": 1.0})
    log.close()
    warehouse = Warehouse(home)
    warehouse.ingest()
    rows = warehouse.query("select run_id, step from metrics order by run_id")
    assert rows.values.tolist() == [["other", 1], ["run", 2]] and count(warehouse, "models") == 1
    warehouse.rebuild()
    assert count(warehouse) == 2


def test_ingest_interrupted_after_commit_duplicates_no_row(home):
    with log_of(home) as log:
        log.scalars(1, {"a": 1.0})
    warehouse = Warehouse(home)
    warehouse.ingest()
    for file in warehouse.done.iterdir():  # as if killed between commit and move
        file.rename(warehouse.outbox / file.name)
    report = warehouse.ingest()
    assert (report.segments, report.repeated, count(warehouse)) == (0, 1, 1)
    assert not list(warehouse.outbox.glob("*.ndjson"))


def test_transaction_that_fails_is_rolled_back_and_named(home, monkeypatch):
    with log_of(home) as log:
        log.scalars(1, {"a": 1.0})
    fold = outbox.fold_segments

    def full(connection, *values):
        fold(connection, *values)
        raise duckdb.IOException("IO Error: no space left on device")

    with monkeypatch.context() as during:
        during.setattr(outbox, "fold_segments", full)
        with pytest.raises(RecordError, match="failed: IO Error: no space left on device"):
            Warehouse(home).ingest()
    assert Warehouse(home).ingest().rows == 1 and count(Warehouse(home)) == 1


def test_ingest_after_a_kill_publishes_the_missing_snapshot(home):
    warehouse = Warehouse(home)
    warehouse.ingest()
    with log_of(home) as log:
        log.scalars(1, {"a": 1.0})
    die_after(Outbox, "fold", warehouse.ingest)
    assert count(warehouse) == 0
    assert warehouse.ingest().rows == 0 and count(warehouse) == 1


BROKEN = {
    "empty": b"",
    "not json": b"{\n",
    "torn": lambda data: data[:-3],
    "no newline": lambda data: data.partition(b"\n")[0],
    "changed": lambda data: data.replace(b"0.25", b"0.26"),
    "wrong count": lambda data: data.replace(b'"rows":1', b'"rows":2'),
    "future": lambda data: data.replace(b'"navi_segment":1', b'"navi_segment":9'),
    "unknown table": lambda data: data.replace(b'"table":"metrics"', b'"table":"secrets"'),
    "binary": lambda data: data[:40] + b"\xff\xfe" + data[40:],
}


def test_a_database_whose_creation_failed_is_created_again(tmp_path):
    """DuckDB refuses an empty file: what is left when its first write fails."""
    with log_of(tmp_path) as log:
        log.scalars(1, {"a": 1.0})
    warehouse = Warehouse(tmp_path)
    warehouse.folder.mkdir()
    warehouse.database.touch()
    warehouse.ingest()
    assert count(warehouse) == 1
    warehouse.database.write_bytes(b"")  # a whole one that lost its content is not passed over
    with log_of(tmp_path, "later") as log:
        log.scalars(1, {"a": 1.0})
    with pytest.raises(RecordError, match="--rebuild"):
        warehouse.ingest()


@pytest.mark.parametrize("name", BROKEN)
def test_bad_segments_are_quarantined_with_their_reason(home, name):
    with log_of(home) as log:
        log.scalars(1, {"a": 0.25})
    good = next((home / "outbox").glob("*.ndjson"))
    make = BROKEN[name]
    (home / "outbox" / "000-bad.ndjson").write_bytes(make if isinstance(make, bytes) else make(good.read_bytes()))
    warehouse = Warehouse(home)
    report = warehouse.ingest()
    assert list(report.quarantined) == ["000-bad.ndjson"] and count(warehouse) == 1
    reason = (warehouse.quarantine / "000-bad.ndjson.reason.txt").read_text().strip()
    assert reason == report.quarantined["000-bad.ndjson"] and len(reason) > 10
    assert (warehouse.quarantine / "000-bad.ndjson").exists() and not list(warehouse.outbox.glob("*.ndjson"))


def test_wrong_value_type_is_refused_with_line_and_column(home):
    log = log_of(home)
    log.row("stage_timings", {"stage": "env", "milliseconds": "slow"})
    log.close()
    (reason,) = Warehouse(home).ingest().quarantined.values()
    assert "line 2" in reason and "stage_timings.milliseconds" in reason


def test_the_database_can_be_rebuilt_from_done(home):
    for step in range(5):
        with log_of(home) as log:
            log.scalars(step % 3, {"a": float(step)})
    warehouse = Warehouse(home)
    warehouse.ingest()
    before = warehouse.query("select step, value from metrics order by step").values.tolist()
    warehouse.database.write_bytes(b"broken")
    with log_of(home) as log:
        log.scalars(9, {"a": 9.0})
    with pytest.raises(RecordError, match="--rebuild"):
        warehouse.ingest()
    (warehouse.folder / "sql.sha256").unlink()  # as if an earlier rebuild had been killed
    warehouse.rebuild()
    after = warehouse.query("select step, value from metrics order by step").values.tolist()
    assert after == [*before, [9, 9.0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fresh", "between"),
    [
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    ],
)
def test_a_later_row_wins_after_the_clock_is_set_back(home, monkeypatch, between, fresh):
    warehouse, real = Warehouse(home), time.time_ns
    with log_of(home) as log:
        for step in range(10):
            log.scalars(step, {"a": 1.0})
    if between:
        warehouse.ingest()
    monkeypatch.setattr(time, "time_ns", lambda: real() - 24 * 3600 * 10**9)
    with log_of(home) as log:
        if fresh:
            log.forget()
        for step in range(5):
            log.scalars(step, {"a": 2.0})
    right = [[step, 2.0 if step < 5 else 1.0] for step in range(5 if fresh else 10)]
    for change in (warehouse.ingest, warehouse.rebuild, warehouse.compact, warehouse.rebuild):
        change()
        assert warehouse.query("select step, value from metrics order by step").values.tolist() == right


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        pytest.param(Warehouse.rebuild, False, marks=pytest.mark.slow),
        pytest.param(Warehouse.rebuild, True, marks=pytest.mark.slow),
        (Warehouse.compact, False),
        pytest.param(Warehouse.compact, True, marks=pytest.mark.slow),
    ],
)
def test_rebuild_replays_segments_in_ingest_order(home, change, broken):
    """Segments that are numbered by the clock alone keep their ingest order."""
    warehouse = Warehouse(home)
    for day, value in ((2, 1.0), (1, 2.0)):
        with log_of(home) as log:
            log.scalars(1, {"a": value})
        file = next((home / "outbox").glob("*.ndjson"))
        file.rename(file.with_name(f"{day:020d}-{file.name[21:]}"))
        warehouse.ingest()
    if broken and change is Warehouse.rebuild:
        warehouse.database.write_bytes(b"broken")
    change(warehouse)
    assert warehouse.query("select value from metrics")["value"].tolist() == [2.0]
    warehouse.rebuild()
    assert warehouse.query("select value from metrics")["value"].tolist() == [2.0]


@pytest.mark.slow
def test_rebuild_replays_unknown_segments_by_file_name(home):
    warehouse = Warehouse(home)
    for value in (1.0, 2.0):
        with log_of(home) as log:
            log.scalars(1, {"a": value})
        warehouse.database.unlink(missing_ok=True)
        warehouse.ingest()
    warehouse.rebuild()
    assert warehouse.query("select value from metrics")["value"].tolist() == [2.0]


def test_queries_are_read_only_and_errors_name_relations(home):
    warehouse = Warehouse(home)
    with pytest.raises(RecordError, match="read-only"):
        warehouse.query("drop table metrics")
    with pytest.raises(RecordError, match="did you mean 'leaderboard'"):
        warehouse.query("select * from leaderbord")
    with pytest.raises(RecordError, match="no table or view 'qqqqqq'; next: navi warehouse list"):
        warehouse.query("select * from qqqqqq")


def test_query_cannot_read_or_write_outside_the_snapshot(home, tmp_path):
    warehouse = Warehouse(home)
    (tmp_path / "secret.csv").write_text("a\n1\n")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    for sql in (
        f"copy (select 1) to '{tmp_path}/out.csv'",
        f"copy metrics to '{tmp_path}/out.csv'",
        f"attach '{tmp_path}/other.duckdb' as o",
        f"export database '{tmp_path}/export'",
        f"select * from '{tmp_path}/secret.csv'",
        "select * from read_text('/etc/hostname')",
        "set enable_external_access=true",
        "set memory_limit='100GB'",
        f"call enable_logging(storage='file', storage_path='{tmp_path}/log')",
        "install httpfs",
        "select '\ud800'",
        "begin; delete from metrics; commit",
        "",
        " ; ",
    ):
        with pytest.raises(RecordError):
            warehouse.query(sql)
    made = {"warehouse", "outbox", "done", "quarantine", "home"}
    after = [p.name for p in tmp_path.rglob("*") if p.name not in made and "warehouse" not in p.parent.name]
    assert after == [name for name in before if name == "secret.csv"]


def test_broken_snapshot_is_published_again(home):
    warehouse = Warehouse(home)
    with log_of(home) as log:
        log.scalars(1, {"a": 1.0})
    warehouse.ingest()
    warehouse.snapshot.unlink()
    warehouse.snapshot.write_bytes(b"broken")
    assert count(warehouse) == 1


def test_query_of_a_broken_snapshot_names_the_remedy(home):
    warehouse = Warehouse(home)
    warehouse.ingest()
    warehouse.database.write_bytes(b"broken")
    warehouse.snapshot.unlink()
    warehouse.snapshot.write_bytes(b"broken")
    for ask in (warehouse.relations, lambda: warehouse.query("select 1")):
        with pytest.raises(RecordError, match="navi query --rebuild"):
            ask()
    warehouse.rebuild()
    warehouse.query("select 1")


def test_ingest_batches_segments_by_bytes(home, monkeypatch):
    """Batches are bounded by bytes, because a learning service writes megabytes every five seconds."""
    for step in range(12):
        with MetricLog(home / "outbox", "r", {}) as log:
            log.scalars(step, {f"m{i}": float(i) for i in range(20)})
    size = max(file.stat().st_size for file in (home / "outbox").glob("*.ndjson"))
    monkeypatch.setattr("navi_pipeline.lib.warehouse.outbox._BATCH_BYTES", 3 * size + 10)
    warehouse, taken, left = Warehouse(home), [], []
    box = warehouse._segments
    fold = box._fold

    def folded(connection, files, report):
        fold(connection, files, report)
        taken.append(len(files))
        left.extend(connection.execute("from information_schema.tables where table_catalog = 'temp'").fetchall())

    monkeypatch.setattr(box, "_fold", folded)
    report = warehouse.ingest()
    assert sum(taken) == 12 and max(taken) == 3 and (report.segments, report.rows) == (12, 240)
    assert not left, "an ingested batch leaves the memory"
    monkeypatch.setattr("navi_pipeline.lib.warehouse.outbox._BATCH_BYTES", 1)
    with MetricLog(home / "outbox", "r", {}) as log:
        log.scalars(99, {"m": 1.0})
    assert warehouse.ingest().segments == 1  # a segment above the bound is a batch of its own


def test_ingest_lock_timeout_error_names_the_lock(home):
    warehouse = Warehouse(home)
    with warehouse._locked(), pytest.raises(RecordError, match=r"ingest\.lock"):
        Warehouse(home, lock_timeout=0.1).ingest()


def test_query_by_a_read_only_user_answers_from_the_snapshot(home, monkeypatch, capsys):
    with MetricLog(home / "outbox", "theirs", {}) as log:
        log.row("runs", {"status": "finished"})
    warehouse = Warehouse(home)
    warehouse.ingest()
    with MetricLog(home / "outbox", "waits", {}) as log:
        log.row("runs", {"status": "finished"})
    access = os.access
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
        run_query("select run_id from runs", as_csv=True, home=home)
        reported = capsys.readouterr()
        assert reported.out.split() == ["run_id", "theirs"]
        assert (
            "nothing is folded in: this user may not write to" in reported.err and "the answer is as of" in reported.err
        )
        with pytest.raises(RecordError, match="may not write"):
            warehouse.ingest()
    run_query("select count(*) as n from runs", as_csv=True, home=home)
    assert capsys.readouterr().out.split() == ["n", "2"]


@pytest.mark.parametrize("made", [True, False])
def test_warehouse_on_a_read_only_mount_is_queried(home, monkeypatch, made):
    with MetricLog(home / "outbox", "theirs", {}) as log:
        log.row("runs", {"status": "finished"})
    warehouse = Warehouse(home)
    warehouse.ingest()
    if not made:
        (warehouse.folder / "ingest.lock").unlink()
    opens, access = os.open, os.access

    def refused(path, flags, *rest, **how):
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(30, "Read-only file system", str(path))
        return opens(path, flags, *rest, **how)

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    assert "may not write" in warehouse.refresh().not_folded
    assert warehouse.query("select run_id from runs").values.tolist() == [["theirs"]]


def test_primary_keys_are_the_natural_keys(home):
    warehouse = Warehouse(home)
    rows = warehouse.query(
        "select table_name, constraint_column_names as key from duckdb_constraints() "
        "where constraint_type = 'PRIMARY KEY'"
    )
    found = {table: tuple(key) for table, key in zip(rows["table_name"], rows["key"], strict=True)}
    indexed = {table: key for table, key in NATURAL_KEYS.items() if table not in UNINDEXED_TABLES}
    assert {table: found.get(table) for table in NATURAL_KEYS} == indexed | dict.fromkeys(UNINDEXED_TABLES)


def test_temporary_files_of_dead_producers_are_swept_only_when_old(home):
    outbox = home / "outbox"
    outbox.mkdir(parents=True)
    for name, age in ((".old.1.tmp", 7200), (".new.1.tmp", 0)):
        (outbox / name).write_text("half")
        os.utime(outbox / name, (time.time() - age,) * 2)
    Warehouse(home).ingest()
    assert [file.name for file in outbox.glob(".*.tmp")] == [".new.1.tmp"]


def check_storm(home, storm, rows):
    """Every acknowledged row is there once, with its value."""
    warehouse = Warehouse(home)
    assert warehouse.ingest().quarantined == {} and not list(warehouse.quarantine.iterdir())
    answer = warehouse.query(
        "select run_id, count(*) as n, count(distinct step) as steps, min(step) as low, max(step) as high, "
        "sum(abs(value - step)) as wrong from metrics group by run_id order by run_id"
    )
    assert storm.acknowledged == dict.fromkeys(sorted(answer["run_id"]), rows)
    expected = [[run, rows, rows, 0, rows - 1, 0.0] for run in sorted(storm.acknowledged)]
    assert answer.values.tolist() == expected


@pytest.mark.slow
def test_kill_9_loses_and_duplicates_no_acknowledged_row(home):
    storm = run_storm(home, producers=2, rows=300, kills=3, seed=5)
    assert sum(storm.kills.values()) == 3 and len(storm.acknowledged) == 2
    check_storm(home, storm, 300)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_8_producers_of_10_000_rows_survive_20_kills(home):
    Warehouse(home).ingest()
    storm = run_storm(home, producers=8, rows=10_000, kills=20, seed=7)
    assert sum(storm.kills.values()) == 20 and min(storm.kills.values()) >= 4 and storm.questions > 10
    check_storm(home, storm, 10_000)
    Warehouse(home).rebuild()
    check_storm(home, storm, 10_000)


def segment(lines, **header):
    body = b"".join(json.dumps(row).encode() + b"\n" for row in lines)
    head = {
        "navi_segment": 1,
        "table": "metrics",
        "run_id": "other",
        "context": CONTEXT,
        "rows": len(lines),
        "sha256": hashlib.sha256(body).hexdigest(),
        "created_at": "2026-01-01T00:00:00Z",
    }
    return json.dumps(head | header).encode() + b"\n" + body


ROW = {"step": 1, "name": "a", "value": 1.0, "recorded_at": "2026-01-01T00:00:00Z"}
POISON = {
    "half a surrogate pair": segment([ROW | {"name": "x\ud800y"}]),
    "half a pair in extra": segment([ROW | {"extra": {"a": "\ud800"}}]),
    "half a pair in the header": segment([ROW], run_id="\ud800"),
    "infinitely many rows": segment([ROW], rows=float("inf")),
    "table is a list": segment([ROW], table=["metrics"]),
    "before the first year": segment([ROW], created_at="0001-01-01T00:00:00+14:00"),
    "nested too deep": b"[" * 200_000 + b"\n",
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("name", POISON)
def test_unreadable_segment_does_not_block_the_others(home, name):
    with log_of(home) as log:
        log.scalars(1, {"a": 0.25})
    bad, make = home / "outbox" / "000-bad.ndjson", POISON[name]
    bad.write_bytes(make) if isinstance(make, bytes) else make(bad)
    warehouse = Warehouse(home)
    assert list(warehouse.ingest().quarantined) == ["000-bad.ndjson"] and count(warehouse) == 1


def test_non_unicode_path_is_recorded_escaped(home):
    with log_of(home) as log:
        log.row(
            "scenes",
            {
                "name": "s",
                "source_hash": "a",
                "compile_hash": "b",
                "path": Path(os.fsdecode(b"/data/\xff.glb")),
                "b\udcff": 1,
            },
        )
    warehouse = Warehouse(home)
    assert warehouse.ingest().quarantined == {} and count(warehouse, "scenes") == 1
