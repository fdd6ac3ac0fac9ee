"""The cache of built kernels: `${XDG_CACHE_HOME:-~/.cache}/navi/kernels/<key>/`.

Processes that start together build once: a build runs under a file lock, in a temporary folder that is renamed
into place.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["SOURCES", "built", "cache_root"]

SOURCES = Path(__file__).parent / "csrc"
"""Folder of the C++ and CUDA sources."""


def cache_root() -> Path:
    """Return the folder of all builds."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "navi" / "kernels"


def built(key: str, name: str, build: Callable[[Path], None], *, again: bool = False) -> Path:
    """Return the path of a build, made if the cache has none.

    Args:
        key: Names what goes into the build: a hash of sources, compiler and flags.
        name: File name of the product.
        build: Writes the product to the path it is given, in a folder of its own.
        again: Build anew, because what the cache holds is damaged.

    Raises:
        OSError: The cache cannot be written.
    """
    root = cache_root()
    folder = root / key
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if again or not (folder / name).is_file():
            work = Path(tempfile.mkdtemp(prefix=".build-", dir=root))
            try:
                build(work / name)
                if folder.exists():
                    shutil.rmtree(folder)
                work.rename(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder / name
