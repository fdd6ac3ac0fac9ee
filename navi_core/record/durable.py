"""Durable, atomic file writes: a file is complete or absent, even after a power cut."""

import abc
import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

_OURS = re.compile(r"\..+\.\d+\.tmp", re.DOTALL)
"""Names of unfinished files of `durable_file`; the last number is the writer's pid."""
_STALE_SECONDS = 3600.0
"""Age above which a temporary file has no living writer [s]."""


def fsync_directory(path: Path) -> None:
    """Fsync a directory's entries (a rename is only durable after this)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Closing(abc.ABC):
    """Abstract base class of context managers whose `close` runs at the end of the `with` block."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release the held resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def durable_file(path: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Context manager of an atomic, durable write: at its end fsync, rename to `path`, fsync of the directory.

    Content goes to the disk at once, so that large content need not be in memory twice.

    Args:
        path: Final name; an existing file is replaced in one step.
        mode: Who may read and write it.

    Raises:
        OSError: It cannot be written. Nothing is left behind under the final or the temporary name, whatever ends it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Some containers run without a umask.
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_directory(path.parent)


def write_durably(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write `data` to `path` atomically and durably, by `durable_file`.

    Raises:
        OSError: Nothing was left behind under the final or the temporary name.
    """
    with durable_file(path, mode) as stream:
        stream.write(data)


def sweep_left(folder: Path) -> None:
    """Remove the temporary files that killed writers left behind.

    Args:
        folder: Of the files. Hidden files of other programs stay.
    """
    for left in folder.glob(".*.tmp"):
        # Others may sweep, or end, at the same time.
        with contextlib.suppress(OSError):
            if _OURS.fullmatch(left.name) and time.time() - left.stat().st_mtime >= _STALE_SECONDS:
                left.unlink()
