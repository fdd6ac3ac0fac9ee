"""Locks between processes: held by the kernel on an open file, so whoever is killed does not keep one."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from navi_core.errors import RunError

__all__ = ["NOT_FOR_THIS_USER", "alone", "exclusively", "is_held", "lock_file", "locked_within", "taken_alone"]

NOT_FOR_THIS_USER = (errno.EACCES, errno.EPERM, errno.EROFS)
"""What the system says where this user may not write: by rights, or since all is mounted to be read."""

_PATIENCE = 0.5
"""Time for which a lock is asked for again [s]: who looks whether it is held holds it for a moment."""


def lock_file(lock: Path) -> int:
    """Open the file of a lock, made where it is missing; return its descriptor.

    A folder may belong to several people: the group may write to the file where the maker's umask lets it, and who may
    only read it takes the lock all the same.

    Raises:
        OSError: It can neither be made nor read.
    """
    try:
        # For nobody else, where there is no umask: whoever opens a lock can hold it for good.
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
    except OSError as error:
        if error.errno not in NOT_FOR_THIS_USER or not lock.exists():
            raise
        return os.open(lock, os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def exclusively(lock: Path) -> Iterator[None]:
    """Hold a file's lock; the kernel releases it however the holder ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = lock_file(lock)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def locked_within(descriptor: int, seconds: float) -> bool:
    """Take an open file's lock; false where another process holds it for so long [s]."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)


def taken_alone(lock: Path, what: str) -> int:
    """Take a file's lock and return the open file that holds it, or say who holds it.

    Args:
        lock: The file; made where it is missing, and left there.
        what: What the lock is for, in messages.

    Raises:
        RunError: Another process holds it; its pid is named.
        OSError: The file cannot be made.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = lock_file(lock)
    try:
        if not locked_within(descriptor, _PATIENCE):
            # The pid is advice for people; the lock itself is what fences, so a stale number does no harm.
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise RunError(f"{what} is in use by process {holder}; wait for it, or stop it first")
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def alone(lock: Path, what: str) -> Iterator[None]:
    """Hold a file's lock as `taken_alone` does; the kernel releases it however the holder ends."""
    descriptor = taken_alone(lock, what)
    try:
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
