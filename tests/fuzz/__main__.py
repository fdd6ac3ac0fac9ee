"""Coverage-guided fuzzing of one format or all: `make fuzz RUNS=1000000`.

    python -m tests.fuzz [FORMAT …] [--runs N] [--seconds S] [--corpus FOLDER]

Formats take turns, each in a process of its own, until N inputs were tried in all. FOLDER/turns.jsonl has a line per
turn, and an interrupted campaign goes on behind the last one. An input that reaches a new line of its parser joins the
corpus. An input that does not end in a refusal or a value is kept in FOLDER/FORMAT/faults: another exception, a
signal, 20 CPU-seconds, 4 GiB, an open outside of its folder.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from navi_core.errors import NaviError
from navi_pipeline.bench.torture_cases import limit_memory
from tests.fuzz.coverage import Coverage
from tests.fuzz.targets import TARGETS, OutsideError, watch_opens
from tests.scenes.readers.fuzz_meshes import mutate

_SECONDS, _MEMORY, _LARGEST = 20, 4 * 2**30, 2**17


class LateError(BaseException):
    """A parser takes too long; no parser can take it for a broken file."""


class _Fuzzer:
    """Fuzzer of one format, in this process.

    Args:
        name: Format.
        corpus: Folder of all corpora.
        seed: Seed of choices and mutations.
    """

    def __init__(self, name: str, corpus: Path, seed: int) -> None:
        self.target, self._folder = TARGETS[name], corpus / name
        self.coverage = Coverage(self.target.modules)
        self._random = np.random.default_rng(seed)
        self._place = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
        self._file = self._place / f"input{self.target.suffix}"
        self._inside = watch_opens(self._place)
        self._inputs: list[bytes] = []
        self.faults = 0

    def load(self) -> None:
        """Read the corpus; an input that reaches nothing new is removed, the smallest are kept."""
        for file in sorted((self._folder / "inputs").glob("seed-*")):
            self._file.write_bytes(file.read_bytes())
            self.target.read(self._file)  # what is compiled at first use is not the parser's time
        for file in sorted((self._folder / "inputs").iterdir(), key=lambda file: file.stat().st_size):
            data = file.read_bytes()
            if self.try_input(data) or file.name.startswith("seed-"):
                self._inputs.append(data)
            else:
                file.unlink()

    def step(self) -> None:
        """Mutate an input of the corpus and try it."""
        data = self._inputs[int(self._random.integers(len(self._inputs)))]
        if self._random.random() < 0.1:
            other = self._inputs[int(self._random.integers(len(self._inputs)))]
            data = (
                data[: int(self._random.integers(len(data) + 1))] + other[int(self._random.integers(len(other) + 1)) :]
            )
        data = mutate(data, self._random)[:_LARGEST]
        if self.try_input(data):
            self._inputs.append(data)
            (self._folder / "inputs" / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)

    def try_input(self, data: bytes) -> bool:
        """Parse an input; return whether it reaches a new line of the parser. Faults are kept in a file."""
        self._file.write_bytes(data)
        before = len(self.coverage.reached)
        try:
            with _limited(), self._watched():
                self.target.read(self._file)
        except NaviError:
            pass
        except (Exception, LateError, OutsideError):
            self.faults += 1
            kept = self._folder / "faults" / hashlib.sha256(data).hexdigest()[:16]
            kept.parent.mkdir(exist_ok=True)
            kept.with_suffix(self.target.suffix).write_bytes(data)
            kept.with_suffix(".txt").write_text(traceback.format_exc())
        return len(self.coverage.reached) > before

    @contextmanager
    def _watched(self) -> Iterator[None]:
        self._inside(True)
        try:
            yield
        finally:
            self._inside(False)


@contextmanager
def _limited() -> Iterator[None]:
    def late(*_: object) -> None:
        raise LateError(f"longer than {_SECONDS} CPU-seconds")

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def fuzz(name: str, corpus: Path, runs: int, seconds: float = 0.0, seed: int = 0) -> dict[str, Any]:
    """Fuzz one format in this process; return its row: format, inputs, faults, corpus, seconds, coverage."""
    inputs = corpus / name / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(TARGETS[name].seeds(Path(folder))):
            (inputs / f"seed-{number}").write_bytes(data)
    logging.disable()
    warnings.simplefilter("ignore")
    fuzzer, began, done = _Fuzzer(name, corpus, seed), time.monotonic(), 0
    fuzzer.load()
    while done < runs and not (seconds and time.monotonic() - began > seconds):
        fuzzer.step()
        done += 1
    count = sum(1 for _ in inputs.iterdir())
    row = {"format": name, "inputs": done, "faults": fuzzer.faults, "corpus": count}
    return row | {"seconds": round(time.monotonic() - began, 1), "coverage": fuzzer.coverage.shares()}


def campaign(names: list[str], corpus: Path, runs: int, seconds: float) -> int:
    """Give formats turns until so many inputs were tried in all; return the number of faults of the whole campaign."""
    corpus.mkdir(parents=True, exist_ok=True)
    file = corpus / "turns.jsonl"
    turns = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for name in itertools.islice(itertools.cycle(names), len(turns), None):
        left = runs - sum(turn["inputs"] for turn in turns)
        if left <= 0:
            break
        options = ["--runs", left, "--seconds", seconds, "--seed", len(turns), "--corpus", corpus]
        command = [sys.executable, "-m", "tests.fuzz", name, *map(str, options)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        ended = {"format": name, "inputs": 0, "faults": 1, "ended with": done.returncode}
        turns.append(json.loads(done.stdout) if done.returncode in (0, 1) and done.stdout else ended)
        line = json.dumps(turns[-1]) + "\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        with file.open("a") as stream:
            stream.write(line)
    return sum(turn["faults"] for turn in turns)


def main() -> None:
    """Fuzz one format in this process, or several in turns; the exit code is 1 after a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("formats", nargs="*", help="by default all")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs in all")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of a format's turn; 0: no limit")
    parser.add_argument("--seed", type=int, default=0, help="seed of a single format")
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"))
    given = parser.parse_args()
    names, corpus = given.formats or list(TARGETS), given.corpus.absolute()
    if len(names) == 1:
        limit_memory(_MEMORY // 2**20)
        row = fuzz(names[0], corpus, given.runs, given.seconds, given.seed)
        sys.stdout.write(f"{json.dumps(row)}\n")
        sys.exit(bool(row["faults"]))
    sys.exit(campaign(names, corpus, given.runs, given.seconds) > 0)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
