"""Advisory inter-process file locks (flock); the kernel releases them however the holding process ends."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

from navi_core.errors import NaviError, RunError

_T = TypeVar("_T")
NO_WRITE_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Error codes of a place that this user may not write: by rights, or on a read-only mount."""

_PATIENCE = 0.5
"""Time for which a lock is tried again [s]: `is_locked` takes one for a moment."""


def open_lock(lock: Path, mode: int = 0o664) -> int:
    """Open a lock file, created if missing; return its file descriptor.

    A folder may belong to several people: the group may write to the file where the creator's umask allows it, and a
    user with read access alone can still take the lock.

    Raises:
        OSError: It can neither be created nor read.
    """
    try:
        # Others get no access even without a umask: anyone who can open a lock can hold it for ever.
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in NO_WRITE_ACCESS or not lock.exists():
            raise
        return os.open(lock, os.O_RDONLY | os.O_CLOEXEC)


def try_lock(descriptor: int, seconds: float = 0.0, *, shared: bool = False) -> bool:
    """Try to lock an open file; return False if another process holds it beyond the timeout [s].

    Raises:
        OSError: Files cannot be locked here, as on some network disks.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)


@contextmanager
def wait_for_lock(lock: Path, mode: int = 0o664, *, stop: Callable[[], bool] | None = None) -> Iterator[None]:
    """Context manager that holds a file lock, blocking until it is free.

    Args:
        lock: The file; created where it is missing, and left there.
        mode: Permissions of a new file.
        stop: Polled five times a second while another process holds it; True ends the wait.

    Raises:
        RunError: The wait was ended.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = open_lock(lock, mode)
    try:
        while stop is not None and not try_lock(descriptor, 0.2):
            if stop():
                raise RunError(f"stopped while another process holds {lock}")
        if stop is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def acquire_lock(lock: Path, purpose: str) -> int:
    """Acquire a file lock without waiting; return the file descriptor that holds it.

    Args:
        lock: The file; created where it is missing, and left there.
        purpose: What the lock protects, for messages.

    Raises:
        RunError: Another process holds it; its pid is named.
        OSError: The file cannot be created.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = open_lock(lock)
    try:
        if not try_lock(descriptor, _PATIENCE):
            # The pid is advice for people; the lock itself is what fences, so a stale number does no harm.
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise RunError(f"{purpose} is in use by process {holder}; wait for it, or stop it first")
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            write_at(descriptor, f"{os.getpid()}\n".encode())
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def hold_lock(lock: Path, purpose: str) -> Iterator[None]:
    """Context manager that holds a file lock, acquired without waiting as by `acquire_lock`."""
    descriptor = acquire_lock(lock, purpose)
    try:
        yield
    finally:
        os.close(descriptor)


def is_locked(lock: Path) -> bool:
    """Return whether any process holds a file's lock; a missing file is unlocked.

    Raises:
        OSError: It cannot be opened (too many open files, for instance), so the answer is unknown.
    """
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        # Shared: two processes that look do not take each other for a holder.
        return not try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def create_locked(path: Path, data: bytes, *, without_locks: bool = False) -> int:
    """Create or replace a file, already locked by this process; return the file descriptor that holds the lock.

    The file gets its name once it is locked and written, so no other process finds it without its lock.

    Args:
        path: Its name.
        data: Its first content.
        without_locks: Create it also where files cannot be locked.

    Raises:
        OSError: It cannot be written or locked; nothing is left behind.
    """
    unnamed = path.with_name(f".{path.name.lstrip('.')}.{os.getpid()}.tmp")
    descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with suppress(OSError) if without_locks else nullcontext():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write_at(descriptor, data)
        os.rename(unnamed, path)
    except BaseException:
        os.close(descriptor)
        unnamed.unlink(missing_ok=True)
        raise
    return descriptor


def remove_locked(path: Path, descriptor: int) -> None:
    """Delete a locked file, then release its lock: no other process finds it unlocked."""
    path.unlink(missing_ok=True)
    os.close(descriptor)


def recover_abandoned(paths: Iterable[Path], recover: Callable[[Path], _T], report: Callable[..., None]) -> list[_T]:
    """Recover locked files of killed processes, each with its lock held; return the results.

    Args:
        paths: Files; those of living processes are passed over.
        recover: Recovers a file, and removes it.
        report: Called as a logger with the path and the error of a file that cannot be recovered; the file stays.
    """
    recovered = []
    for path in paths:
        try:
            with path.open("rb") as file:
                # Without a link, its owner ended between the opening and the lock.
                if try_lock(file.fileno()) and os.fstat(file.fileno()).st_nlink:
                    recovered.append(recover(path))
        except (OSError, ValueError, KeyError, TypeError, NaviError) as error:
            report(path, error)
    return recovered


def write_at(descriptor: int, data: bytes, offset: int = 0) -> None:
    """Write all bytes at an offset, with retries of partial writes (a full disk reports its error only on the next)."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
