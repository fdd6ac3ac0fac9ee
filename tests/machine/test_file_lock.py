"""Locks between processes: a check neither takes nor blocks a lock, and leaves no file behind."""

import fcntl
import os
import resource
import threading
from contextlib import ExitStack, contextmanager

import pytest

from navi_core.config import TrainConfig
from navi_core.errors import RecordError
from navi_core.machine.file_lock import is_locked, open_lock, wait_for_lock
from navi_core.record import RunDirectory, navi_home
from navi_pipeline.lib.studies import storage
from navi_pipeline.lib.studies.storage import study_folder
from navi_pipeline.lib.studies.trial_queue import TrialQueue
from navi_pipeline.lib.training.supervised import runs_in_use
from tests.pipeline.studies.small_studies import small_study


@contextmanager
def looked_at(lock):
    """Check whether a lock is held, as `is_locked` does, and keep the check open."""
    descriptor = os.open(lock, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def opened(partition):
    return RunDirectory.open(navi_home() / "runs", asset="trial", partition=partition, config=TrainConfig())


def test_a_lock_is_held_by_its_holder_alone(tmp_path):
    lock = tmp_path / "a.lock"
    assert not is_locked(lock)
    with wait_for_lock(lock):
        assert is_locked(lock)
    with looked_at(lock):
        assert not is_locked(lock)
    assert not is_locked(lock / "below a file")


def test_lock_file_mode_grants_at_most_group_write(tmp_path):
    modes = {}
    for umask in (0o002, 0o022, 0o000):
        before = os.umask(umask)
        try:
            with wait_for_lock(tmp_path / f"{umask}.lock"):
                modes[umask] = (tmp_path / f"{umask}.lock").stat().st_mode & 0o777
        finally:
            os.umask(before)
    assert modes == {0o002: 0o664, 0o022: 0o644, 0o000: 0o664}


def test_readable_lock_of_another_user_can_be_taken(tmp_path, monkeypatch):
    lock, opens = tmp_path / "theirs.lock", os.open

    def refused(path, flags, *mode):
        if flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(path))
        return opens(path, flags, *mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        with pytest.raises(PermissionError):
            open_lock(lock)
        lock.touch()
        with wait_for_lock(lock):
            assert is_locked(lock)
    assert not is_locked(lock)


def test_runs_in_use_are_filtered_by_prefix():
    with opened("a-1") as one, opened("a-2") as two, opened("b") as other:
        assert runs_in_use() == sorted(run.run_id for run in (one, two, other))
        assert runs_in_use(prefix="trial-a-") == sorted(run.run_id for run in (one, two))
    assert runs_in_use() == []


def test_unreadable_lock_is_not_reported_as_free(tmp_path):
    lock = tmp_path / "a.lock"
    with wait_for_lock(lock):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                is_locked(lock)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert is_locked(lock)


def test_run_can_be_opened_during_a_lock_check(monkeypatch):
    monkeypatch.setattr("navi_core.machine.file_lock._PATIENCE", 30.0)
    opened("a").close()
    (lock,) = (navi_home() / "runs" / ".locks").iterdir()
    with ExitStack() as looking:
        looking.enter_context(looked_at(lock))
        leaving = threading.Timer(0.2, looking.close)
        leaving.start()
        with opened("a") as run:
            assert runs_in_use() == [run.run_id]
        leaving.join()


def test_failed_journal_repair_releases_the_lock(monkeypatch):
    def broken(journal):
        raise RecordError("cannot mend the journal")

    monkeypatch.setattr(storage, "repair_journal", broken)
    with pytest.raises(RecordError, match="cannot mend"):
        TrialQueue(small_study())
    lock = study_folder("small") / "journal.lock"
    assert lock.exists() and not is_locked(lock)
