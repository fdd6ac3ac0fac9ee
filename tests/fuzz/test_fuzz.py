"""Fuzzer: faults and opens outside of the folder are found, a corpus goes on, and every parser stands a short run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.fuzz.targets import TARGETS


def fuzz(names: tuple[str, ...], folder: str, runs: int) -> str:
    command = [sys.executable, "-m", "tests.fuzz", *names, "--runs", str(runs), "--corpus", folder]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_short_run_reaches_most_of_the_wire_and_finds_no_fault(tmp_path):
    assert '"faults": 0' in fuzz(("frames",), str(tmp_path), 300)
    assert list((tmp_path / "frames" / "inputs").iterdir()) and not (tmp_path / "frames" / "faults").exists()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_ten_thousand_inputs_of_a_format_are_refused_or_read(name, tmp_path):
    """From some seconds (frames) to some minutes (meshes)."""
    assert '"faults": 0' in fuzz((name,), str(tmp_path), 10_000)
