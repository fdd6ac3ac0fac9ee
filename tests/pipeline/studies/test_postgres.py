"""Studies and Dagster's runs on a PostgreSQL server, started by the test and gone with it."""

import os
import signal
import time
from pathlib import Path

import dagster as dg
import pytest

from navi_core.errors import ConfigError, RecordError
from navi_pipeline.lib.studies.results import audit_faults, trial_row
from navi_pipeline.lib.studies.trial_queue import TrialQueue
from tests.pipeline.studies.small_studies import complete_by, forked_worker, small_study


@pytest.mark.slow
def test_postgres_study_loses_no_trial_to_a_killed_worker(postgres_server, database, monkeypatch):
    monkeypatch.setenv("NAVI_STUDY_STORAGE", f"postgresql+psycopg://navi@/{database}?host={postgres_server}")
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
def test_dagster_keeps_its_runs_on_postgres(postgres_server, database, tmp_path):
    pytest.importorskip("dagster_postgres", reason="dagster-postgres is not installed (pip install -e '.[postgres]')")
    root = Path(__file__).resolve().parents[3]
    settings = (root / "dagster_home" / "dagster.yaml").read_text()
    settings += (root / "dagster_home" / "postgres.yaml").read_text()
    (tmp_path / "dagster.yaml").write_text(settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NAVI_DAGSTER_DATABASE", f"postgresql+psycopg2://navi@/{database}?host={postgres_server}")

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
