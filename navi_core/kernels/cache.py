"""How compilers are run, and the cache of what they built: `${XDG_CACHE_HOME:-~/.cache}/navi/kernels/<key>/`.

Processes that start together build once: a build runs under a file lock, in a temporary folder that is renamed
into place.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from navi_core.errors import ConfigError

__all__ = ["SOURCES", "build_key", "built", "cache_root", "run_compiler"]

SOURCES = Path(__file__).parent / "csrc"
"""Folder of the C++ and CUDA sources."""
_TIMEOUT = 300


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


def build_key(sources: Iterable[Path], *parts: str) -> str:
    """Return the key of a build: a hash of its sources and of whatever else decides it (compiler, flags, machine)."""
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in sorted(sources):
        digest.update(f"\0{source.name}\0".encode() + source.read_bytes())
    return digest.hexdigest()[:24]


def run_compiler(command: Sequence[str], unavailable: type[ConfigError]) -> str:
    """Run a compiler and return what it said.

    Args:
        command: Program and arguments.
        unavailable: Raised where it cannot be run, takes more than five minutes or fails; carries the end of what it
            said.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise unavailable(f"{command[0]} could not be run: {error}") from None
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise unavailable(f"{command[0]} failed with code {done.returncode}:\n{said}")
    return done.stdout + done.stderr
