"""Torture campaign: injected faults, resumption, and the faults that it reports."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from navi_core.errors import ConfigError
from navi_core.kernels.native.library import find_compiler
from navi_pipeline.bench.endurance import growth
from navi_pipeline.bench.shim import Shim
from navi_pipeline.bench.torture import _Campaign, _require_same
from navi_pipeline.bench.torture_cases import COMMANDS, FAULTS, TORTURED, WALKED, cases, places_of
from navi_pipeline.bench.torture_processes import run_forked
from navi_pipeline.defs.automation import torture as asset
from navi_pipeline.defs.resources import resources_of

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
    shim.trace()
    assert ran(shim, tmp_path / "home" / "traced").returncode == 0
    assert shim.traced() == [f"{call} {tmp_path}/home/traced" for call in ("open64", "write")]
    shim.count()
    before = float(ran(shim, tmp_path / "home" / "e").stdout)
    shim.shift_clock(-86_400)
    assert -86_410 < float(ran(shim, tmp_path / "home" / "e").stdout) - before < -86_300


def test_cases_are_drawn_from_the_seed_and_meet_every_command_with_every_fault():
    first = [case for _, case in zip(range(200), cases(3), strict=False)]
    assert first == [case for _, case in zip(range(200), cases(3), strict=False)]
    assert {(case.command, case.fault) for case in first} >= {(name, fault) for name in TORTURED for fault in FAULTS}
    assert all(set(COMMANDS[name].before) <= COMMANDS.keys() for name in COMMANDS)


def test_places_are_the_first_and_the_last_of_each_kind():
    names = [
        "open64 /h/a/12.x",
        "write /h/a/13.x",
        "write /h/a/1.x",
        "rename /h/.q-0123abcd.lj3jfgif.tmp",
        "write /h/b",
    ]
    assert places_of([*names, "write /h/a/2.x", "rename /h/.q-89ab0123.x0000000.tmp"]) == [1, 2, 4, 5, 6, 7]


def test_commands_run_at_once_and_servers_are_interrupted(tmp_path):
    def ends(code: int):
        return lambda: sys.exit(code)

    def serves() -> None:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            os.write(2, b"interrupted")
            raise SystemExit(130) from None

    output = tmp_path / "output.txt"
    assert run_forked([ends(3), ends(0)], tmp_path, output)[0] == 0
    assert run_forked([ends(3), ends(5)], tmp_path, output)[0] in (3, 5)
    assert run_forked([serves, serves], tmp_path, output, seconds=0.3) == (0, "interrupted" * 2)


class Answers(_Campaign):
    """Campaign whose commands succeed, with given answers about the home."""

    def __init__(self, state: dict, differences: dict) -> None:
        self.answers = {"state": state, "verify": differences}

    def _navi(self, command: str, setup=None) -> tuple[int, str]:
        return 0, ""

    def _ask(self, what: str) -> dict:
        return self.answers[what]


@pytest.mark.parametrize(
    ("state", "differences", "faults"),
    [
        ({"rows": ["a", "b"], "aliases": {}}, {}, []),
        ({"rows": ["a"], "aliases": {}}, {}, ["1 rows lost, 0 too many: ['b']"]),
        ({"rows": ["a", "b"], "aliases": {"champion": "v002"}}, {}, ["aliases is {'champion': 'v002'}, not {}"]),
        ({"rows": ["a", "b"], "aliases": {}}, {"metrics": {"extra": 1}}, ["metrics: {'extra': 1}"]),
        ({"state cannot be read": ["torn"]}, {}, ["state cannot be read: ['torn']"]),
    ],
)
def test_a_home_that_differs_is_a_fault(state, differences, faults):
    assert Answers(state, differences)._finished("ingest", {"rows": ["a", "b"], "aliases": {}}) == faults


def test_rows_that_servers_wrote_must_stay_and_may_grow():
    kept = Answers({"rows": ["a"], "aliases": {}}, {})
    assert kept._finished("serve", {"rows": [], "aliases": {"champion": "v001"}}) == []


def test_a_folder_keeps_to_its_campaign(tmp_path):
    _require_same(tmp_path / "campaign.json", {"seed": 0, "commands": ["ingest"]})
    _require_same(tmp_path / "campaign.json", {"seed": 0, "commands": ["ingest"]})
    with pytest.raises(ConfigError, match="give another --folder"):
        _require_same(tmp_path / "campaign.json", {"seed": 1, "commands": ["ingest"]})


@pytest.mark.parametrize("faults", [[], ["ingest, kill, case 3: 1 rows lost"]])
def test_asset_reports_the_faults_of_its_campaign(faults, tmp_path, monkeypatch):
    rows = [{"cases": 5, "kills": 9, "injected": 2, "faults": len(faults)}]
    output = json.dumps({"rows": rows, "faults": faults})
    monkeypatch.setattr(asset, "run_supervised", lambda *_, **__: (5 if faults else 0, output, []))
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize([asset.torture], instance=instance, resources=resources_of(str(tmp_path)))
    (check,) = done.get_asset_check_evaluations()
    assert check.passed == (not faults) and (faults or ["nothing lost"])[0] in check.description


def campaign(folder: Path, command: str, most: int) -> list[dict]:
    code = (
        "import sys; from pathlib import Path; from navi_pipeline.bench.torture import run_torture; "
        f"run_torture(Path(sys.argv[1]), seconds=3600, commands=({command!r},), most={most})"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (folder / "campaign.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def test_a_walk_fails_each_kind_of_write_of_its_commands_once(tmp_path, monkeypatch):
    walked = Answers({}, {})
    monkeypatch.setattr(walked, "_undisturbed", lambda command: {"places": [1, 7], "changes": 9})
    found = [(case.command, case.fault, 1 + int(case.place * 9)) for case in walked.walk(("ingest", "train"))]
    assert found == [("ingest", "EIO", 1), ("ingest", "EIO", 7), ("train", "EIO", 1), ("train", "EIO", 7)]
    assert set(WALKED) <= set(TORTURED)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", TORTURED)
def test_disturbed_and_repeated_command_equals_an_undisturbed_one(command, tmp_path):
    """Every kind of fault once or more; one minute (ingest) to thirty (two-uis)."""
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
