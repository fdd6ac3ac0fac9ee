"""Environment variables of this process, and others that hold within a block of code, for two homes in one process."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType

_WITHIN: ContextVar[Mapping[str, str]] = ContextVar("navi_variables", default=MappingProxyType({}))


def variable(name: str) -> str | None:
    """Return the value that the innermost `using_variables` gives to a variable, else that of the environment."""
    return _WITHIN.get().get(name, os.environ.get(name))


def variables() -> dict[str, str]:
    """Return the environment for a child process: that of this process with the variables of `using_variables`."""
    return {**os.environ, **_WITHIN.get()}


def thread_variables() -> Callable[[], object]:
    """Return the initializer of a pool's threads that gives them the variables of this thread."""
    return partial(_WITHIN.set, _WITHIN.get())


@contextmanager
def using_variables(**values: str | None) -> Iterator[None]:
    """Context manager in which variables have other values; None leaves one as it is.

    The environment of the process stays, and other threads do not see the values (see `thread_variables`).
    """
    given = {name: value for name, value in values.items() if value is not None}
    token = _WITHIN.set({**_WITHIN.get(), **given})
    try:
        yield
    finally:
        _WITHIN.reset(token)
