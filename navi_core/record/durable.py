"""Files that either exist whole or not at all, also after a power cut."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["fsync_directory", "write_durably"]


def fsync_directory(path: Path) -> None:
    """Make the directory's entries durable (a rename is only safe after this)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Write `data` to `path` through a temporary file: fsync, rename, fsync of the directory.

    Args:
        path: Final name; an existing file is replaced in one step.
        data: The whole content.

    Raises:
        OSError: Nothing was left behind under the final or the temporary name.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_directory(path.parent)
