"""Both servers as processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.models.conftest import make_checkpoint  # noqa: F401 - a fixture
from tests.service.conftest import until

pytestmark = pytest.mark.slow
ANY = "tcp://127.0.0.1:0"
LEARNING = ("training.training_interval=0.1", "training.min_batch_size=4", "training.batch_size=8", "gate.threshold=-9")


class Served:
    """A `navi` process that serves, with the facts of its first lines.

    Args:
        home: Its Navi home.
        words: Of the command.
    """

    def __init__(self, home: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "navi_core.cli.main", *words, "--http", "0", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"NAVI_HOME": str(home)},
        )  # fmt: skip
        assert self.process.stdout is not None
        lines = iter(self.process.stdout.readline, "")
        output = ""
        for line in lines:
            output += line
            if line.startswith("}"):
                break
        self.facts = json.loads(output) if output else pytest.fail(self.process.communicate()[1])

    def page(self, name: str) -> str:
        with urllib.request.urlopen(f"{self.facts['pages']}/{name}", timeout=10) as answer:
            return answer.read().decode()

    def status(self) -> dict:
        return json.loads(self.page("status"))

    def decisions(self) -> float:
        return self.status()["metrics"].get("decisions_total", 0)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> str:
        """Ask it to end, as a service manager does; returns its output."""
        self.process.send_signal(signal.SIGTERM)
        printed = self.process.communicate(timeout=30)[1]
        assert self.process.returncode == 0, printed
        return printed


@pytest.fixture
def started(tmp_path):
    running: list[Served] = []

    def start(*words: str) -> Served:
        running.append(Served(tmp_path / "home", *words))
        return running[-1]

    yield start
    for served in running:
        if served.process.poll() is None:
            served.kill()


def test_killed_servers_lose_no_completed_experience(
    started,
    make_checkpoint,  # noqa: F811
    apartments,
    tmp_path,
) -> None:
    scene, model = tmp_path / "scene.gmdag", str(make_checkpoint("served.pt"))
    apartments[0].save(scene)

    def environment(pub: str = ANY, rep: str = ANY) -> Served:
        fixed = ("--scene", str(scene), "--like", model, "--sessions", "2", "--mode", "step")
        return started("environment", *fixed, "--pub", pub, "--rep", rep)

    first = environment()
    pub, rep = first.facts["observations"], first.facts["step requests"]
    settings = [word for setting in LEARNING for word in ("--set", setting)]
    wired = ("--sub", pub, "--pub", ANY, "--mode", "step", "--step-endpoint", rep)
    actor = started("serve", model, *wired, "--gate", "--learn", "--scene", str(scene), *settings)
    until(lambda: actor.status()["training"]["model_version"] >= 3 and actor.decisions() > 100, 90)
    assert "navi_actor_gate_send_total" in actor.page("metrics") and json.loads(actor.page("health"))["healthy"]
    first.kill()
    before = actor.decisions()
    again = environment(pub, rep)
    until(lambda: actor.decisions() > before + 50, 60)

    completed = actor.status()["buffer"]["completed_count"]
    actor.kill()
    second = started("serve", model, *wired, "--gate", "--learn", "--scene", str(scene), *settings)
    until(lambda: second.decisions() > 50, 60)
    assert "stopped by SIGTERM" in second.end() and "stopped by SIGTERM" in again.end()
    by_run: dict[str, list[int]] = {}
    for file in sorted((tmp_path / "home" / "outbox").glob("*service_experiences*")):
        head, *lines = file.read_text().splitlines()
        by_run.setdefault(json.loads(head)["run_id"], []).extend(json.loads(line)["number"] for line in lines)
    assert len(by_run) == 2
    for numbers in by_run.values():
        assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
    # The killed one's: all that its status page reported, and perhaps experiences completed after that.
    assert any(max(numbers) >= completed for numbers in by_run.values())
