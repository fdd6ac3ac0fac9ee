"""How much time the bodies of assets and checks take; what a run takes besides is orchestration."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["reset_work", "work_by_name", "worked", "worked_as"]

F = TypeVar("F", bound=Callable[..., Any])

_SECONDS: dict[str, float] = {}


def worked(function: F) -> F:
    """Count the time of every call of an asset's or check's function in this process."""

    @functools.wraps(function)
    def timed(*arguments: Any, **named: Any) -> Any:
        with worked_as(function.__name__):
            return function(*arguments, **named)

    return timed  # type: ignore[return-value]


@contextmanager
def worked_as(name: str) -> Iterator[None]:
    """Count the time of the block as work of `name`."""
    began = time.monotonic()
    try:
        yield
    finally:
        _SECONDS[name] = _SECONDS.get(name, 0.0) + time.monotonic() - began


def work_by_name() -> dict[str, float]:
    """Return the seconds counted so far, by function."""
    return dict(_SECONDS)


def reset_work() -> None:
    """Begin to count anew."""
    _SECONDS.clear()
