"""Interfaces that users depend on are those of the snapshots; `python -m tests.snapshots --write` regenerates them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.snapshots.interfaces import INTERFACES

FOLDER = Path(__file__).parent / "snapshots"


NAMES = sorted(file.stem for file in FOLDER.glob("*.json"))
TRAINED = ["documents", "metrics"]
"""Interfaces that are collected by training with every learner: half a minute."""


def collect(names: list[str]) -> dict[str, str]:
    """Collect interfaces in a process that no other test has changed."""
    command = [sys.executable, "-m", "tests.snapshots", "--print", *names]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER.parents[1], check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "names", [sorted({*NAMES} - {*TRAINED}), pytest.param(TRAINED, marks=pytest.mark.slow)], ids=len
)
def test_interfaces_are_those_of_the_snapshots(names: list[str]) -> None:
    for name, today in collect(names).items():
        frozen = json.loads((FOLDER / f"{name}.json").read_text())
        assert json.loads(today) == frozen, "changed on purpose? python -m tests.snapshots --write, and CHANGELOG.md"


def test_every_interface_has_a_snapshot() -> None:
    assert {*INTERFACES} == {*NAMES}
