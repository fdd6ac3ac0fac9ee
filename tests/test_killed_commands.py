"""Commands that are killed before a change of a file and repeated end as undisturbed ones."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from navi_core.demos import load_dataset
from navi_core.models import Registry, load_checkpoint
from navi_core.record import NATURAL_KEYS

POINTS = 4
"""Crash points per command, drawn with the seed NAVI_CRASH_SEED."""
FLIGHTS = (
    "demos expert --out {home}/flights --scene apartment:0-1 --episodes 2 --steps 12 --azimuth-bins 16 "
    "--elevation-bins 8 --resolution 32"
)
CLONE = (
    "bc --demos {home}/flights --preset quick --epochs 3 --seed 3 --set policy.width=32 --set bc.sequences=2 "
    "--set bc.bptt=8 --set checkpoint_every=30 --set keep_checkpoints=1 --set threads=1"
)
PAIRS = (
    "demos pairs --out {home}/pairs.jsonl --scene apartment:0 --pairs 4 --steps 4 --set compile.resolution=32 "
    "--set env.azimuth_bins=16 --set env.elevation_bins=8"
)
FLOWN = "evaluate random --scene apartment:100-101 --starts 2 --steps 10 --resolution 32 --out {home}/flown.json"


def run(home: Path, command: str, kill_at: int = 0) -> int:
    words = [word.format(home=home) for word in command.split()]
    given = [sys.executable, "-m", "tests.crash_points", str(home), str(kill_at), *words]
    done = subprocess.run(given, env={**os.environ, "NAVI_HOME": str(home)}, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    if not kill_at:
        assert done.returncode == 0, done.stderr
    return done.returncode


def result(home: Path) -> dict[str, object]:
    """What must not depend on kills: data, weights, versions and the keys of rows."""
    reported: dict[str, object] = {}
    if (home / "flights").exists():
        reported["flights"] = load_dataset([home / "flights"]).content_hash
    for file in home.glob("runs/*/checkpoints/*.pt"):
        checkpoint = load_checkpoint(file)
        random_state = checkpoint.rng["torch"].tolist()
        reported[file.name] = (checkpoint.weights_hash, checkpoint.corpus_summary, random_state)
    reported["versions"] = [(entry.version, entry.weights_hash) for entry in Registry(home / "models").list()]
    reported["latest"] = Registry(home / "models").aliases()
    if (home / "pairs.jsonl").exists():
        reported["pairs"] = (home / "pairs.jsonl").read_text()
    if (home / "flown.json").exists():
        reported["flown"] = json.loads((home / "flown.json").read_text())["episodes"]
    rows = set()
    for file in home.glob("outbox/*.ndjson"):
        head, *lines = map(json.loads, file.read_text().splitlines())
        key = [name for name in NATURAL_KEYS.get(head["table"], ()) if not name.endswith("_at")]
        rows |= {(head["table"], *(str(row.get(name)) for name in key)) for row in lines}
    return reported | {"rows": rows}


@pytest.mark.slow
@pytest.mark.parametrize("command", [FLIGHTS, CLONE, PAIRS, FLOWN], ids=["expert", "bc", "pairs", "evaluate"])
def test_killed_and_repeated_command_equals_an_undisturbed_one(command, tmp_path):
    before, straight, home = (tmp_path / name for name in ("before", "straight", "home"))
    before.mkdir()
    if command is CLONE:
        run(before, FLIGHTS)
    shutil.copytree(before, straight)
    run(straight, command)
    expected, changes = result(straight), int((straight / "changes").read_text())
    for point in random.Random(int(os.environ.get("NAVI_CRASH_SEED", "0"))).sample(range(1, changes + 1), POINTS):
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(before, home)
        assert run(home, command, point) == -signal.SIGKILL
        run(home, command)
        assert result(home) == expected, f"killed before change {point} of {changes}"
