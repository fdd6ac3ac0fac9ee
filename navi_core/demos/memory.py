"""Memory limits of demonstrations: refusal of what is too large, memory-mapped arrays beyond that."""

import logging
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import DemoError
from navi_core.machine import whole_memory
from navi_core.record import navi_home

Allocate = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]
"""Makes an array of a shape and a type; nothing is in it yet."""
_LOG = logging.getLogger("navi.demos")

_SHARE = 0.7
"""Share of the memory that demonstrations may take."""


def require_memory(need: int, path: Path, remedy: str) -> None:
    """Refuse an array that would take most of the memory.

    Args:
        need: Size of the array [B].
        path: Its file or folder, for the message.
        remedy: What to do instead, for the message.

    Raises:
        DemoError: It needs more than 70 % of the memory of this process.
    """
    have = whole_memory()
    if have is not None and need > _SHARE * have:
        raise DemoError(
            f"needs {need / 2**30:.1f} GiB of memory, this machine has {have / 2**30:.1f}; {remedy}", path=path
        )


def array_allocator(need: int, folder: Path, remedy: str) -> Allocate:
    """Return an allocator of arrays: in memory, or memory-mapped where memory is too small.

    The mapped files lie in the Navi home without a name, so they vanish with the process, however it ends.

    Args:
        need: Size of all arrays [B].
        folder: The dataset, for messages.
        remedy: What to do where the disk is too small as well, for the message.

    Raises:
        DemoError: Neither memory nor disk has the room.
    """
    have = whole_memory()
    if have is None or need <= _SHARE * have:
        return np.empty
    home = navi_home()
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free
    sizes = f"{need / 2**30:.1f} GiB, of which memory holds {_SHARE * have / 2**30:.1f}"
    if need > _SHARE * free:
        raise DemoError(f"needs {sizes} and the disk of {home} {_SHARE * free / 2**30:.1f}; {remedy}", path=folder)
    _LOG.warning("%s: %s; the decisions are put into a file in %s and read from there", folder, sizes, home)

    def mapped(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            with tempfile.TemporaryFile(dir=home) as file:
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):
                    # Taken now: a disk that is full later would end the process without a word.
                    os.posix_fallocate(file.fileno(), 0, size)
                return np.asarray(np.memmap(file, dtype, "r+", shape=shape))
        except OSError as error:
            raise DemoError(f"no room for {sizes}: {error.strerror or error}; {remedy}", path=folder) from error

    return mapped
