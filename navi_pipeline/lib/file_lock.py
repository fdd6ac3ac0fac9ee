"""Locks between processes: held by the kernel on an open file, so whoever is killed does not keep one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["exclusively", "is_held"]


@contextmanager
def exclusively(lock: Path) -> Iterator[None]:
    """Hold a file's lock; the kernel releases it however the holder ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_held(lock: Path) -> bool:
    """Return whether a process holds a file's lock; a file that is not there is held by nobody.

    Raises:
        OSError: It cannot be opened, for want of a descriptor for instance, so that nobody can tell.
    """
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        # Shared, so that two that look do not take each other for a holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
