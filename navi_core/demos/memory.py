"""What may be read into memory at once, and where the rest goes."""

from __future__ import annotations

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

__all__ = ["Allocate", "arrays_of", "require_memory"]

Allocate = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]
"""Makes an array of a shape and a type; nothing is in it yet."""
_LOG = logging.getLogger("navi.demos")

_SHARE = 0.7
"""Share of the memory that demonstrations may take."""


def require_memory(need: int, path: Path, remedy: str) -> None:
    """Refuse what would not fit beside everything else.

    Args:
        need: How much it takes [B].
        path: Which file or folder.
        remedy: What to do instead.

    Raises:
        DemoError: It is more than most of what this process may have.
    """
    have = whole_memory()
    if have is not None and need > _SHARE * have:
        raise DemoError(
            f"needs {need / 2**30:.1f} GiB of memory, this machine has {have / 2**30:.1f}; {remedy}", path=path
        )


def arrays_of(need: int, folder: Path, remedy: str) -> Allocate:
    """Return what makes arrays: in memory, or in files where they are more than it holds.

    The files lie in the Navi home without a name, so they are gone with the process, however it ends.

    Args:
        need: Size of all of them [B].
        folder: Whose they are; named in messages.
        remedy: What to do where the disk does not hold them either.

    Raises:
        DemoError: It does not.
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
