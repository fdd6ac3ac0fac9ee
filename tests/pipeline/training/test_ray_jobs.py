"""Training as Ray jobs: environment, errors, checkpoints."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from navi_core.config import TrainConfig, parse_config
from navi_core.errors import ConfigError, RunError
from navi_core.machine import resources
from navi_pipeline.lib.training.ray_jobs import _environment, _read, _resources
from navi_pipeline.lib.training.trainer_client import run_name, run_navi, train_in_child

SMALL = {
    "task": "cart_pole",
    "actors": 8,
    "threads": 1,
    "total_steps": 512,
    "ppo": {"rollout": 32, "bptt": 8, "minibatch": 8},
}


def test_unknown_trainer_is_refused_with_allowed_values(monkeypatch):
    monkeypatch.setenv("NAVI_TRAINER", "cloud")
    with pytest.raises(ConfigError, match=r"allowed: child .*, ray"):
        run_navi(["doctor"], what="doctor", on_line=print)


def test_ray_job_environment_has_plugins_and_working_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAVI_PLUGINS", "my_networks")
    reported = _environment()
    assert reported["NAVI_PLUGINS"] == "my_networks" and reported["PYTHONPATH"].split(os.pathsep)[-1] == str(tmp_path)


def test_ray_job_keeps_only_the_thread_count_set_by_the_user(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert _environment()["OMP_NUM_THREADS"] == "2"
    monkeypatch.setattr(resources, "_affinity", lambda: 64)
    monkeypatch.setattr(resources, "usable_cores", lambda: 2)
    assert "OMP_NUM_THREADS" not in _environment()


def test_ray_job_asks_for_cpus_gpus_and_custom_resources(monkeypatch):
    asked = {"entrypoint_num_cpus": 1.0, "entrypoint_num_gpus": 0.0, "entrypoint_resources": {}}
    assert _resources() == asked, "a job without a CPU of its own would run on the head node, as all others"
    for name, value in (("CPUS", "4"), ("GPUS", "0.5"), ("RESOURCES", "big=1, fast=2")):
        monkeypatch.setenv(f"NAVI_RAY_{name}", value)
    asked = {"entrypoint_num_cpus": 4.0, "entrypoint_num_gpus": 0.5, "entrypoint_resources": {"big": 1.0, "fast": 2.0}}
    assert _resources() == asked
    for name, value in (("GPUS", "one"), ("RESOURCES", "big")):
        monkeypatch.setenv(f"NAVI_RAY_{name}", value)
        with pytest.raises(ConfigError, match="allowed: NAVI_RAY_CPUS=2"):
            _resources()
        monkeypatch.delenv(f"NAVI_RAY_{name}")


class LostNode:
    """Client of a job whose node is lost: its log neither goes on nor ends, and the head reports it as failed."""

    def __init__(self):
        self.statuses = iter([False, False, True])

    async def tail_job_logs(self, job):
        yield "one\ntw"
        yield "o\n"
        await asyncio.sleep(3600)

    def get_job_status(self, job):
        return SimpleNamespace(is_terminal=lambda: next(self.statuses))


def test_lines_of_a_job_are_whole_and_a_lost_node_ends_them(monkeypatch):
    monkeypatch.setattr(threading.Thread, "join", lambda self, timeout: None)
    lines = []
    _read(LostNode(), "job", lines.append)
    assert lines == ["one", "two"]


@pytest.fixture
def local_ray(monkeypatch, tmp_path_factory):
    """A Ray head of this machine that ends with the test, on the loopback interface and without a token."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    pytest.importorskip("ray.job_submission", reason="Ray is not installed (pip install -e '.[ray]')")
    # Sockets under the session's folder must have short names.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    port, dashboard, client = 26379, 28265, 20001
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    env = os.environ | {"RAY_JOB_STOP_WAIT_TIME_S": "60", "RAY_DISABLE_IMPORT_WARNING": "1"}
    done = subprocess.run(
        [*ray, "start", "--head", "--num-cpus=1", "--num-gpus=0", '--resources={"navi": 1}',
         "--node-ip-address=127.0.0.1", f"--port={port}",
         "--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
         f"--ray-client-server-port={client}", "--object-store-memory=80000000", f"--temp-dir={folder}",
         "--disable-usage-stats"],
        capture_output=True, text=True, timeout=240, env=env,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"Ray does not start here: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    monkeypatch.setenv("NAVI_RAY_ADDRESS", f"http://127.0.0.1:{dashboard}")
    monkeypatch.setenv("NAVI_TRAINER", "ray")
    try:
        yield
    finally:
        end_processes_of(folder)


def end_processes_of(folder: Path) -> None:
    """End every process whose command line names the session's folder, and remove it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if str(folder).encode() in (entry / "cmdline").read_bytes():
                        os.kill(int(entry.name), number)
        time.sleep(2.0)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_as_a_ray_job_stops_with_a_checkpoint(local_ray):
    lines = []
    result = train_in_child(parse_config(TrainConfig, SMALL), asset="trial", partition="ray", on_line=lines.append,
                            command=("train", "ppo", "--publish", "off"))  # fmt: skip
    assert result["steps"] == 512 and result["reason"] == "total_steps" and Path(result["checkpoint"]).exists()
    assert any("step" in line for line in lines)
    # A second supervisor joins the running job; when stopped, the job leaves a checkpoint and a result.
    endless = parse_config(TrainConfig, SMALL | {"total_steps": None, "seed": 1})
    seen, reported = [], []
    following = [lambda: any("step" in line for line in reported), lambda: False]

    def follow(stop, lines):
        return train_in_child(
            endless,
            asset="trial",
            partition="ray",
            on_line=lines.append,
            command=("train", "ppo", "--publish", "off"),
            grace_seconds=90.0,
            stop=stop,
        )

    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(follow, following[1], seen)
        while not any("step" in line for line in seen) and not second.done():
            time.sleep(0.2)
        first = pool.submit(follow, following[0], reported)
        stopped = first.result()
        assert second.exception() is not None or second.result() == stopped
    assert stopped["reason"] != "total_steps" and stopped["steps"] > 0 and Path(stopped["checkpoint"]).exists()
    with pytest.raises(RunError, match="exit code"):
        run_navi(["train", "ppo", "--task", "no_such_task"], what="trainer", on_line=lambda _: None)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_dagster_run_trains_by_pipes_on_a_node_with_the_resources(local_ray, monkeypatch, capfd):
    pytest.importorskip("dagster_ray", reason="dagster-ray is not installed (pip install -e '.[ray]')")
    import dagster as dg
    from ray.job_submission import JobSubmissionClient

    from navi_pipeline.lib.training.run_curve import Monitor

    monkeypatch.setenv("NAVI_RAY_RESOURCES", "navi=1")
    endless = parse_config(TrainConfig, SMALL | {"total_steps": None, "seed": 2})

    @dg.asset
    def policy() -> dg.MaterializeResult:
        monitor = Monitor(run_name("policy", "ray", endless), until_step=1024)
        command = ("train", "ppo", "--publish", "off")
        made = train_in_child(
            endless, asset="policy", partition="ray", on_line=lambda _: None, command=command, stop=monitor
        )
        monitor.read()
        return dg.MaterializeResult(metadata={"steps": made["steps"], "seen": monitor.step, "reason": made["reason"]})

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([policy], instance=instance)
    (made,) = result.asset_materializations_for_node("policy")
    metadata = {name: one.value for name, one in made.metadata.items()}
    assert metadata["steps"] >= metadata["seen"] >= 1024 and metadata["reason"] != "total_steps"
    assert "policy/ray: step" in capfd.readouterr().out, "the trainer's lines are the step's output"
    client = JobSubmissionClient(os.environ["NAVI_RAY_ADDRESS"])
    (job,) = client.list_jobs()
    assert result.run_id in job.metadata.values() and job.driver_node_id is not None
    monkeypatch.setenv("NAVI_RAY_RESOURCES", "absent=1")
    began = time.monotonic()
    with pytest.raises(RunError):
        run_navi(["doctor"], what="doctor", on_line=print, retries=0, stop=lambda: time.monotonic() > began + 5.0)
    (waiting,) = (one for one in client.list_jobs() if one.submission_id != job.submission_id)
    assert waiting.driver_node_id is None, "no node has the resource"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trainings_run_on_the_node_that_has_their_resources(local_ray, monkeypatch):
    from ray.job_submission import JobSubmissionClient
    from ray.util.state import list_nodes

    second = [sys.executable, "-m", "ray.scripts.scripts", "start", "--address=127.0.0.1:26379", "--num-cpus=1",
              "--num-gpus=0", '--resources={"big": 1}', "--node-ip-address=127.0.0.1",
              "--object-store-memory=80000000", "--dashboard-agent-listen-port=52465"]  # fmt: skip
    done = subprocess.run(second, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    address = os.environ["NAVI_RAY_ADDRESS"]
    node_with = {}
    while len(node_with) < 2:
        for node in list_nodes(address=address, detail=True):
            node_with |= {name: node.node_id for name in node.resources_total if name in ("navi", "big")}
        time.sleep(0.5)
    assert node_with["navi"] != node_with["big"]
    client, ran_on = JobSubmissionClient(address), {}
    for seed, resource in enumerate(("big", "navi", "big"), start=3):
        monkeypatch.setenv("NAVI_RAY_RESOURCES", f"{resource}=1")
        before = {job.submission_id for job in client.list_jobs()}
        made = train_in_child(parse_config(TrainConfig, SMALL | {"seed": seed}), asset="trial", partition="nodes",
                              on_line=lambda _: None, command=("train", "ppo", "--publish", "off"))  # fmt: skip
        (job,) = (job for job in client.list_jobs() if job.submission_id not in before)
        assert made["steps"] == 512 and ran_on.setdefault(resource, job.driver_node_id) == job.driver_node_id
    assert ran_on == node_with


@pytest.mark.slow
def test_missing_ray_cluster_error_names_the_start_command(monkeypatch):
    pytest.importorskip("ray.job_submission", reason="Ray is not installed (pip install -e '.[ray]')")
    monkeypatch.setenv("NAVI_TRAINER", "ray")
    monkeypatch.setenv("NAVI_RAY_ADDRESS", "http://127.0.0.1:9")
    with pytest.raises(RunError, match="ray start --head"):
        run_navi(["doctor"], what="doctor", on_line=print)


@pytest.mark.slow
def test_ray_settings_send_runs_to_the_cluster(tmp_path, monkeypatch):
    pytest.importorskip("dagster_ray", reason="dagster-ray is not installed (pip install -e '.[ray]')")
    import dagster as dg

    home = Path(__file__).resolve().parents[3] / "dagster_home"
    monkeypatch.setenv("NAVI_RAY_ADDRESS", "http://127.0.0.1:9")
    (tmp_path / "dagster.yaml").write_text((home / "dagster.yaml").read_text() + (home / "ray.yaml").read_text())
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.run_launcher.address == "http://127.0.0.1:9"
