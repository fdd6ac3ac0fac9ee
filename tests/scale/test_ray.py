"""Ape-X on a local Ray: real deaths of actors, shards and the hub; an actor from outside; learners under torchrun."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from navi_core.models import load_checkpoint
from navi_core.record import navi_home
from navi_core.scale.launch import RayCluster
from tests.scale.builders import apex_config, fly_apex

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def ray():
    return pytest.importorskip("ray", reason="Ray is in the extra ray")


def on_ray(made, **kw):
    def cluster(config, workers):
        made.append(RayCluster(config, "test", workers=workers, **kw))
        return made[-1]

    return cluster


def test_training_survives_killed_actors_shards_and_hub(ray, tmp_path):
    config = apex_config(total_steps=6000, checkpoint_every=3000, distributed={"ahead": 256})
    made, done = [], []

    def murder():
        """SIGKILL for an actor, ray.kill for a shard and for the hub, each once training runs again."""
        while not made or not made[0]._running:
            time.sleep(0.1)
        here = made[0]
        for kill in (
            lambda: os.kill(here.pids()[0], signal.SIGKILL),
            lambda: ray.kill(ray.get_actor("navi-shard-1")),
            lambda: ray.kill(ray.get_actor("navi-hub")),
        ):
            before = shards_taken(ray)
            while shards_taken(ray) < before + 256:
                time.sleep(0.1)
            kill()
            done.append(1)
            time.sleep(2.0)

    def shards_taken(ray):
        """Items that both shards have taken; 0 while one is away."""
        try:
            statuses = [ray.get(ray.get_actor(f"navi-shard-{i}").status.remote("", 0, 0), timeout=5) for i in range(2)]
        except (ValueError, ray.exceptions.RayError):
            return 0
        return sum(status.added for status in statuses)

    thread = threading.Thread(target=murder, daemon=True)
    thread.start()
    result = fly_apex(tmp_path, config, cluster=on_ray(made))
    assert len(done) == 3, "the run was over before all had died; it needs more steps"
    here = made[0]
    assert result.reason == "total_steps" and 6000 <= result.steps < 6064
    assert here.replaced.actors >= 1 and here.replaced.shards == 1
    assert result.metrics["gradient_steps"] <= result.steps * 4.0 / 32
    assert result.metrics["model_version"] > 50
    checkpoint = load_checkpoint(result.checkpoint)
    assert checkpoint.extra["ledger"]["decisions"] >= result.steps


def test_external_actor_joins_by_its_shard(ray, tmp_path):
    config, made, joined = apex_config(total_steps=1500, distributed={"ahead": 256}), [], []

    def join():
        while not made:
            time.sleep(0.1)
        command = [sys.executable, "-m", "navi_core.cli.main", "actor", "--shard"]
        stranger = os.environ | {"RAY_AUTH_MODE": "disabled"}
        for shard, env in (("0", stranger), ("5", None), ("0", None), ("1", None)):
            arguments = [*command, shard, "--address", made[0].address, "--run", "test", "--json"]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            joined.append(subprocess.Popen(arguments, env=env, text=True, **pipes))

    thread = threading.Thread(target=join)
    thread.start()
    result = fly_apex(tmp_path, config, cluster=on_ray(made, actors=0))
    thread.join()
    answers = [process.communicate(timeout=240) for process in joined]
    assert joined[0].returncode != 0 and "no Ray at" in answers[0][1], "who has no token is not let in"
    assert joined[1].returncode != 0 and "shard 5 of a run with 2; allowed: 0 … 1" in answers[1][1]
    replies = [json.loads(out) for out, _ in answers[2:]]
    assert result.steps >= 1500 and {x["ended"] for x in replies} == {"total_steps"}
    assert sum(x["rollouts"] for x in replies) * 32 >= 1500


def test_two_learners_under_torchrun_equal_one(tmp_path, monkeypatch):
    monkeypatch.setenv("NAVI_HOME", str(tmp_path))
    made = []
    for learners in (1, 2):
        config = tmp_path / f"{learners}.json"
        wanted = {"learners": learners, "actors_per_gpu": 2 // learners}
        config.write_text(apex_config(total_steps=320, distributed=wanted).model_dump_json())
        command = [sys.executable, "-m", "navi_core.cli.main", "learner", "--config", str(config), "--in-process"]
        result = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        made.append(load_checkpoint(json.loads(result.stdout)["checkpoint"]))
    assert navi_home() == tmp_path
    for name, weight in made[0].policy_state.items():
        torch.testing.assert_close(made[1].policy_state[name], weight, rtol=0, atol=2e-5, msg=name)
