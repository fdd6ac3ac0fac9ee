"""Interfaces that users depend on are those of the snapshots; `python -m tests.snapshots --write` regenerates them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "snapshots"


@pytest.fixture(scope="module")
def interfaces() -> dict[str, str]:
    """Today's interfaces, collected in a process that no other test has changed."""
    command = [sys.executable, "-m", "tests.snapshots", "--print"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER.parents[1], check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.json")))
def test_interface_is_that_of_the_snapshot(interfaces: dict[str, str], name: str) -> None:
    today = json.loads(interfaces[name])
    frozen = json.loads((FOLDER / f"{name}.json").read_text())
    assert today == frozen, "changed on purpose? python -m tests.snapshots --write, and a line in CHANGELOG.md"


def test_every_interface_has_a_snapshot(interfaces: dict[str, str]) -> None:
    assert {f"{name}.json" for name in interfaces} == {file.name for file in FOLDER.glob("*.json")}
