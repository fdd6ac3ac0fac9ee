"""Fuzzer: its detectors, its corpus, and a short run of every parser."""

from __future__ import annotations

import json
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


def test_a_short_run_reaches_most_of_the_codec_and_finds_no_fault(tmp_path):
    row = json.loads(fuzz(("frames",), str(tmp_path), 300))
    assert row["faults"] == 0 and row["coverage"]["navi_core.service.wire.codec"] > 0.5
    assert list((tmp_path / "frames" / "inputs").iterdir()) and not (tmp_path / "frames" / "faults").exists()


_BROKEN = """
import dataclasses, sys, time
from pathlib import Path
import tests.fuzz.__main__ as fuzzer
from navi_core.errors import SceneError

def read(file):
    try:
        if sys.argv[1] == "hangs":
            while True: time.process_time()
        if sys.argv[1] == "opens":
            open(file.parent / "../../etc/hostname").read()
    except Exception:
        raise SceneError("broken") from None
    raise {"raises": ValueError, "refuses": SceneError}[sys.argv[1]]("broken")

fuzzer._SECONDS = 0.2
(Path(sys.argv[2]) / "frames" / "inputs").mkdir(parents=True)
fuzzer.TARGETS["frames"] = dataclasses.replace(fuzzer.TARGETS["frames"], read=read)
one = fuzzer._Fuzzer("frames", Path(sys.argv[2]), 0)
one.try_input(b"x")
print(one.faults)
"""


@pytest.mark.parametrize(
    ("parser", "faults"),
    [
        ("raises", 1),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("hangs", 1), ("opens", 1), ("refuses", 0))),
    ],
)
def test_a_parser_that_hangs_opens_or_raises_is_a_fault(parser, faults, tmp_path):
    """A parser that takes every exception for a broken file hides neither a hang nor an open outside of its folder."""
    command = [sys.executable, "-c", _BROKEN, parser, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(faults)], done.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_ten_thousand_inputs_of_a_format_are_refused_or_read(name, tmp_path):
    """From some seconds (frames) to some minutes (meshes)."""
    assert '"faults": 0' in fuzz((name,), str(tmp_path), 10_000)
