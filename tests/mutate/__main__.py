"""Mutation testing of a room: `make mutate ROOM=world N=100`.

    python -m tests.mutate ROOM [--number N] [--seed S] [--folder FOLDER]

The first start runs the room's tests once and notes which of them reach which statements. Then a sample of mutants,
stratified by module, is drawn from the seed. Each runs in a fork in which the mutated function is replaced, with the
tests that reach it, the fastest first. FOLDER/ROOM.jsonl has a line per mutant, and an interrupted campaign goes on.
Left out are what only a subprocess of a test runs, numba's functions, and statements outside of functions.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from navi_core.evaluate.statistics import binomial_bounds
from tests.mutate.mutations import Mutant, apply, mutants_of

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {
    "world": ("navi_core/world", "tests/world"),
    "learn": ("navi_core/learn", "tests/learn"),
    "evaluate": ("navi_core/evaluate", "tests/evaluate"),
    "record": ("navi_core/record", "tests/record tests/service/web/test_recordings.py"),
    "warehouse": ("navi_pipeline/lib/warehouse", "tests/pipeline/warehouse"),
}
"""Room → its folder, and its tests."""
_BUDGET = 60.0
"""CPU time of the tests of a mutant, as they took unchanged (s); the fastest are taken."""
Row = dict[str, Any]


def modules_of(room: str) -> list[str]:
    """Return the modules of a room."""
    files = sorted((ROOT / ROOMS[room][0]).rglob("*.py"))
    return [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]


def reach_of(room: str, file: Path) -> dict[str, Row]:
    """Return which tests reach which statements, from a file or measured now."""
    if not file.exists():
        variables = {"MUTATE_MODULES": ",".join(modules_of(room)), "MUTATE_REACH": str(file)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.mutate.reach", *ROOMS[room][1].split()]
        subprocess.run(command, env={**os.environ, **variables}, cwd=ROOT, check=False)
    return dict(json.loads(file.read_text()))


def sample(room: str, number: int, seed: int) -> list[Mutant]:
    """Draw mutants, from each module in proportion to its own; a larger number continues a smaller one."""
    draw = random.Random(f"{seed} {room}")
    every = [
        ((rank + draw.random()) / len(found), mutant)
        for module in modules_of(room)
        if (found := mutants_of(module))
        for rank, mutant in enumerate(draw.sample(found, len(found)))
    ]
    every.sort(key=lambda pair: pair[0])
    return [mutant for _, mutant in every[:number]]


def chosen_tests(mutant: Mutant, reach: dict[str, Row]) -> list[str]:
    """Return the fastest tests that reach a mutant, within the budget."""
    found = sorted(
        (row["seconds"], name) for name, row in reach.items() if mutant.line in row["lines"].get(mutant.module, ())
    )
    spent, chosen = 0.0, []
    for seconds, name in found:
        spent += seconds
        if spent > _BUDGET and chosen:
            break
        chosen.append(name)
    return chosen


def tried(mutant: Mutant, tests: list[str], seconds: float) -> str:
    """Run tests against a mutant in a fork; return killed, survived, late or not reached."""
    if not tests:
        return "not reached"
    child = os.fork()
    if child == 0:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        code = 70
        try:
            import pytest

            apply(mutant)
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]))
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.killpg(child, 9)
            os.waitpid(child, 0)
            return "late"
        time.sleep(0.05)
    return "survived" if os.waitstatus_to_exitcode(done[1]) == 0 else "killed"


def campaign(room: str, number: int, seed: int, folder: Path) -> Iterator[Row]:
    """Yield the rows of a room's sample, those of earlier starts first."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{room}.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    yield from rows[:number]
    reach = reach_of(room, folder / f"{room}-reach.json")
    for module in (*modules_of(room), "pytest", "torch", "tests.conftest"):
        import_module(module)
    for mutant in sample(room, number, seed)[len(rows) :]:
        tests = chosen_tests(mutant, reach)
        usual = sum(reach[name]["seconds"] for name in tests)
        began = time.monotonic()
        row = vars(mutant) | {"tests": len(tests), "outcome": tried(mutant, tests, 60 + 10 * usual)}
        row["seconds"] = round(time.monotonic() - began, 1)
        with file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        yield row


def main() -> None:
    """Run a room's campaign; print its survivors and the killed fraction with its exact lower 95 % bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("room", choices=list(ROOMS))
    parser.add_argument("--number", type=int, default=100, help="mutants in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("build/mutants"))
    given = parser.parse_args()
    killed = count = 0
    for row in campaign(given.room, given.number, given.seed, given.folder.absolute()):
        count += 1
        killed += row["outcome"] in ("killed", "late")
        if row["outcome"] not in ("killed", "late"):
            sys.stdout.write(f"{row['outcome']}: {row['module']}:{row['line']}: {row['text']}\n")
            sys.stdout.flush()
    low = binomial_bounds(killed, count)[0]
    sys.stdout.write(f"{given.room}: {killed} of {count} killed, at least {low:.1%} (one-sided 95 %)\n")


if __name__ == "__main__":
    main()
