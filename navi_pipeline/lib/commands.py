"""Progress and result of an op's function, for the command that executes its run in this process."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import dagster as dg

T = TypeVar("T")


_FOLLOWER: ContextVar[Mapping[str, Callable[[Any], None]]] = ContextVar("navi_follower")
"""Progress functions of the command that follows the run, by parameter of the op's function, and `result`."""


@contextmanager
def following(callbacks: Mapping[str, Callable[[Any], None]]) -> Iterator[None]:
    """Context manager in which `performed` reports to these progress functions, and its result to `result`."""
    token = _FOLLOWER.set(callbacks)
    try:
        yield
    finally:
        _FOLLOWER.reset(token)


def performed(function: Callable[..., T], *values: object, **callbacks: Callable[[Any], None]) -> T:
    """Call an op's function; a command that follows the run hears its progress and gets its result."""
    result = function(*values, **{name: reporting(callback, name) for name, callback in callbacks.items()})
    reporting(lambda _: None, "result")(result)
    return result


def reporting(callback: Callable[[Any], None], name: str = "report") -> Callable[[Any], None]:
    """Return an op's progress function, which a command that follows the run hears under this name."""
    heard = _FOLLOWER.get({}).get(name)

    def call(value: object) -> None:
        callback(value)
        if heard is not None:
            heard(value)

    return call


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
