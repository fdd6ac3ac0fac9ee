"""Progress and result of an op's function, for the command that executes its run in this process."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import dagster as dg

T = TypeVar("T")


@dataclass
class Follower:
    """Command that follows a run.

    Attributes:
        callbacks: Progress functions by name of the parameter of the op's function.
        result: Result of the function that `performed` has called.
    """

    callbacks: Mapping[str, Callable[[Any], None]]
    result: Any = None


_FOLLOWER: ContextVar[Follower | None] = ContextVar("navi_follower", default=None)


@contextmanager
def following(callbacks: Mapping[str, Callable[[Any], None]]) -> Iterator[Follower]:
    """Context manager in which `performed` reports to these progress functions, and leaves its result."""
    follower = Follower(callbacks)
    token = _FOLLOWER.set(follower)
    try:
        yield follower
    finally:
        _FOLLOWER.reset(token)


def performed(function: Callable[..., T], *values: object, **callbacks: Callable[[Any], None]) -> T:
    """Call an op's function; a command that follows the run hears its progress and gets its result."""
    result = function(*values, **{name: reporting(callback, name) for name, callback in callbacks.items()})
    if (follower := _FOLLOWER.get()) is not None:
        follower.result = result
    return result


def _both(first: Callable[[Any], None], second: Callable[[Any], None] | None) -> Callable[[Any], None]:
    def call(value: object) -> None:
        first(value)
        if second is not None:
            second(value)

    return call


def reporting(callback: Callable[[Any], None], name: str = "report") -> Callable[[Any], None]:
    """Return an op's progress function, which a command that follows the run hears under this name."""
    follower = _FOLLOWER.get()
    return callback if follower is None else _both(callback, follower.callbacks.get(name))


def exit_code(command: Callable[..., None], **options: object) -> int:
    """Call a function of the command line and return its exit code."""
    from typer import Exit

    try:
        command(**options)
    except Exit as ending:
        return ending.exit_code
    return 0


def dagster_step() -> "dg.OpExecutionContext | None":
    """Return the context of the Dagster step that this thread executes; None outside of one."""
    if "dagster" not in sys.modules:
        return None
    import dagster as dg

    try:
        return dg.OpExecutionContext.get()
    except dg.DagsterInvariantViolationError:
        return None
