"""Run launcher: a run without its process fails with a reason and frees its slot."""

import json
import logging
import os
import platform
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.errors import DagsterUserCodeProcessError, DagsterUserCodeUnreachableError
from dagster._core.events import DagsterEvent
from dagster._core.launcher.base import LaunchRunContext
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._daemon.monitoring.run_monitoring import monitor_started_run
from dagster.components.core.component_tree import ComponentTreeException
from sqlalchemy.exc import OperationalError

from navi_core.errors import RunError
from navi_core.machine.file_lock import hold_lock, is_locked
from navi_pipeline.lib import orchestration
from navi_pipeline.lib.orchestration import FLOW_TAG, POOL, PROCESS_TAG, open_instance
from navi_pipeline.lib.run_launcher import run_job
from navi_pipeline.lib.training.supervised import process_mark

SETTINGS = Path(__file__).resolve().parents[3] / "dagster_home" / "dagster.yaml"
SERVER = {GRPC_INFO_TAG: json.dumps({"host": "localhost", "socket": "/tmp/of-a-code-server"})}
SOCKET = SERVER | {PROCESS_TAG: platform.node()}
PORT = {PROCESS_TAG: platform.node()} | {GRPC_INFO_TAG: json.dumps({"host": "trainer", "port": 4266})}


@pytest.fixture(scope="module")
def instance(tmp_path_factory):
    home = tmp_path_factory.mktemp("dagster_home")
    shutil.copy(SETTINGS, home)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


@dg.job
def nothing():
    pass


def begun(instance, tags, pid, seconds_ago=0.0):
    """Create a run that a process has started."""
    run = instance.create_run_for_job(nothing, tags=tags, status=dg.DagsterRunStatus.STARTING)
    event = DagsterEvent(dg.DagsterEventType.RUN_START.value, job_name="nothing", pid=pid)
    instance.report_dagster_event(event, run.run_id, timestamp=time.time() - seconds_ago)
    return run


def monitored(instance, tags, pid):
    """Return status and log messages of a run after the daemon's check."""
    run = begun(instance, tags, pid)
    monitor_started_run(instance, None, instance.get_run_record_by_id(run.run_id), logging.getLogger("test"))
    return instance.get_run_by_id(run.run_id).status, [event.message for event in instance.all_logs(run.run_id)]


def own(pid):
    return {PROCESS_TAG: process_mark(pid)}


def earlier(pid):
    """Tags of a command whose process id, if a process has it, was given to another since."""
    return {PROCESS_TAG: f"{platform.node()} {pid} 1"}


