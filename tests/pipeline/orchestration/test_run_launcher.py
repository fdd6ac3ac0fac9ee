"""A run whose process is gone fails by name and gives its place back, whoever has begun it."""

import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.errors import DagsterUserCodeProcessError, DagsterUserCodeUnreachableError
from dagster._core.events import DagsterEvent
from dagster._core.launcher.base import LaunchRunContext
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._daemon.monitoring.run_monitoring import monitor_started_run

from navi_core.errors import RunError
from navi_pipeline.lib.orchestration import PROCESS_TAG, process_mark

SETTINGS = Path(__file__).resolve().parents[3] / "dagster_home" / "dagster.yaml"
HERE = {PROCESS_TAG: f"{platform.node()} 1"}
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
    """A run that a process has begun."""
    run = instance.create_run_for_job(nothing, tags=tags, status=dg.DagsterRunStatus.STARTING)
    event = DagsterEvent(dg.DagsterEventType.RUN_START.value, job_name="nothing", pid=pid)
    instance.report_dagster_event(event, run.run_id, timestamp=time.time() - seconds_ago)
    return run


def monitored(instance, tags, pid):
    """What a run is, and what was said of it, after the daemon has looked at it."""
    run = begun(instance, tags, pid)
    monitor_started_run(instance, None, instance.get_run_record_by_id(run.run_id), logging.getLogger("test"))
    return instance.get_run_by_id(run.run_id).status, [event.message for event in instance.all_logs(run.run_id)]


def own(pid):
    return {PROCESS_TAG: process_mark(pid)}


@pytest.fixture
def gone():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("tags", [HERE, SOCKET], ids=["command", "worker"])
def test_run_without_its_process_fails_with_a_reason(instance, gone, tags):
    status, said = monitored(instance, tags, gone)
    assert status == dg.DagsterRunStatus.FAILURE and f"its process {gone} is gone" in said[-1]


def test_a_process_that_has_ended_and_is_not_waited_for_is_gone(instance):
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as command:
        tags = own(command.pid)
        command.stdin.close()
        os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
        assert monitored(instance, tags, command.pid)[0] == dg.DagsterRunStatus.FAILURE


def test_a_run_at_work_and_one_of_elsewhere_are_left_alone(instance, gone):
    at_work = dg.DagsterRunStatus.STARTED
    assert monitored(instance, own(os.getpid()), os.getpid())[0] == at_work
    assert monitored(instance, SOCKET, os.getpid())[0] == at_work
    for tags in ({}, {PROCESS_TAG: "another 1"}, PORT, SERVER, SERVER | {PROCESS_TAG: "another"}):
        assert monitored(instance, tags, gone)[0] == at_work


def test_a_run_that_is_launched_bears_the_machine_not_the_process_of_a_commands_run_that_it_repeats(
    instance, monkeypatch
):
    run = instance.create_run_for_job(nothing, tags=SERVER | own(os.getpid()), status=dg.DagsterRunStatus.STARTING)
    monkeypatch.setattr(DefaultRunLauncher, "launch_run", lambda self, context: None)
    instance.run_launcher.launch_run(LaunchRunContext(run, None))
    assert instance.get_run_by_id(run.run_id).tags[PROCESS_TAG] == platform.node()


def test_a_process_of_another_user_is_at_work_even_where_proc_hides_it_and_is_not_ended(instance, gone, monkeypatch):
    monkeypatch.setattr(os, "kill", refused)
    for tags in (HERE, SOCKET):
        assert monitored(instance, tags, gone)[0] == dg.DagsterRunStatus.STARTED
    run = begun(instance, HERE, gone)
    with pytest.raises(RunError, match=f"process {gone}, which works on run {run.run_id}, is another user's"):
        instance.run_launcher.terminate(run.run_id)
    assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.STARTED
    # A code server may end what it began, whoever asks.
    monkeypatch.setattr(DefaultRunLauncher, "terminate", lambda launcher, run_id: True)
    assert instance.run_launcher.terminate(begun(instance, SOCKET, gone).run_id)


def refused(pid, number):
    raise PermissionError


def test_a_number_that_is_another_programs_by_now_is_no_run_at_work(instance):
    with subprocess.Popen(["sleep", "60"]) as other:
        assert monitored(instance, SOCKET, other.pid)[0] == dg.DagsterRunStatus.FAILURE
        # Of a command that is known by when it began, another Python is told apart, too: nobody interrupts it.
        assert monitored(instance, HERE, os.getpid())[0] == dg.DagsterRunStatus.FAILURE
        assert not instance.run_launcher.terminate(begun(instance, HERE, other.pid).run_id)
        assert other.poll() is None
        other.kill()


def test_a_run_of_a_command_is_ended_as_ctrl_c_would(instance, gone):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stderr=subprocess.DEVNULL) as command:
        run = begun(instance, own(command.pid), command.pid)
        assert instance.run_launcher.terminate(run.run_id)
        assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.CANCELING
        assert command.wait(timeout=30) == -signal.SIGINT
    assert not instance.run_launcher.terminate(begun(instance, HERE, gone).run_id)
    assert not instance.run_launcher.terminate(run_id="of nobody")


@pytest.mark.parametrize(
    "answer",
    [
        DagsterUserCodeUnreachableError("gone"),
        # Between the launcher and the code server of `dagster dev` is another, which answers for it.
        DagsterUserCodeProcessError("gone", user_code_process_error_infos=[]),
    ],
    ids=["nobody", "another"],
)
def test_a_worker_that_has_lost_its_code_server_is_ended_and_another_process_of_its_number_is_not(
    instance, monkeypatch, answer
):
    def unheard(launcher, run_id):
        instance.report_run_canceling(instance.get_run_by_id(run_id))
        raise answer

    monkeypatch.setattr(DefaultRunLauncher, "terminate", unheard)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stderr=subprocess.DEVNULL) as worker:
        earlier = begun(instance, SOCKET, worker.pid, seconds_ago=3600)
        with pytest.raises(type(answer)):
            instance.run_launcher.terminate(earlier.run_id)
        assert worker.poll() is None
        run = begun(instance, SOCKET, worker.pid)
        assert instance.run_launcher.terminate(run.run_id) and worker.wait(timeout=30) == -signal.SIGINT
    assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.CANCELING


def test_a_code_server_that_does_not_know_a_run_tells_so(instance, monkeypatch):
    monkeypatch.setattr(DefaultRunLauncher, "terminate", lambda launcher, run_id: False)
    earlier = begun(instance, SOCKET, os.getpid(), seconds_ago=10**6)
    assert not instance.run_launcher.terminate(earlier.run_id)


def test_what_a_run_makes_is_cancelled_with_it(instance, monkeypatch):
    told = []
    monkeypatch.setattr(DefaultRunLauncher, "terminate", lambda self, run_id: told.append(run_id) or True)
    outer, inner = begun(instance, SOCKET, os.getpid()), begun(instance, own(os.getpid()), os.getpid())
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as command:
        another = begun(instance, own(command.pid), command.pid)
        launched = begun(instance, SOCKET, os.getpid())
        assert instance.run_launcher.terminate(outer.run_id) and told == [outer.run_id]
        command.kill()
    states = [instance.get_run_by_id(run.run_id).status for run in (inner, another, launched)]
    assert states == [dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTED]
