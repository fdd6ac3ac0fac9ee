"""Schedules of the nights: one command turns them on, and the daemon runs nights on a real clock."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import dagster as dg
import pytest
from typer.testing import CliRunner

from navi_core.errors import ConfigError
from navi_core.record import navi_home
from navi_pipeline.cli import experiments
from tests.pipeline.deployment import ROOT, Deployment

TICKS = """{ scheduleOrError(scheduleSelector: {repositoryLocationName: "navi", repositoryName: "__repository__",
  scheduleName: "nightly_training_schedule"}) { ... on Schedule {
  scheduleState { status ticks { status runIds } } } } }"""


@pytest.fixture
def dagster_home(tmp_path, monkeypatch):
    """A Dagster home of its own."""
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    return tmp_path


def schedules(*arguments):
    made = CliRunner().invoke(experiments.group, ["schedules", *arguments, "--json"])
    if made.exception is not None:
        raise made.exception
    return {row["schedule"]: row for row in json.loads(made.stdout)}


def test_schedules_are_off_until_switched_on_and_show_their_next_tick(dagster_home):
    assert [row["on"] for row in schedules().values()] == [False] * 3
    rows = schedules("on")
    assert {name: row["next"] and row["next"][-9:] for name, row in rows.items()} == {
        "nightly_training_schedule": "22:00 UTC",
        "nightly_validation_schedule": "07:00 UTC",
        "torture_schedule": None,  # the UI alone switches it on
    }
    assert schedules("on") == schedules() == rows
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        assert len([state for state in instance.all_instigator_state() if state.is_running]) == 2
    assert [row["next"] for row in schedules("off").values()] == [None] * 3
    with pytest.raises(ConfigError, match="allowed: on, off"):
        schedules("maybe")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_daemon_runs_three_short_nights_on_a_real_clock(dagster_home, monkeypatch):
    settings = {
        "training_cron": "* * * * *", "minutes": 0.1, "profile": "quick", "train_scenes": 1, "validation_scenes": 1,
        "test_scenes": 1, "eval_starts": 1, "eval_steps": 10, "bench_scenes": ["maze"], "bench_repeats": 1,
        "bench_steps": 1, "proof_steps": [1], "viewer": False, "monitor_seconds": 5, "free_disk_gib": 0.1,
    }  # fmt: skip
    (dagster_home / "nightly.json").write_text(json.dumps(settings))
    monkeypatch.setenv("NAVI_NIGHTLY", str(dagster_home / "nightly.json"))
    # As a user does: the code location reads the cron expression when it loads.
    command = [str(Path(sys.executable).with_name("navi")), "schedules", "on", "--json"]
    reported = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout
    assert json.loads(reported)[0]["cron"] == "* * * * *"
    services = Deployment(dagster_home, dict(os.environ))
    shutil.copy(ROOT / "workspace.yaml", dagster_home)

    def nights():
        return [json.loads(file.read_text()) for file in (navi_home() / "pipeline" / "nights").glob("*-training.json")]

    def summarised():
        return sorted(file.stem.removeprefix("night-") for file in (navi_home() / "reports").glob("night-*.md"))

    try:
        services.start("webserver", "daemon")
        services.until("three nights", lambda: len(summarised()) >= 3, seconds=2200)
        done = summarised()
        state = services.ask(TICKS)["scheduleOrError"]["scheduleState"]
    finally:
        services.stop()
    ticks = [tick for tick in state["ticks"] if tick["status"] == "SUCCESS"]
    assert state["status"] == "RUNNING" and len(ticks) >= 3 and all(len(tick["runIds"]) == 1 for tick in ticks)
    whole = [night for night in nights() if night["night"] in done]
    assert len(whole) >= 3
    for night in whole:
        assert len(night["stages"]) == 6 and {stage["status"] for stage in night["stages"]} <= {"passed", "warned"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_daemon_beside_commands_launches_nothing_twice(dagster_home):
    """Two commands work at once; the daemon only renews what they have changed, once."""
    shutil.copy(ROOT / "workspace.yaml", dagster_home)
    services = Deployment(dagster_home, dict(os.environ))
    navi = str(Path(sys.executable).with_name("navi"))
    flight = "--scene rooms:0-0 --starts 1 --steps 5 --resolution 64"
    commands = ["study run quick --trials 1", f"evaluate forward-plus {flight}"]
    try:
        services.start("webserver", "daemon")
        working = [subprocess.Popen([navi, *command.split()], env=os.environ) for command in commands]
        assert [command.wait(300) for command in working] == [0, 0]
        time.sleep(100)  # the daemon looks every 30 s
    finally:
        services.stop()
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        jobs = Counter(run.job_name for run in instance.get_runs())
        assert jobs["study_job"] == jobs["evaluation_job"] == 1, jobs
        assert {run.status for run in instance.get_runs()} == {dg.DagsterRunStatus.SUCCESS}
        for name in ("study", "trial", "evaluated_subject", "leaderboard", "warehouse"):
            made = instance.fetch_materializations(dg.AssetKey(name), limit=9).records
            assert len(made) <= 1 + (name == "warehouse"), (name, jobs)
