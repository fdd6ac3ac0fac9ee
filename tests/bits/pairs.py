"""Table of pairs: two ways of one computation, and the difference between their results that the page states."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.bits.flights import LEARNERS, State, scene_files

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "concepts" / "same-bits.md"
_HEAD = "| way | equal to the bit | largest difference of a number elsewhere |"
_TRACERS = {"native 8": "AVX2", "native 4": "portable C++", "numba": "numba", "cuda": "CUDA kernels, emulated"}
_TORCH_KINDS = {"AVX-512": "avx512", "AVX2": "avx2", "portable": "default"}


@dataclass(frozen=True)
class Pair:
    """Two ways of one computation.

    Attributes:
        ways: What differs between them, such as "killed twice and resumed".
        subject: Learner, or "environment".
        other: Runs the second way in a folder with the scenes' files; the first is the plain run.
    """

    ways: str
    subject: str
    other: Callable[[Path, list[Path]], State]


def apart(one: State, other: State) -> float:
    """Return the largest difference of a number, or of labels the fraction that differs; infinity for other shapes."""
    if one.keys() != other.keys() or any(one[name].shape != other[name].shape for name in one):
        return float("inf")
    return max(_difference(one[name], other[name]) for name in one)


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    unequal = one != other
    if not one.is_floating_point():
        return float(unequal.double().mean())
    return float((one.double() - other.double()).abs().masked_fill(~unequal, 0.0).max())


def flown(
    folder: Path, scenes: list[Path], variables: Mapping[str, str] | None = None, ends: int = 0, **options: Any
) -> State:
    """Train or fly in a process of its own; return its state, empty where it was killed."""
    given = json.dumps(options | {"scenes": [str(file) for file in scenes]})
    command = [sys.executable, "-m", "tests.bits.flights", str(folder), given]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != ends:
        raise AssertionError(f"{options} ended with {done.returncode}: {done.stderr[-2000:]}")
    return {} if ends else torch.load(folder / "state.pt")


def _killed(learner: str) -> Callable[[Path, list[Path]], State]:
    def run(folder: Path, scenes: list[Path]) -> State:
        for update in (2, 1):
            flown(folder, scenes, ends=-signal.SIGKILL, learner=learner, kill=update)
        return flown(folder, scenes, learner=learner)

    return run


def _with(variables: Mapping[str, str] | None = None, **options: Any) -> Callable[[Path, list[Path]], State]:
    return lambda folder, scenes: flown(folder, scenes, variables, **options)


def _two_processes(learner: str) -> Callable[[Path, list[Path]], State]:
    def run(folder: Path, scenes: list[Path]) -> State:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        base = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        given = json.dumps({"learner": learner, "scenes": [str(file) for file in scenes]})
        made = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.bits.flights", str(folder), given],
                env=base | {"MASTER_PORT": str(port), "RANK": str(rank)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        for process in made:
            _, error = process.communicate(timeout=300)
            assert process.returncode == 0, error[-2000:]
        return torch.load(folder / "state.pt")

    return run


def pairs() -> list[Pair]:
    """Return all pairs of this machine: variants of a processor that it lacks are left out."""
    found = []
    for learner in LEARNERS:
        flies = learner in ("ppo", "grpo", "dqn", "dpo")
        found.append(Pair("the same command twice", learner, _with(learner=learner)))
        found.append(Pair("killed twice and resumed", learner, _killed(learner)))
        found.append(Pair("two threads", learner, _with(learner=learner, threads=2)))
        if learner == "ppo":
            found.append(Pair("two processes", learner, _two_processes(learner)))
        for name, kind in _TORCH_KINDS.items():
            variables = {
                "ATEN_CPU_CAPABILITY": kind,
                "MKL_ENABLE_INSTRUCTIONS": kind.upper().replace("DEFAULT", "SSE4_2"),
            }
            found.append(Pair(f"{name} matrix products", learner, _with(variables, learner=learner)))
        for tracer in _TRACERS if flies else ():
            found.append(Pair(f"rays by {_TRACERS[tracer]}", learner, _with(learner=learner, tracer=tracer)))
    found.append(Pair("rows split among environments", "environment", _with(environment=True, parts=(1, 3, 2))))
    found.append(Pair("two threads", "environment", _with(environment=True, threads=2)))
    for tracer in _TRACERS:
        variant = _with(environment=True, tracer=tracer)
        found.append(Pair(f"rays by {_TRACERS[tracer]}", "environment", variant))
    return found


def measure(folder: Path, subjects: Sequence[str] = ()) -> Iterator[tuple[str, str, float]]:
    """Yield way, subject and largest difference of each pair, or of those of some subjects."""
    scenes, plain = scene_files(folder), dict[str, State]()
    for number, pair in enumerate(each for each in pairs() if not subjects or each.subject in subjects):
        if pair.subject not in plain:
            options = {"environment": True} if pair.subject == "environment" else {"learner": pair.subject}
            plain[pair.subject] = flown(folder / f"plain {pair.subject}", scenes, **options)
        yield pair.ways, pair.subject, apart(plain[pair.subject], pair.other(folder / str(number), scenes))


def stated() -> dict[tuple[str, str], float]:
    """Return the differences that the page states: (way, subject) → largest difference of a number, 0 for the bits."""
    found: dict[tuple[str, str], float] = {}
    rows = PAGE.read_text().partition(_HEAD)[2].partition("\n\n")[0].splitlines()[2:]
    for ways, equal, others in ([cell.strip() for cell in row.strip("|").split("|")] for row in rows):
        found |= {(ways, subject): 0.0 for subject in equal.split(", ") if subject}
        found |= {(ways, name): float(most) for name, _, most in (x.rpartition(" ") for x in others.split(", ") if x)}
    return found


def write_page(found: Mapping[tuple[str, str], float]) -> None:
    """Put measured differences into the page's table."""
    rows = []
    for ways in dict.fromkeys(ways for ways, _ in found):
        here = {subject: most for (name, subject), most in found.items() if name == ways}
        equal = ", ".join(subject for subject, most in here.items() if not most)
        others = ", ".join(f"{subject} {most:.1g}" for subject, most in here.items() if most)
        rows.append(f"| {ways} | {equal} | {others} |")
    before, head, after = PAGE.read_text().partition(_HEAD)
    table = "\n".join((head, "|---|---|---|", *rows))
    PAGE.write_text(before + table + "\n\n" + after.partition("\n\n")[2])
