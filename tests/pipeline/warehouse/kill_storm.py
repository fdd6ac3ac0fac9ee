"""Producers, ingesters and readers of one home, killed at random moments and started again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

_PRODUCER = """
import sys, time
sys.path.insert(0, {root!r})
from navi_core.record import MetricLog
run, first, last, flush = sys.argv[1], *map(int, sys.argv[2:])
log = MetricLog({outbox!r}, run, {{"seed": 1}})
for begin in range(first, last, flush):
    end = min(begin + flush, last)
    for step in range(begin, end):
        log.scalars(step, {{"a": step}})
    log.flush()
    print(end, flush=True)  # rows before `end` are acknowledged
    time.sleep(0.03)
"""
_INGESTER = """
import sys, time
sys.path.insert(0, {root!r})
from navi_pipeline.lib.warehouse.warehouse import Warehouse
warehouse = Warehouse({home!r})
while True:
    warehouse.ingest()
    print("x", flush=True)
    time.sleep(0.02)
"""
_READER = """
import sys
sys.path.insert(0, {root!r})
from navi_pipeline.lib.warehouse.warehouse import Warehouse
warehouse, last, asked = Warehouse({home!r}), 0, 0
print("ready", flush=True)
while True:
    rows = int(warehouse.query("select count(*) as n from metrics")["n"][0])
    assert rows >= last, (rows, last)
    last, asked = rows, asked + 1
    print(asked, flush=True)
"""


def die_after(owner: type, name: str, work: Callable[[], object]) -> None:
    """Do `work` in a forked process that dies, as by kill -9, when `owner.name` returns for the first time."""
    child = os.fork()
    if child == 0:
        real = getattr(owner, name)

        def then_die(*arguments: object, **settings: object) -> None:
            real(*arguments, **settings)
            os._exit(9)

        setattr(owner, name, then_die)
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9, f"{owner.__name__}.{name} was not reached"


@dataclass
class Storm:
    """What a storm did.

    Attributes:
        kills: Kills by kind of process.
        acknowledged: Run → rows that its producer was told are durable.
        questions: Questions that readers asked.
    """

    kills: dict[str, int] = field(default_factory=lambda: {"producer": 0, "ingester": 0})
    acknowledged: dict[str, int] = field(default_factory=dict)
    questions: int = 0


def run_storm(
    home: Path, *, producers: int, rows: int, kills: int, flush: int = 20, ingesters: int = 2, seed: int = 0
) -> Storm:
    """Let `producers` write `rows` rows each while `kills` processes are killed; readers must not fail.

    A killed producer repeats some of its last rows, as a resume from a checkpoint does.
    """
    chance, storm = random.Random(seed), Storm()
    known = {"root": str(ROOT), "home": str(home), "outbox": str(home / "outbox")}
    files = home.parent / "acknowledged"
    files.mkdir(parents=True)

    def start(code: str, name: str, *arguments: int | str) -> subprocess.Popen[bytes]:
        with (files / f"{name}.txt").open("ab") as out, (files / f"{name}.errors").open("ab") as errors:
            command = [sys.executable, "-c", code.format(**known), *map(str, arguments)]
            return subprocess.Popen(command, stdout=out, stderr=errors)

    def reported(name: str) -> int:
        # The last line may be torn by the kill: only whole lines were acknowledged.
        lines = (files / f"{name}.txt").read_text().split("\n")[:-1]
        return max(map(int, lines), default=0)

    def produce(name: str) -> subprocess.Popen[bytes]:
        first = max(0, reported(name) - chance.randrange(30)) if (files / f"{name}.txt").exists() else 0
        return start(_PRODUCER, name, name, first, rows, flush)

    names = [f"run{number}" for number in range(producers)]
    makers = {name: produce(name) for name in names}
    folders = {f"ingester{number}": start(_INGESTER, f"ingester{number}") for number in range(ingesters)}
    reader = start(_READER, "reader")
    try:
        while kills or any(process.poll() is None for process in makers.values()):
            time.sleep(0.05 + 0.5 * chance.random())
            assert reader.poll() is None, (files / "reader.errors").read_text()
            for name, process in makers.items():
                assert process.poll() in (None, 0), (files / f"{name}.errors").read_text()
            # Processes take a while to start; a kill before the first row would prove little.
            if not kills or not all(reported(name) for name in names):
                continue
            alive = [name for name, process in makers.items() if process.poll() is None and reported(name)]
            if alive and chance.random() < 0.6:
                name = chance.choice(alive)
                makers[name].send_signal(signal.SIGKILL)
                makers[name].wait()
                makers[name] = produce(name)
                storm.kills["producer"] += 1
            else:
                name = chance.choice(sorted(folders))
                folders[name].send_signal(signal.SIGKILL)
                folders[name].wait()
                folders[name] = start(_INGESTER, name)
                storm.kills["ingester"] += 1
            kills -= 1
        assert reader.poll() is None, (files / "reader.errors").read_text()
    finally:
        for process in (*makers.values(), *folders.values(), reader):
            process.kill()
            process.wait()
    storm.acknowledged = {name: reported(name) for name in names}
    lines = (files / "reader.txt").read_text().split("\n")[1:-1]
    storm.questions = max(map(int, lines), default=0)
    return storm
