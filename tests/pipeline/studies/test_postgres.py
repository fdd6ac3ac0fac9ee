"""Studies and Dagster's runs on a PostgreSQL server, started by the test and gone with it."""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import dagster as dg
import pytest

from navi_core.errors import ConfigError, RecordError
from navi_pipeline.lib.studies.results import audit_faults, trial_row
from navi_pipeline.lib.studies.trial_queue import TrialQueue
from tests.pipeline.studies.small_studies import complete_by, forked_worker, small_study


def binaries() -> Path:
    """Return the folder of PostgreSQL's programs, or skip."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    found = shutil.which("initdb")
    if found is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    return Path(found).parent


def server_user() -> str | None:
    """Return the user of the server, which refuses to run as root."""
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


@pytest.fixture(scope="module")
def server():
    """A server that listens on a socket in a folder of its own alone; the folder's path."""
    programs, user = binaries(), server_user()
    # A path to a socket has at most 107 bytes, and the server's user must be allowed to walk it.
    folder = Path(tempfile.mkdtemp(prefix="navi-pg-", dir="/tmp"))
    given = {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    if user is not None:
        shutil.chown(folder, user)
    data = folder / "data"
    made = subprocess.run(
        [programs / "initdb", "-D", data, "-U", "navi", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"],
        capture_output=True, text=True, cwd=folder, timeout=120, **given,
    )  # fmt: skip
    if made.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"initdb fails here: {made.stderr.strip().splitlines()[-1]}")
    library = ctypes.CDLL(None)
    process = subprocess.Popen(
        [programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off",
         "-c", "shared_buffers=16MB", "-c", "max_connections=40"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, **given,
        # Should the test be killed, SIGQUIT ends the server at once.
        preexec_fn=lambda: library.prctl(1, signal.SIGQUIT),
    )  # fmt: skip
    try:
        ready = [programs / "pg_isready", "-q", "-h", folder, "-U", "navi", "-d", "postgres"]
        deadline = time.monotonic() + 60.0
        while subprocess.run(ready, timeout=30).returncode:
            assert process.poll() is None and time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.1)
        yield folder
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(server):
    """A new database; its name."""
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed (pip install -e '.[postgres]')")
    name = f"navi_{time.time_ns()}"
    with psycopg.connect(host=str(server), user="navi", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return name


@pytest.mark.slow
def test_postgres_study_loses_no_trial_to_a_killed_worker(server, database, monkeypatch):
    monkeypatch.setenv("NAVI_STUDY_STORAGE", f"postgresql+psycopg://navi@/{database}?host={server}")
    config = small_study("shared", trials=6, workers=2)
    TrialQueue(config).close()
    workers = [forked_worker(config, seconds=0.1) for _ in range(2)]
    time.sleep(2.0)
    os.kill(workers[0], signal.SIGKILL)
    for worker in workers:
        os.waitpid(worker, 0)
    with TrialQueue(config) as queue:
        complete_by(queue)
        assert type(queue.storage).__name__ == "RDBStorage" and not (queue.folder / "journal.log").exists()
        assert audit_faults(config, [trial_row(queue, trial) for trial in queue.trials()]) == []


@pytest.mark.slow
def test_dagster_keeps_its_runs_on_postgres(server, database, tmp_path):
    pytest.importorskip("dagster_postgres", reason="dagster-postgres is not installed (pip install -e '.[postgres]')")
    root = Path(__file__).resolve().parents[3]
    settings = (root / "dagster_home" / "dagster.yaml").read_text()
    settings += (root / "dagster_home" / "postgres.yaml").read_text()
    (tmp_path / "dagster.yaml").write_text(settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NAVI_DAGSTER_DATABASE", f"postgresql+psycopg2://navi@/{database}?host={server}")

        @dg.asset
        def counted() -> dg.MaterializeResult:
            return dg.MaterializeResult(metadata={"n": 1})

        for _ in range(2):
            with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
                assert type(instance.run_storage).__name__ == "PostgresRunStorage"
                assert dg.materialize([counted], instance=instance).success
        with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
            assert instance.get_runs_count() == 2
            assert instance.get_latest_materialization_event(counted.key) is not None


def test_storage_with_an_invalid_address_is_refused(monkeypatch):
    monkeypatch.setenv("NAVI_STUDY_STORAGE", "postgres at home")
    with pytest.raises(ConfigError, match="an SQL address such as"):
        TrialQueue(small_study())


def test_storage_of_an_unreachable_server_raises_record_error(monkeypatch):
    pytest.importorskip("psycopg", reason="psycopg is not installed (pip install -e '.[postgres]')")
    monkeypatch.setenv("NAVI_STUDY_STORAGE", "postgresql+psycopg://navi@127.0.0.1:9/navi")
    with pytest.raises(RecordError, match="cannot be opened"):
        TrialQueue(small_study())
