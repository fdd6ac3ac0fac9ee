"""Runs of a command in its own process: known to the UI, executed again, marked as failed when killed."""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster_graphql.test.utils import execute_dagster_graphql

from navi_core.errors import RunError
from navi_pipeline.definitions import defs
from navi_pipeline.lib.orchestration import PROCESS_TAG
from navi_pipeline.lib.run_launcher import end_dead_runs, require_success, run_job
from navi_pipeline.lib.training.supervised import process_mark

ROOT = Path(__file__).resolve().parents[3]
JOBS_PAGE = """query { repositoryOrError(
    repositorySelector: {repositoryLocationName: "navi", repositoryName: "__repository__"}) {
  ... on Repository { pipelines { name runs(limit: 9) { runId status repositoryOrigin { repositoryName } } } } } }"""
OF_THE_REPOSITORY = """query {
  runsOrError(filter: {tags: [{key: ".dagster/repository", value: "__repository__@navi"}]}) {
  ... on Runs { results { runId } } } }"""
EXECUTE_AGAIN = """mutation($run: String!) { launchRunReexecution(
    reexecutionParams: {parentRunId: $run, strategy: ALL_STEPS}) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""


@pytest.fixture
def instance(tmp_path, monkeypatch):
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


def test_a_run_of_a_command_belongs_to_its_job_and_is_executed_again(instance):
    """Fails on an upgrade of Dagster that changes what makes a run known to the UI."""
    done = run_job(instance, defs().resolve_job_def("recordings_job"), tags={"navi/flow": "test"})
    require_success(done)
    tags = done.dagster_run.tags
    assert tags[PROCESS_TAG] == process_mark(os.getpid()) and tags["navi/host"] == platform.node()
    assert re.fullmatch("[0-9a-f]{12}|unknown", tags["navi/revision"]) and tags["navi/dirty"] in ("true", "false")
    with WorkspaceProcessContext(instance, WorkspaceFileTarget([str(ROOT / "workspace.yaml")])) as workspace:
        ask = workspace.create_request_context()
        jobs = execute_dagster_graphql(ask, JOBS_PAGE).data["repositoryOrError"]["pipelines"]
        of_the_job = next(job["runs"] for job in jobs if job["name"] == "recordings_job")
        origin = {"repositoryName": "__repository__"}
        assert of_the_job == [{"runId": done.run_id, "status": "SUCCESS", "repositoryOrigin": origin}]
        known = execute_dagster_graphql(ask, OF_THE_REPOSITORY).data["runsOrError"]["results"]
        assert known == [{"runId": done.run_id}]
        answer = execute_dagster_graphql(ask, EXECUTE_AGAIN, {"run": done.run_id}).data["launchRunReexecution"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        again = answer["run"]["runId"]
        instance.launch_run(again, ask)
        deadline = time.monotonic() + 120
        while not (run := instance.get_run_by_id(again)).is_finished and time.monotonic() < deadline:
            time.sleep(0.3)
    assert run.status == dg.DagsterRunStatus.SUCCESS and run.parent_run_id == done.run_id


@pytest.mark.slow
def test_a_run_takes_a_selection_of_assets_and_a_partition(instance):
    instance.add_dynamic_partitions("scene", ["a"])
    everything = defs().resolve_implicit_global_asset_job_def()
    done = run_job(instance, everything, assets=["recorded_demonstrations"])
    require_success(done)
    made = done.get_asset_materialization_events()
    assert [event.asset_key.to_user_string() for event in made] == ["recorded_demonstrations"]
    failed = run_job(instance, everything, assets=["compiled_scene"], partition="a")
    assert failed.dagster_run.tags["dagster/partition"] == "a"
    with pytest.raises(RunError, match=r"compiled_scene failed: .*scene_sources"):
        require_success(failed)


@pytest.mark.slow
def test_the_next_command_marks_a_killed_run_as_failed(instance):
    code = """if True:
        import os, time, dagster as dg
        from navi_pipeline.lib.run_launcher import run_job
        @dg.op
        def sleeping():
            print("begun", flush=True)
            time.sleep(60)
        @dg.job(executor_def=dg.in_process_executor)
        def slow():
            sleeping()
        with dg.DagsterInstance.from_config(os.environ["DAGSTER_HOME"]) as instance:
            run_job(instance, slow)
    """
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as command:
            assert command.stdout.readline() == "begun\n"
            run = instance.get_runs()[0]
            end_dead_runs(instance)
            assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.STARTED
            command.send_signal(signal.SIGKILL)
    states = [run.status for run in instance.get_runs()]
    assert states == [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.FAILURE], "the second has marked the first"
    end_dead_runs(instance)
    assert {run.status for run in instance.get_runs()} == {dg.DagsterRunStatus.FAILURE}
