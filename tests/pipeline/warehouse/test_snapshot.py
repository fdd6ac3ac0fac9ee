"""Snapshot for readers: queries work after a notebook has opened it or written to it."""

import os
import signal
import stat
import subprocess
import sys

import duckdb
import pytest

from navi_core.errors import RecordError
from navi_core.record import MetricLog
from navi_pipeline.lib.warehouse import warehouse as module
from navi_pipeline.lib.warehouse.database import remedy
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from tests.pipeline.empty_warehouse import start_warehouse

WRITER = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1])
connection.execute("create table mine as select 1 as a")
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def warehouse(tmp_path):
    made = Warehouse(start_warehouse(tmp_path / "home"))
    log_a_row(made, 0)
    made.ingest()
    return made


@pytest.fixture
def notebook(warehouse):
    """A process that opened the readers' copy for writing, and wrote."""
    warehouse.snapshot.chmod(0o644)
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(warehouse.snapshot)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "open\n"
    yield process
    process.kill()
    process.communicate()


def log_a_row(warehouse, step):
    with MetricLog(warehouse.outbox, "run", {"seed": 0}) as log:
        log.scalars(step, {"a": 1.0})


def rows(warehouse):
    return int(warehouse.query("select count(*) as n from metrics")["n"][0])


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def wal(warehouse):
    return warehouse.snapshot.with_name("read.duckdb.wal")


def test_query_works_after_a_writing_notebook_is_killed(warehouse, notebook):
    log_a_row(warehouse, 1)
    warehouse.ingest()
    kill(notebook)
    assert rows(warehouse) == 2 and not wal(warehouse).exists()


def test_query_removes_and_names_a_leftover_write_ahead_log(warehouse, notebook, caplog):
    kill(notebook)
    assert wal(warehouse).exists()
    assert rows(warehouse) == 1 and not wal(warehouse).exists()
    assert "mine" not in warehouse.relations()[1] and str(wal(warehouse)) in caplog.text


def test_query_does_not_wait_for_a_notebook_with_the_snapshot_open(warehouse, notebook):
    warehouse.query("select 1")
    log_a_row(warehouse, 1)
    warehouse.ingest()
    assert rows(warehouse) == 2


def test_query_names_a_write_ahead_log_it_cannot_remove(warehouse, notebook, monkeypatch):
    kill(notebook)
    monkeypatch.setattr(module, "publish", lambda database, snapshot: None)
    with pytest.raises(RecordError, match=r"read\.duckdb\.wal"):
        warehouse.query("select 1")


def test_snapshot_file_is_read_only(warehouse):
    log_a_row(warehouse, 1)
    warehouse.ingest()
    assert stat.S_IMODE(warehouse.snapshot.stat().st_mode) & 0o222 == 0
    assert stat.S_IMODE(warehouse.database.stat().st_mode) & 0o200


def test_ingest_discards_tables_written_by_a_notebook(warehouse, notebook):
    notebook.communicate("")
    assert "mine" in warehouse.relations()[1]
    warehouse.ingest()
    assert "mine" not in warehouse.relations()[1]


def test_ingest_without_new_rows_keeps_the_snapshot(warehouse):
    before = warehouse.snapshot.stat().st_ino
    warehouse.ingest()
    assert warehouse.snapshot.stat().st_ino == before


def test_ingest_publishes_rows_while_this_program_has_the_database_open(warehouse):
    with duckdb.connect(str(warehouse.database)):
        log_a_row(warehouse, 1)
        warehouse.ingest()
        assert rows(warehouse) == 2


def test_publish_ignores_the_spill_folder_of_a_large_query(warehouse):
    """DuckDB spills large queries into `read.duckdb.tmp` beside the file."""
    (warehouse.folder / "read.duckdb.tmp").mkdir()
    log_a_row(warehouse, 1)
    warehouse.ingest()
    assert rows(warehouse) == 2


def test_recorded_times_are_utc_in_any_time_zone(warehouse, monkeypatch):
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        fresh = Warehouse(warehouse.folder.parent)
        fresh.rebuild()
        frame = fresh.query(
            "select now()::timestamp as now, (select max(applied_at) from migrations) as applied, "
            "(select max(recorded_at) from metrics) as recorded"
        )
    finally:
        monkeypatch.undo()
        time.tzset()
    now, applied, recorded = (frame[name][0] for name in ("now", "applied", "recorded"))
    assert abs((now - recorded).total_seconds()) < 3600 and abs((now - applied).total_seconds()) < 3600
    assert os.environ.get("TZ") != "Asia/Tokyo"


def test_ingest_names_the_process_that_has_the_database_open(warehouse):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(warehouse.database)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "open\n"
    log_a_row(warehouse, 1)
    try:
        with pytest.raises(RecordError, match=f"close process {process.pid}") as raised:
            warehouse.ingest()
    finally:
        process.communicate("")
    assert "--rebuild" not in str(raised.value)
    warehouse.ingest()
    assert rows(warehouse) == 2


@pytest.mark.parametrize(
    ("printed", "way"),
    [
        ('IO Error: Could not write file "/a/navi.duckdb": No space left on device', "free space"),
        ('IO Error: Cannot open file "/a/navi.duckdb": Permission denied', "let this user write"),
        ('IO Error: The file "/a/navi.duckdb" exists, but it is not a valid DuckDB database file!', "rebuild"),
    ],
)
def test_remedy_matches_the_database_error(printed, way):
    assert way in remedy(RuntimeError(printed), "rebuild")
