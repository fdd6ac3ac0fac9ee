"""Cancel, kill of the trainer, kill of the run's worker, retry: with the real trainer, in processes of their own.

Slow: every trainer takes seconds to start.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from navi_core.config import TrainConfig, config_hash
from navi_core.errors import RunError
from navi_core.presets import load_preset
from navi_core.record import navi_home
from navi_pipeline.lib.training.supervised import SUPERVISOR, orphaned_trainers, runs_in_use, sweep
from navi_pipeline.lib.training.trainer_client import train_in_child
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from tests.pipeline.empty_warehouse import start_warehouse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[3]
STEPS = 4096
WORKER = """
import json, sys
sys.path.insert(0, {root!r})
import dagster as dg
from navi_core.config import TrainConfig
from navi_pipeline.lib.training.trainer_client import train_in_child

@dg.op
def train():
    config = TrainConfig.model_validate_json(open(sys.argv[1]).read())
    train_in_child(config, asset="ppo_policy", partition="quick", on_line=lambda line: print(line, flush=True))

@dg.job
def job():
    train()

if __name__ == "__main__":
    with dg.DagsterInstance.ephemeral() as instance:
        job.execute_in_process(instance=instance, run_config={{"loggers": {{"console": {{"config":
                               {{"log_level": "CRITICAL"}}}}}}}})
"""


@pytest.fixture
def config(box_scene, tmp_path, monkeypatch, request):
    """A training run of some seconds, or of `param` steps, in a small box, of a Navi home of its own."""
    monkeypatch.setenv("NAVI_HOME", str(start_warehouse(tmp_path / "home")))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    scene = box_scene.save(tmp_path / "box.gmdag")
    preset = load_preset("quick", {"actors": 4, "threads": 1, "checkpoint_every": 512,
                                   "total_steps": getattr(request, "param", STEPS),
                                   "corpus": {"scenes": [str(scene)]}, "ppo": {"rollout": 32}})  # fmt: skip
    return preset


@pytest.fixture
def worker(config, tmp_path):
    """Start a process that supervises the training, as Dagster's run worker does; its lines go to a file."""
    (tmp_path / "config.json").write_text(config.model_dump_json())
    (tmp_path / "worker.py").write_text(WORKER.format(root=str(ROOT)))
    started = []

    def start():
        lines = tmp_path / f"lines{len(started)}.txt"
        command = [sys.executable, str(tmp_path / "worker.py"), str(tmp_path / "config.json")]
        with lines.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT)
        started.append(process)
        return process, lines

    yield start
    for process in started:
        process.kill()
        process.wait()


def run_of(config):
    return navi_home() / "runs" / f"ppo_policy-quick-{config_hash(config)}"


def wait_for(condition, seconds=180.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def steps_in(lines):
    return [int(step.replace(",", "")) for step in re.findall(r"\bstep ([\d,]+)/", lines.read_text())]


def trainer_of(config):
    text = (navi_home() / "runs" / ".locks" / f"{run_of(config).name}.lock").read_text().strip()
    return int(text)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def checkpoints(config):
    return sorted(int(re.search(r"(\d+)", p.name)[1]) for p in (run_of(config) / "checkpoints").glob("step-*.pt"))


def finish(config):
    """Train to the end; every step of the run must then be in the warehouse once."""
    result = train_in_child(config, asset="ppo_policy", partition="quick", on_line=lambda line: None)
    assert result["steps"] == STEPS and result["reason"] == "total_steps"
    warehouse = Warehouse()
    assert warehouse.ingest().quarantined == {}
    rows = warehouse.query("select step from metrics where name = 'reward_ema' order by step")
    assert rows["step"].tolist() == list(range(128, STEPS + 1, 128))
    assert not runs_in_use()
    return result


def test_cancelled_training_checkpoints_and_resumes(config, worker):
    process, lines = worker()
    wait_for(lambda: len(steps_in(lines)) > 3)
    trainer = trainer_of(config)
    process.send_signal(signal.SIGINT)  # what Dagster's launcher sends to the worker of a run that is terminated
    process.wait(timeout=120)
    assert gone(trainer) and not runs_in_use()
    # It did not wait for the next regular checkpoint: the last one is of the step that was reached.
    reached = checkpoints(config)[-1]
    assert reached >= steps_in(lines)[3]
    Warehouse().ingest()
    status = Warehouse().query("select status, reason, step from runs")
    assert status.values.tolist() == [["stopped", "SIGTERM", reached]]
    assert finish(config)["resumed_from"] == reached


def test_killed_trainer_resumes_from_the_last_checkpoint(config):
    killed = []

    def on_line(line):
        found = re.search(r"\bstep ([\d,]+)/", line)
        if found and int(found[1].replace(",", "")) >= 1024 and not killed:
            killed.append(trainer_of(config))
            os.kill(killed[0], signal.SIGKILL)
        lines.append(line)

    lines: list[str] = []
    result = train_in_child(config, asset="ppo_policy", partition="quick", on_line=on_line)
    assert gone(killed[0]) and any("killed by signal 9" in line for line in lines)
    assert result["steps"] == STEPS and result["resumed_from"] >= 1024 - 512
    finish(config)


def test_killed_worker_leaves_no_trainer_and_the_retry_resumes(config, worker):
    process, lines = worker()
    # A line may be printed before the checkpoint of its step is whole.
    wait_for(lambda: len(steps_in(lines)) > 3 and bool(checkpoints(config)))
    trainer = trainer_of(config)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # Its first thread is gone before the last one, which releases the lock.
    wait_for(lambda: gone(trainer) and not runs_in_use(), 60.0)
    assert not orphaned_trainers()
    reached = checkpoints(config)[-1]
    # The retry starts before the first run is marked as lost.
    assert finish(config)["resumed_from"] == reached


@pytest.mark.parametrize("config", [10**6], indirect=True)
def test_second_trainer_on_a_run_is_refused_with_the_process_id(config, worker):
    _, lines = worker()
    wait_for(lambda: steps_in(lines))
    trainer = trainer_of(config)
    with pytest.raises(RunError, match=f"in use by process {trainer}"):
        train_in_child(config, asset="ppo_policy", partition="quick", on_line=lambda line: None)
    assert not gone(trainer)


def test_sweep_ends_orphaned_trainers_only(config):
    """The recorded supervisor of an orphan is not its parent; a manually started trainer is kept."""
    command = [sys.executable, "-m", "navi_core.cli.main", "train", "ppo", "--json", "--partition", "quick"]
    long = config.model_copy(update={"total_steps": 10**6})
    file = navi_home() / "long.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(TrainConfig.model_dump(long, mode="json")))
    processes = {}
    for asset, mark in (("orphan", {SUPERVISOR: "999999"}), ("byhand", {})):
        processes[asset] = subprocess.Popen(
            [*command, "--config", str(file), "--asset", asset],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, cwd=ROOT,
            env=os.environ | mark,
        )  # fmt: skip
    try:
        wait_for(lambda: len(runs_in_use()) == 2)
        wait_for(lambda: len(list((navi_home() / "runs").glob("orphan*/checkpoints/step-*.pt"))) > 0)
        assert list(orphaned_trainers()) == [processes["orphan"].pid]
        report = sweep(grace_seconds=60.0)
        assert report.ended == [processes["orphan"].pid] and processes["byhand"].poll() is None
        processes["orphan"].wait(timeout=60)
        assert [run.split("-")[0] for run in runs_in_use()] == ["byhand"]
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
