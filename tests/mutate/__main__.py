"""Mutation testing of a room: `make mutate ROOM=world N=100`.

    python -m tests.mutate ROOM [--number N] [--seed S] [--folder FOLDER] [--budget SECONDS] [--seconds S]
        [--tests FOLDER ...]
    python -m tests.mutate kernels

The first start runs the default suite once, in one process, and notes which tests reach which statements. Then a
sample of mutants, stratified by module, is drawn from the seed. Each runs in a fork in which the mutated function is
replaced, with the fastest tests that reach it. A test that kills must pass without a mutant. FOLDER/ROOM.jsonl has a
line per mutant, and an interrupted campaign goes on. Left out are what only a subprocess of a test runs, numba's
functions, and statements outside of functions. The mutants of the kernels are a table: kernels.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from navi_core.evaluate.statistics import binomial_bounds
from tests.mutate.kernels import kernel_campaign
from tests.mutate.mutations import Mutant, apply, mutants_of
from tests.mutate.rooms import ROOMS, ROOT, ReachMap, modules_of, reach_map

_MEMORY = 16 * 2**30
"""Address space of a mutant (bytes): it may allocate without end."""
_UNKNOWN = (4, 5)
"""Exit codes of pytest where it finds no test."""
KILLED = ("killed", "late")
Row = dict[str, Any]


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


def tried(mutant: Mutant | None, tests: list[str], seconds: float) -> tuple[str, str]:
    """Run tests against a mutant, or without one, in a fork.

    Returns:
        killed, survived, late, not reached or not applied; and the test that failed, if there is one.
    """
    if not tests:
        return "not reached", ""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = 70
        try:
            code = _child(mutant, tests, writer)
        finally:
            os._exit(code)
    os.close(writer)
    deadline = time.monotonic() + seconds
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.killpg(child, 9)
            os.waitpid(child, 0)
            os.close(reader)
            return "late", ""
        time.sleep(0.05)
    with os.fdopen(reader) as stream:
        failed = stream.readline().strip()
    code = os.waitstatus_to_exitcode(done[1])
    if code == 99:
        return "not applied", ""
    return ("survived" if code == 0 else "unknown tests" if code in _UNKNOWN else "killed"), failed


def _child(mutant: Mutant | None, tests: list[str], writer: int) -> int:
    """Run tests in this process, quietly; write the first that fails."""
    import pytest

    class Failed:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                os.write(writer, f"{report.nodeid}\n".encode())

    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    if mutant is not None and not apply(mutant):
        return 99
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests], plugins=[Failed()]))


def judged(mutant: Mutant, room: str, reach: ReachMap, budget: float, proven: dict[str, bool]) -> Row:
    """Return the row of a mutant; `proven` says of tests that killed whether they pass without a mutant."""
    began = time.monotonic()
    while True:
        left_out = {name for name, passes in proven.items() if not passes}
        tests = reach.chosen(mutant, room, budget, left_out)
        usual = sum(reach.seconds[name] for name in tests)
        outcome, failed = tried(mutant, tests, 60 + 10 * usual)
        if not failed or failed not in reach.seconds:
            break
        if failed not in proven:
            proven[failed] = tried(None, [failed], 600)[0] == "survived"
        if proven[failed]:
            break
    if outcome == "unknown tests" and tried(None, tests, 60 + 10 * usual)[0] == "survived":
        outcome = "killed"  # a module of tests cannot be imported any more
    seconds = round(time.monotonic() - began, 1)
    found = {"outcome": outcome, "failed": failed, "seconds": seconds}
    return vars(mutant) | {"tests": len(tests), "chosen": _digest(tests)} | found


def _digest(tests: list[str]) -> str:
    return hashlib.sha256("\n".join(tests).encode()).hexdigest()[:16]


def campaign(room: str, number: int, seed: int, folder: Path, budget: float, suite: list[str]) -> Iterator[Row]:
    """Yield the rows of a room's sample: those of earlier starts, but for survivors that other tests reach now."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{room}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    known = {(row["module"], row["number"]): row for row in map(json.loads, lines)}
    reach = reach_map(folder / "reach", suite)
    for module in (*modules_of(room), "pytest", "torch", "tests.conftest"):
        import_module(module)
    proven: dict[str, bool] = {}
    for mutant in sample(room, number, seed):
        row = known.get((mutant.module, mutant.number))
        if row is None or (
            row["outcome"] not in KILLED and row["chosen"] != _digest(reach.chosen(mutant, room, budget, set()))
        ):
            row = judged(mutant, room, reach, budget, proven)
            with file.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
        yield row


def equivalents() -> dict[tuple[str, str, str], str]:
    """Return (module, statement, text) → the reason why no test can notice such a mutant."""
    rows = yaml.safe_load(Path(__file__).with_name("equivalent.yaml").read_text()) or []
    return {(row["module"], row["statement"], row["text"]): row["reason"] for row in rows}


def main() -> None:
    """Run a room's campaign; print its survivors and the killed fraction with its exact lower 95 % bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("room", choices=[*ROOMS, "kernels"])
    parser.add_argument("--number", type=int, default=100, help="mutants in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=ROOT / "build/mutants")
    parser.add_argument("--budget", type=float, default=20.0, help="CPU time of the tests of a mutant, unchanged (s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no further mutant begins (s)")
    parser.add_argument(
        "--tests", nargs="*", default=["tests"], help="folders of the suite that is run, with those below"
    )
    given = parser.parse_args()
    began = time.monotonic()
    folder = given.folder.absolute()
    os.chdir(ROOT)  # tests have their names from here
    rows = (
        kernel_campaign(folder)
        if given.room == "kernels"
        else campaign(given.room, given.number, given.seed, folder, given.budget, given.tests)
    )
    known = equivalents()
    counts = dict.fromkeys((*KILLED, "survived", "not reached", "equivalent"), 0)
    for row in rows:
        reason = known.get((row["module"], row["statement"], row["text"]))
        outcome = "equivalent" if reason and row["outcome"] not in KILLED else row["outcome"]
        counts[outcome] = counts.get(outcome, 0) + 1
        if outcome not in KILLED:
            place = f"{row['module']}:{row['line']}: {row['text']}"
            sys.stdout.write(f"{outcome}: {place}{f' ({reason})' if reason else ''}\n")
            sys.stdout.flush()
        if time.monotonic() - began > given.seconds:
            break
    count, killed = sum(counts.values()) - counts["equivalent"], sum(counts[name] for name in KILLED)
    low = binomial_bounds(killed, count)[0]
    sys.stdout.write(f"{given.room}: {killed} of {count} killed, at least {low:.1%} (one-sided 95 %); {counts}\n")


if __name__ == "__main__":
    main()
