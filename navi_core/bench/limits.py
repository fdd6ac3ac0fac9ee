"""Bounds of memory for one measurement, and one error for every way in which memory runs out."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["limit_memory", "memory_faults"]

_WORDS = ("allocate memory", "out of memory", "bad_alloc", "Cannot allocate")
"""How torch, C++ and the system say that memory ran out; torch raises a plain RuntimeError on the CPU."""


@contextmanager
def limit_memory(gibibytes: float | None) -> Iterator[None]:
    """Bound the address space of this process within the block.

    Args:
        gibibytes: Most that it may take, what it has already included [GiB]; None: no bound.
    """
    if gibibytes is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = int(gibibytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def memory_faults() -> Iterator[None]:
    """Turn what torch and C++ raise where memory runs out into `MemoryError`.

    Raises:
        MemoryError: Memory ran out in the block.
    """
    try:
        yield
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        if any(words in str(error) for words in _WORDS):
            raise MemoryError(first) from error
        raise