@pytest.fixture
def gone():
    """Process id of an ended process."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("tags", [earlier, lambda _: SOCKET], ids=["command", "worker"])
def test_run_without_its_process_fails_with_a_reason(instance, gone, tags):
    status, printed = monitored(instance, tags(gone), gone)
    assert status == dg.DagsterRunStatus.FAILURE and f"its process {gone} is gone" in printed[-1]


def test_run_of_a_zombie_process_fails(instance):
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as command:
        tags = own(command.pid)
        command.stdin.close()
        os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
        assert monitored(instance, tags, command.pid)[0] == dg.DagsterRunStatus.FAILURE


def test_running_and_remote_runs_are_left_alone(instance, gone):
    at_work = dg.DagsterRunStatus.STARTED
    assert monitored(instance, own(os.getpid()), os.getpid())[0] == at_work
    assert monitored(instance, SOCKET, os.getpid())[0] == at_work
    for tags in ({}, {PROCESS_TAG: "another 1 1"}, PORT, SERVER, SERVER | {PROCESS_TAG: "another"}):
        assert monitored(instance, tags, gone)[0] == at_work


def test_launched_run_is_tagged_with_the_host_not_the_old_process_and_of_no_flow(instance, monkeypatch):
    run = instance.create_run_for_job(nothing, tags=SERVER | own(os.getpid()) | {FLOW_TAG: "demo"})
    monkeypatch.setattr(DefaultRunLauncher, "launch_run", lambda self, context: None)
    instance.run_launcher.launch_run(LaunchRunContext(run, None))
    tags = instance.get_run_by_id(run.run_id).tags
    assert (tags[PROCESS_TAG], tags[FLOW_TAG]) == (platform.node(), "")


@pytest.mark.parametrize(("devices", "limit"), [("", 1), ("0,1,2,3,4,5,6,7", 8)])
def test_pool_of_trainings_is_as_large_as_the_number_of_devices(instance, monkeypatch, devices, limit):
    monkeypatch.setenv("NAVI_DEVICES", devices)
    monkeypatch.setattr(DefaultRunLauncher, "launch_run", lambda self, context: None)
    instance.run_launcher.launch_run(LaunchRunContext(instance.create_run_for_job(nothing), None))
    assert [(pool.name, pool.limit) for pool in instance.event_log_storage.get_pool_limits()] == [(POOL, limit)]


def test_process_of_another_user_counts_as_running_and_is_kept(instance, gone, monkeypatch):
    monkeypatch.setattr(os, "kill", refused)
    for tags in (earlier(gone), SOCKET):
        assert monitored(instance, tags, gone)[0] == dg.DagsterRunStatus.STARTED
    run = begun(instance, earlier(gone), gone)
    with pytest.raises(RunError, match=f"process {gone}, which works on run {run.run_id}, is another user's"):
        instance.run_launcher.terminate(run.run_id)
    assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.STARTED
    # A code server may end the runs that it started, for any user.
    monkeypatch.setattr(DefaultRunLauncher, "terminate", lambda launcher, run_id: True)
    assert instance.run_launcher.terminate(begun(instance, SOCKET, gone).run_id)


def refused(pid, number):
    raise PermissionError


def test_reused_process_id_does_not_count_as_the_run(instance):
    with subprocess.Popen(["sleep", "60"]) as other:
        assert monitored(instance, SOCKET, other.pid)[0] == dg.DagsterRunStatus.FAILURE
        # A command is identified by its start time, so another Python process is not interrupted.
        assert monitored(instance, earlier(os.getpid()), os.getpid())[0] == dg.DagsterRunStatus.FAILURE
        assert not instance.run_launcher.terminate(begun(instance, earlier(other.pid), other.pid).run_id)
        assert other.poll() is None
        other.kill()


def test_terminate_interrupts_the_command_of_a_run(instance, gone):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stderr=subprocess.DEVNULL) as command:
        run = begun(instance, own(command.pid), command.pid)
        assert instance.run_launcher.terminate(run.run_id)
        assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.CANCELING
        assert command.wait(timeout=30) == -signal.SIGINT
    assert not instance.run_launcher.terminate(begun(instance, earlier(gone), gone).run_id)
    assert not instance.run_launcher.terminate(run_id="of nobody")


@pytest.mark.parametrize(
    "answer",
    [
        DagsterUserCodeUnreachableError("gone"),
        # `dagster dev` has a second server between launcher and code server, which answers instead.
        DagsterUserCodeProcessError("gone", user_code_process_error_infos=[]),
    ],
    ids=["nobody", "another"],
)
def test_orphaned_worker_is_ended_and_a_reused_process_id_is_not(instance, monkeypatch, answer):
    def unheard(launcher, run_id):
        instance.report_run_canceling(instance.get_run_by_id(run_id))
        raise answer

    monkeypatch.setattr(DefaultRunLauncher, "terminate", unheard)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stderr=subprocess.DEVNULL) as worker:
        before = begun(instance, SOCKET, worker.pid, seconds_ago=3600)
        with pytest.raises(type(answer)):
            instance.run_launcher.terminate(before.run_id)
        assert worker.poll() is None
        run = begun(instance, SOCKET, worker.pid)
        assert instance.run_launcher.terminate(run.run_id) and worker.wait(timeout=30) == -signal.SIGINT
    assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.CANCELING


def test_terminate_returns_false_for_an_unknown_run(instance, monkeypatch):
    monkeypatch.setattr(DefaultRunLauncher, "terminate", lambda launcher, run_id: False)
    before = begun(instance, SOCKET, os.getpid(), seconds_ago=10**6)
    assert not instance.run_launcher.terminate(before.run_id)


def test_terminate_cancels_inner_runs(instance, monkeypatch):
    reported = []
    monkeypatch.setattr(DefaultRunLauncher, "terminate", lambda self, run_id: reported.append(run_id) or True)
    outer, inner = begun(instance, SOCKET, os.getpid()), begun(instance, own(os.getpid()), os.getpid())
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as command:
        another = begun(instance, own(command.pid), command.pid)
        launched = begun(instance, SOCKET, os.getpid())
        assert instance.run_launcher.terminate(outer.run_id) and reported == [outer.run_id]
        command.kill()
    states = [instance.get_run_by_id(run.run_id).status for run in (inner, another, launched)]
    assert states == [dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTED]


@dg.job(executor_def=dg.in_process_executor)
def interrupted():
    @dg.op
    def wait():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)

    wait()


def test_ctrl_c_cancels_a_run_and_is_no_failure_of_its_step(instance):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_job(instance, interrupted)
    finally:
        signal.signal(signal.SIGINT, before)
    assert instance.get_runs(limit=1)[0].status == dg.DagsterRunStatus.CANCELED


def test_storage_that_fails_is_named_with_the_next_step(tmp_path):
    shutil.copy(SETTINGS, tmp_path)
    words = f"Dagster's storage of {tmp_path} failed: disk I/O error; next: see to its disk"
    with pytest.raises(RunError, match=words), open_instance(tmp_path):
        raise OperationalError("insert", {}, sqlite3.OperationalError("disk I/O error"))
    with pytest.raises(RunError, match=words), open_instance(tmp_path):  # as Dagster does where it loads definitions
        raise ComponentTreeException("a component") from OperationalError(
            "select", {}, sqlite3.OperationalError("disk I/O error")
        )
    with pytest.raises(ValueError, match="another"), open_instance(tmp_path):
        raise ValueError("another")


@pytest.mark.parametrize("tables", [(), ("event_logs", "asset_keys")])
def test_storage_whose_creation_was_killed_is_created_again(tmp_path, tables):
    shutil.copy(SETTINGS, tmp_path)
    index = tmp_path / "history" / "runs" / "index.db"
    index.parent.mkdir(parents=True)
    with closing(sqlite3.connect(index)) as connection:
        for table in tables:
            connection.execute(f"create table {table} (id integer)")
    with open_instance(tmp_path) as instance:
        instance.add_dynamic_partitions("nights", ["one"])
    with open_instance(tmp_path) as instance:
        assert instance.get_dynamic_partitions("nights") == ["one"]


def test_storage_is_created_by_one_process_at_a_time(tmp_path, monkeypatch):
    """Two processes that create Dagster's tables at once leave a version table that Dagster refuses from then on."""
    shutil.copy(SETTINGS, tmp_path)
    monkeypatch.setattr(orchestration, "_CREATION", 0.2)
    opened = []
    with hold_lock(tmp_path / "storage.lock", "the storage"):
        start = time.monotonic()
        with open_instance(tmp_path) as instance:  # of another process that hangs: not for ever
            opened.append(time.monotonic() - start)
            assert instance.get_runs_count() == 0
    assert opened[0] >= 0.2 and not is_locked(tmp_path / "storage.lock")
