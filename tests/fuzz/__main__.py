"""Coverage-guided fuzzing of one format or all: `make fuzz RUNS=100000`.

    python -m tests.fuzz [FORMAT …] [--runs N] [--seconds S] [--corpus FOLDER]

Each format runs in a process of its own. An input that reaches a new line of its parser joins the corpus, from which
the next run goes on. An input that does not end in a refusal or a value is kept in FOLDER/FORMAT/faults: another
exception, a signal, 20 CPU-seconds, 4 GiB, an open outside of its folder. A line per format has the coverage.
"""

from __future__ import annotations

import argparse
import hashlib
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
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from navi_core.errors import NaviError
from navi_pipeline.bench.torture_cases import limit_memory
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
        self._files = {str(import_module(module).__file__): module for module in self.target.modules}
        self._lines = {file: _lines(compile(Path(file).read_text(), file, "exec")) for file in self._files}
        self._seen: set[tuple[str, int]] = set()
        self._new = False
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
        self._new = False
        try:
            with _limited(), self._traced():
                self.target.read(self._file)
        except NaviError:
            pass
        except (Exception, LateError, OutsideError):
            self.faults += 1
            kept = self._folder / "faults" / hashlib.sha256(data).hexdigest()[:16]
            kept.parent.mkdir(exist_ok=True)
            kept.with_suffix(self.target.suffix).write_bytes(data)
            kept.with_suffix(".txt").write_text(traceback.format_exc())
        return self._new

    def coverage(self) -> dict[str, float]:
        """Return the share of the lines of each module's functions that were reached."""
        return {
            module: round(
                len(self._lines[file] & {line for name, line in self._seen if name == file}) / len(self._lines[file]), 3
            )
            for file, module in self._files.items()
        }

    @contextmanager
    def _traced(self) -> Iterator[None]:
        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code.co_filename not in self._files:
                return None
            if event == "line" and (line := (frame.f_code.co_filename, frame.f_lineno)) not in self._seen:
                self._seen.add(line)
                self._new = True
            return trace

        self._inside(True)
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(None)
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


def _lines(code: CodeType) -> set[int]:
    """Return the lines of all functions within a module's code."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    body = {line for *_, line in code.co_lines() if line} - {code.co_firstlineno}
    own = set() if code.co_name == "<module>" else body
    return own.union(*map(_lines, inner))


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
    return row | {"seconds": round(time.monotonic() - began, 1), "coverage": fuzzer.coverage()}


def main() -> None:
    """Fuzz the chosen formats one after the other, each in a process; the exit code is 1 after a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("formats", nargs="*", help="by default all")
    parser.add_argument("--runs", type=int, default=100_000, help="inputs of each format")
    parser.add_argument("--seconds", type=float, default=0.0, help="most seconds of each format; 0: no limit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"))
    given = parser.parse_args()
    names, failed = given.formats or list(TARGETS), False
    if len(names) == 1:
        limit_memory(_MEMORY // 2**20)
        row = fuzz(names[0], given.corpus.absolute(), given.runs, given.seconds, given.seed)
        sys.stdout.write(f"{json.dumps(row)}\n")
        sys.exit(bool(row["faults"]))
    for name in names:
        options = ["--runs", given.runs, "--seconds", given.seconds, "--seed", given.seed, "--corpus", given.corpus]
        done = subprocess.run([sys.executable, "-m", "tests.fuzz", name, *map(str, options)])
        failed = failed or done.returncode != 0
        if done.returncode not in (0, 1):
            sys.stdout.write(json.dumps({"format": name, "ended with": done.returncode}) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
