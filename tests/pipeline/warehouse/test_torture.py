"""Torture campaign: faults are met, campaigns go on, and what is lost is found."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from navi_core.kernels.native.library import find_compiler
from navi_pipeline.bench.endurance import growth
from navi_pipeline.bench.shim import Shim
from navi_pipeline.bench.torture_cases import COMMANDS, FAULTS, TORTURED, cases

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler builds the shim")
_WRITE = "import sys, time, pathlib; pathlib.Path(sys.argv[1]).write_text('x'); print(time.time())"


def ran(shim: Shim, file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WRITE, str(file)]
    return subprocess.run(command, env={**os.environ, **shim.variables}, capture_output=True, text=True, check=False)


def test_shim_fails_kills_and_counts_changes_of_its_folder_alone(tmp_path):
    (tmp_path / "home").mkdir()
    shim = Shim(tmp_path / "page", tmp_path / "home")
    shim.count()
    assert ran(shim, tmp_path / "outside").returncode == 0 and shim.changes == 0
    assert ran(shim, tmp_path / "home" / "a").returncode == 0 and (shim.changes, shim.fired) == (2, 0)
    shim.fail(2, errno.ENOSPC)
    assert "No space left" in ran(shim, tmp_path / "home" / "b").stderr and shim.fired == 1
    shim.fail(1, errno.EIO, lasting=True)
    assert "Input/output error" in ran(shim, tmp_path / "home" / "c").stderr
    shim.kill(1)
    assert ran(shim, tmp_path / "home" / "d").returncode == -9 and not (tmp_path / "home" / "d").exists()
    shim.count()
    before = float(ran(shim, tmp_path / "home" / "e").stdout)
    shim.shift_clock(-86_400)
    assert -86_410 < float(ran(shim, tmp_path / "home" / "e").stdout) - before < -86_300


def test_cases_are_drawn_from_the_seed_and_meet_every_command_with_every_fault():
    first = [case for _, case in zip(range(200), cases(3), strict=False)]
    assert first == [case for _, case in zip(range(200), cases(3), strict=False)]
    assert {(case.command, case.fault) for case in first} >= {(name, fault) for name in TORTURED for fault in FAULTS}
    assert all(set(COMMANDS[name].before) <= COMMANDS.keys() for name in COMMANDS)


def campaign(folder: Path, command: str, most: int) -> list[dict]:
    code = (
        "import sys; from pathlib import Path; from navi_pipeline.bench.torture import run_torture; "
        f"run_torture(Path(sys.argv[1]), seconds=3600, commands=({command!r},), most={most})"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (folder / "campaign.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", TORTURED)
def test_disturbed_and_repeated_command_equals_an_undisturbed_one(command, tmp_path):
    """Every kind of fault once or more; one minute (ingest) to ten (night)."""
    rows = campaign(tmp_path, command, 12)
    assert len(rows) == 12 and not [row["faults"] for row in rows if row["faults"]]
    if command == "ingest":
        with (tmp_path / "campaign.jsonl").open("a") as stream:
            stream.write('{"command": "ing')
        assert campaign(tmp_path, command, 13)[:12] == rows


def test_growth_has_a_bound_that_a_leak_exceeds_and_noise_does_not():
    def sampled(leak: float) -> list[dict]:
        return [
            {"piece": 1, "process": "serve", "unit": "decisions", "done": 1000 * i, "total": 1000 * i,
             "memory_mb": 500 + leak * i + (i * 7919 % 13) / 10, "descriptors": 17, "threads": 7, "files": i // 50}
            for i in range(600)
        ]  # fmt: skip

    (flat,), (leaking,) = growth(sampled(0.0)), growth(sampled(0.1))
    assert abs(flat["growth"]) < 1e-3 and flat["upper"] < 0.002 and flat["descriptors"] == "17 → 17, at most 17"
    assert leaking["growth"] == pytest.approx(10 / 530, rel=0.1) and leaking["upper"] > 0.015
    (short,) = growth(sampled(0.0)[:50])
    assert short["upper"] is None
