"""Commands with a Dagster home: each launches the job of its asset, and prints what it prints without one."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.tags import GRPC_INFO_TAG
from typer.testing import CliRunner

from navi_core.cli.main import build_app
from navi_core.errors import ConfigError
from navi_core.models import Registry
from navi_core.record import navi_home
from navi_pipeline.cli.launch import Target, launch
from navi_pipeline.definitions import defs
from navi_pipeline.lib.orchestration import PROCESS_TAG
from navi_pipeline.lib.run_launcher import end_dead_runs, run_job
from navi_pipeline.lib.studies.catalogue import find_study
from navi_pipeline.lib.studies.trial_queue import TrialQueue
from navi_pipeline.lib.training.supervised import process_mark
from tests.evaluate.conftest import boxes_scene
from tests.evaluate.test_promotion_and_records import CIRCLE, CRASH, HOVER, flying
from tests.pipeline.studies.small_studies import complete_by

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def instance(tmp_path, monkeypatch):
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        yield instance


def navi(*words):
    done = CliRunner().invoke(build_app(), [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_study_of_a_command_is_a_run_with_materializations_newer_than_its_start(instance, monkeypatch):
    with TrialQueue(find_study("quick")) as queue:
        complete_by(queue)
    began = time.time()
    in_a_run = navi("study", "run", "quick")
    (run,) = instance.get_runs()
    assert (run.job_name, run.status) == ("study_job", dg.DagsterRunStatus.SUCCESS)
    for asset, partitions in {"study": {"quick"}, "trial": {"quick-0000", "quick-0001"}}.items():
        made = instance.fetch_materializations(dg.AssetKey(asset), limit=9).records
        assert {record.partition_key for record in made} == partitions and min(r.timestamp for r in made) > began
    monkeypatch.setenv("DAGSTER_HOME", "/nowhere")
    changing = {"recorded_at", "updated_at"}
    assert {**navi("study", "run", "quick"), **dict.fromkeys(changing)} == {**in_a_run, **dict.fromkeys(changing)}


@pytest.mark.slow
def test_an_evaluation_of_a_command_is_a_partition_and_prints_the_same(instance, monkeypatch):
    words = "forward-plus", "--scene", "rooms:0-0", "--starts", "1", "--steps", "5", "--resolution", "64"
    in_a_run = navi("evaluate", *words)["episodes"]
    (run,) = instance.get_runs()
    assert (run.job_name, run.status) == ("evaluation_job", dg.DagsterRunStatus.SUCCESS)
    assert instance.get_materialized_partitions(dg.AssetKey("evaluated_subject")) == {"forward-plus"}
    monkeypatch.setenv("DAGSTER_HOME", "/nowhere")
    assert navi("evaluate", *words)["episodes"] == in_a_run


@pytest.mark.slow
def test_a_refused_promotion_keeps_its_exit_code_and_is_a_partition(instance, tmp_path):
    for number, command in enumerate((HOVER, CRASH)):
        flying(command, tmp_path / f"{number}.pt")
        Registry(navi_home() / "models").register(tmp_path / f"{number}.pt")
    words = "v002", "--scene", "rooms:0-1", "--starts", "1", "--steps", "5", "--resolution", "64", "--json"
    done = CliRunner().invoke(build_app(), ["promote", *words])
    assert done.exit_code == 1 and json.loads(done.stdout)["promoted"] is False, done.output
    (run,) = instance.get_runs()
    assert (run.job_name, run.status) == ("promotion_job", dg.DagsterRunStatus.SUCCESS)
    assert instance.get_materialized_partitions(dg.AssetKey("challenged_version")) == {"v002"}


@pytest.mark.slow
def test_a_failed_night_is_a_failed_run_and_reported_as_without_one(instance):
    words = ["nightly", "--minutes", "1", "--set", "free_disk_gib=1000000", "--json", "--name", "full"]
    done = CliRunner().invoke(build_app(), words)
    assert "night full failed: free disk" in str(done.exception)
    document = json.loads(done.stdout)
    assert document["failed"] == ["free disk"] and Path(document["markdown"]).exists()
    assert document["stages"]["preflight"] == "failed" and document["stages"]["promotion"] == "skipped"
    (run,) = instance.get_runs()
    assert (run.job_name, run.status, run.tags["night"]) == ("nightly_training", dg.DagsterRunStatus.FAILURE, "full")


def test_an_error_of_the_work_keeps_its_kind_and_the_run_has_failed(instance):
    done = CliRunner().invoke(build_app(), ["sweep", "encoder_sweep"])
    assert type(done.exception).__name__ == "RecordError" and "materialize" in str(done.exception)
    (run,) = instance.get_runs()
    assert (run.job_name, run.status) == ("benchmark_job", dg.DagsterRunStatus.FAILURE)


@pytest.mark.slow
def test_a_command_waits_for_a_slot_of_the_pool(instance, capsys):
    other = subprocess.Popen(["sleep", "100"])
    holder = instance.create_run_for_job(
        defs().resolve_job_def("study_job"),
        tags={PROCESS_TAG: process_mark(other.pid)},
        status=dg.DagsterRunStatus.STARTED,
    )
    ended = []

    def free():
        time.sleep(1)
        ended.append(time.monotonic())
        instance.report_run_canceled(holder)

    thread = threading.Thread(target=free)
    try:
        thread.start()
        with pytest.raises(ConfigError, match="nothing") as refused:
            launch(Target("ablation_job", "ablation", {"cells": 0, "variants": ["nothing"]}), lambda **_: None)
        over = time.monotonic()
        thread.join()
    finally:
        other.kill()
        other.wait()
    assert over >= ended[0]
    assert "waiting for the pool gpu, which study_job" in capsys.readouterr().err, refused


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_commands_materialize_their_assets_after_their_start(instance, tmp_path):
    """A night compiles the corpus, whose scenes the sweep takes; then a policy that circles becomes champion."""

    def made_by(words, assets):
        began = time.time()
        document = navi(*words)
        for asset, partitions in assets.items():
            records = instance.fetch_materializations(dg.AssetKey(asset), limit=20).records
            assert {one.partition_key for one in records if one.timestamp > began} == partitions, asset
        return document

    stages = ("preflight", "training", "resume_proof", "evaluation", "benchmarks", "promotion", "summary")
    made_by(("nightly", "--minutes", "1", "--name", "small"), {f"night_{stage}": {"small"} for stage in stages})
    sweep = ("sweep", "encoder_sweep", "--steps", "256", "--seconds", "5")
    made_by(sweep, {"encoder_sweep": {"quick"}})
    made_by(("study", "run", "quick", "--trials", "1"), {"study": {"quick"}, "trial": {"quick-0000"}})

    registry = Registry(navi_home() / "models")
    hovers, circles = (registry.register(flying(actions, tmp_path / "policy.pt")) for actions in (HOVER, CIRCLE))
    registry.promote(hovers)
    halls = [boxes_scene(f"hall{n}", ((0, 0, 0), (5.0 + 0.5 * n, 2.4, 4))) for n in range(4)]
    scenes = [word for hall in halls for word in ("--scene", str(hall.save(tmp_path / f"{hall.name}.gmdag")))]
    promotion = ("promote", circles, *scenes, "--starts", "6", "--steps", "40")
    assert made_by(promotion, {"challenged_version": {circles}})["promoted"]
    assert registry.aliases()["champion"] == circles


@pytest.mark.slow
def test_a_cancelled_study_is_canceled_and_a_killed_one_failed(instance):
    command = [
        sys.executable,
        "-m",
        "navi_core.cli.main",
        "study",
        "run",
        "quick",
        "--trials",
        "1",
        "--set",
        "settings.total_steps=20000",
    ]
    ends = {signal.SIGINT: dg.DagsterRunStatus.CANCELED, signal.SIGKILL: dg.DagsterRunStatus.FAILURE}
    for sent, shown in ends.items():
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 120
            at_work = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
            while time.monotonic() < deadline and not instance.get_runs(at_work):
                time.sleep(0.5)
            time.sleep(5)
            process.send_signal(sent)
            assert process.wait(120) != 0
            assert "Traceback" not in process.stderr.read()
        end_dead_runs(instance)
        assert instance.get_runs(limit=1)[0].status == shown
    # The next command finds the pool free, and goes on with the trial.
    assert navi("study", "run", "quick", "--trials", "1", "--set", "settings.total_steps=20000")["completed"] == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("tags", [{}, {PROCESS_TAG: "daemon", GRPC_INFO_TAG: '{"host": "code", "port": 4000}'}])
def test_a_run_inside_a_run_needs_no_second_slot(instance, tags):
    """As `whole_graph`, which holds the pool for the runs that it launches; a daemon of another container tags it."""

    @dg.op(pool="gpu")
    def inner():
        pass

    @dg.job(executor_def=dg.in_process_executor)
    def inner_job():
        inner()

    @dg.op(pool="gpu")
    def outer(context):
        assert run_job(context.instance, inner_job).success

    @dg.job(executor_def=dg.in_process_executor)
    def outer_job():
        outer()

    assert run_job(instance, outer_job, tags=tags).success
