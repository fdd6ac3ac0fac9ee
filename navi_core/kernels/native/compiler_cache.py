"""How compilers are run, and the cache of what they built: `${XDG_CACHE_HOME:-~/.cache}/navi/kernels/<key>/`.

Processes that start together build once: a build runs under a file lock, in a temporary folder that is renamed
into place. What lies there is whole, so it is taken without the lock: a cache may be another user's, or be mounted to
be read. A build is code that is run, so it is taken from this user, the system or whose folder XDG_CACHE_HOME is alone:
in one that all may write to, as /tmp, somebody else could lay it down.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from navi_core.errors import ConfigError

__all__ = ["NO_CACHE", "SOURCES", "build_key", "built", "cache_root", "run_compiler"]

SOURCES = Path(__file__).parents[1] / "csrc"
"""Folder of the C++ and CUDA sources."""
NO_CACHE = "set XDG_CACHE_HOME to a folder that you may write to, on a disk that may hold programs"
"""What to do where a build can be neither kept nor loaded."""
_TIMEOUT = 300


def cache_root() -> Path:
    """Return the folder of all builds.

    Raises:
        FileNotFoundError: No home directory is known for this user.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if root.startswith("~"):
        raise FileNotFoundError(errno.ENOENT, "this user has no home directory", root)
    return Path(root) / "navi" / "kernels"


def built(key: str, name: str, build: Callable[[Path], None], *, again: bool = False) -> Path:
    """Return the path of a build, made if the cache has none.

    Args:
        key: Names what goes into the build: a hash of sources, compiler and flags.
        name: File name of the product.
        build: Writes the product to the path it is given, in a folder of its own.
        again: Build anew, because what the cache holds is damaged.

    Raises:
        OSError: The cache cannot be written, or is partly another user's than its folder.
    """
    root = cache_root()
    folder = root / key
    _refuse_planted(folder / name, root.parent.parent)
    if not again and (folder / name).is_file():
        return folder / name
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if again or not (folder / name).is_file():
            work = Path(tempfile.mkdtemp(prefix=".build-", dir=root))
            try:
                build(work / name)
                # A temporary folder is its maker's alone; a cache may serve others, where the maker's umask lets it.
                work.chmod(0o755)
                if folder.exists():
                    shutil.rmtree(folder)
                work.rename(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder / name


def _refuse_planted(product: Path, home: Path) -> None:
    places = [place for place in (product, *product.parents) if place.is_relative_to(home) and place.exists()]
    trusted = {0, os.geteuid(), *map(_owner, places[-1:])}
    for place in places:
        if _owner(place) not in trusted:
            raise PermissionError(errno.EPERM, f"belongs to another user than {home}", str(place))


def _owner(place: Path) -> int:
    return place.stat().st_uid


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
    # What it says of its version is part of a build's key, which is not to hang on a user's language.
    english = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=english, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise unavailable(f"{command[0]} could not be run: {error}") from None
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise unavailable(f"{command[0]} failed with code {done.returncode}:\n{said}")
    return done.stdout + done.stderr
