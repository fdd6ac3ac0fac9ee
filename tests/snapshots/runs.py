"""Collectors of what commands write: names of metrics, stages and columns in rows, keys of `--json` documents.

One small home is made for both: every learner trains for two rollouts in a generated apartment.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from navi_core.cli.main import build_app

ROOT = Path(__file__).resolve().parents[2]
SENSOR = {"azimuth_bins": 16, "elevation_bins": 8}
ROLLOUT = {"rollout": 16, "bptt": 8}
SETTINGS = {
    "actors": 4,
    "threads": 1,
    "device": "cpu",
    "compile": {"resolution": 64},
    "checkpoint_every": 10**6,
    "corpus": {"families": {"apartment": [3]}},
    "env": SENSOR | {"max_steps": 12},
    "policy": SENSOR | {"encoder": "ring_cnn", "core": "gru", "width": 8},
    "ppo": ROLLOUT | {"minibatch": 4},
    "grpo": ROLLOUT | {"horizon": 8, "group_size": 4},
    "dpo": ROLLOUT | {"horizon": 8},
    "dqn": ROLLOUT | {"learning_starts": 32},
    "replay": {"batch_size": 8, "capacity": 256},
}
TRAIN = ("--config", "settings.json", "--steps", "128", "--fresh", "--partition")
SCENE = ("--scene", "apartment:3", "--resolution", "64")
COMMANDS: tuple[Sequence[str], ...] = (
    *(("train", learner, *TRAIN, learner) for learner in ("ppo", "grpo", "dpo", "dqn")),
    ("train", "ppo", *TRAIN, "goal", "--task", "point_goal"),
    ("train", "ppo", *TRAIN, "task", "--task", "cart_pole"),
    ("train", "dqn", *TRAIN, "task", "--task", "cart_pole"),
    ("demos", "expert", "--out", "demos", "--pilot", "forward-plus", "--episodes", "2", "--steps", "24", *SCENE,
     "--azimuth-bins", "16", "--elevation-bins", "8"),
    ("demos", "inspect", "demos"),
    ("bc", "--demos", "demos", "--config", "settings.json", "--epochs", "1", "--partition", "bc"),
    ("demos", "pairs", "--out", "pairs.jsonl", "--scene", "apartment:3", "--pairs", "2", "--steps", "8",
     "--set", "env.azimuth_bins=16", "--set", "env.elevation_bins=8", "--set", "compile.resolution=64"),
    ("scenes", "generate", "apartment", "--seeds", "3", "--resolution", "64", "--out", "scenes"),
    ("scenes", "inspect", "scenes/apartment_0003-e377ef8f.gmdag"),
    ("scenes", "qualify", "scenes/apartment_0003-e377ef8f.gmdag"),
    ("scenes", "discover"),
    ("doctor",),
    ("settings", "ppo.clip"),
    ("evaluate", "random", *SCENE, "--starts", "1", "--steps", "5"),
    ("evaluate", "v001", *SCENE, "--starts", "1", "--steps", "5", "--task", "explore"),
    ("compare", "random", "forward-plus", *SCENE, "--starts", "2", "--steps", "5"),
    ("models", "list"),
    ("models", "show", "v001"),
    ("models", "lineage", "v001"),
    ("export", "v001", "--format", "safetensors", "--out", "policy.safetensors"),
    ("runs", "list"),
    ("warehouse", "status"),
    ("warehouse", "compact"),
    ("query",),
    ("query", "select count(*) as n from runs"),
    ("study", "run", "quick", "--trials", "1", "--set", "settings.total_steps=256"),
    ("study", "show", "quick"),
    ("study", "best", "quick"),
    ("sweep",),
)  # fmt: skip
"""Commands whose documents are frozen."""
NAMED = {"metrics": "name", "stage_timings": "stage", "events": "event", "benchmarks": "name"}
"""Column that holds the names, by table."""


@functools.cache
def _home() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the names in the rows by run, and the keys of the documents by command."""
    before, variables = Path.cwd(), dict(os.environ)
    rows: dict[str, Any] = {}
    documents: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.chdir(folder)
            os.environ["NAVI_HOME"] = str(Path(folder) / "home")
            Path("settings.json").write_text(json.dumps(SETTINGS))
            for words in COMMANDS:
                done = CliRunner().invoke(build_app(), [*words, "--json"])
                if done.exit_code:
                    raise RuntimeError(f"navi {' '.join(words)}: {done.output}") from done.exception
                documents[" ".join(words)] = _keys(json.loads(done.stdout))
                _read_rows(Path("home/outbox"), rows)
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(variables)
    return rows, documents


def _read_rows(outbox: Path, found: dict[str, Any]) -> None:
    """Add the names that segments of the outbox hold."""
    for file in sorted(outbox.glob("*.ndjson")):
        head, *rows = (json.loads(line) for line in file.read_text().splitlines())
        named = {"metrics": "name", "stage_timings": "stage", "events": "event", "benchmarks": "name"}.get(
            head["table"]
        )
        for row in rows:
            if named:
                source = "-".join(head["run_id"].split("-")[:2])
                found.setdefault(head["table"], {}).setdefault(source, set()).add(row[named])
            found.setdefault("columns", {}).setdefault(head["table"], set()).update(row)


def _keys(value: Any) -> Any:
    """Return the keys of a document, those of a list's items united."""
    if isinstance(value, dict):
        return {name: _keys(item) for name, item in value.items()}
    if isinstance(value, list):
        united: dict[str, Any] = {}
        for item in value:
            if isinstance(item, dict):
                united |= _keys(item)
        return [united] if united else []
    return None


def metrics() -> dict[str, Any]:
    """Return the names of metrics, stages, events and columns that runs write, and the gauges of services."""
    rows = _sorted(_home()[0])
    services = "".join(file.read_text() for file in sorted((ROOT / "navi_core" / "service").rglob("*.py")))
    # A name is in the call itself, or begins a row of the table of gauges.
    names = re.findall(r"\.(?:count|gauge|latency)\(\s*\"(\w+)\"|\(\"((?:training|buffer)_\w+)\", ", services)
    names = [call or row for call, row in names]
    return rows | {"services": sorted(set(names))}


def documents() -> dict[str, Any]:
    """Return the keys of the `--json` document of each command."""
    return _home()[1]


def _sorted(value: Any) -> Any:
    return {name: _sorted(item) for name, item in value.items()} if isinstance(value, dict) else sorted(value)
