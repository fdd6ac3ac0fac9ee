"""Work clock: wall and CPU time of asset and check functions; the rest of a run is orchestration."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Work:
    """Time on the wall, and of processors: this process and its children that have ended [s]."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Work) -> Work:
        return Work(self.wall - other.wall, self.cpu - other.cpu)


_DONE: dict[str, Work] = {}


def now() -> Work:
    """Read both clocks; differences are what counts."""
    return Work(time.monotonic(), sum(os.times()[:4]))


def worked(function: Callable[P, R]) -> Callable[P, R]:
    """Count the time of every call of an asset's or check's function in this process."""

    @functools.wraps(function)
    def timed(*arguments: P.args, **named: P.kwargs) -> R:
        with worked_as(function.__name__):
            return function(*arguments, **named)

    return timed


@contextmanager
def worked_as(name: str) -> Iterator[None]:
    """Count the time of the block as work of `name`."""
    began = now()
    try:
        yield
    finally:
        _DONE[name] = _DONE.get(name, Work()) + (now() - began)


def work_by_name() -> dict[str, Work]:
    """Return the time counted so far, by function."""
    return dict(_DONE)


def reset_work() -> None:
    """Begin to count anew."""
    _DONE.clear()
