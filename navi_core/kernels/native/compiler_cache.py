"""Compiler runs and the cache of compiled kernels: `${XDG_CACHE_HOME:-~/.cache}/navi/kernels/<key>/`.

Processes that start together build once: a build runs under a file lock, in a temporary folder that is renamed
into place. What lies there is whole, so it is taken without the lock: a cache may be another user's, or be mounted to
be read. A build is code that is run, so it is taken from this user, the system or whose folder XDG_CACHE_HOME is alone:
in one that all may write to, as /tmp, somebody else could lay it down. For the same reason nothing is taken from files
and folders that others may write to, whoever owns them; sticky folders, as /tmp, let nobody replace another's files.
"""

import ctypes
import errno
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from navi_core.errors import ConfigError
from navi_core.machine.file_lock import wait_for_lock

SOURCES = Path(__file__).parents[1] / "csrc"
"""Folder of the C++ and CUDA sources."""
NO_CACHE = "set XDG_CACHE_HOME to a folder that you may write to, on a disk that may hold programs"
"""Remedy in error messages if a build can be neither cached nor loaded."""
_TIMEOUT = 300


def cache_root() -> Path:
    """Return the root folder of the compiler cache.

    Raises:
        FileNotFoundError: No home directory is known for this user.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if root.startswith("~"):
        raise FileNotFoundError(errno.ENOENT, "this user has no home directory", root)
    return Path(root) / "navi" / "kernels"


def built(key: str, name: str, build: Callable[[Path], None], *, again: bool = False) -> Path:
    """Return the path of a cached build; compile it on a cache miss.

    Args:
        key: Names what goes into the build: a hash of sources, compiler and flags.
        name: File name of the product.
        build: Writes the product to the path it is given, in a folder of its own.
        again: Rebuild, because what the cache holds is damaged.

    Raises:
        OSError: The cache cannot be written, is partly another user's than its folder, or others may write to it.
    """
    root = cache_root()
    folder, home = root / key, root.parent.parent
    _refuse_planted(folder / name, home)
    if again or not (folder / name).is_file():
        _build_alone(folder, name, build, again=again)
    # Again: what was not there before may have been laid there meanwhile.
    _refuse_planted(folder / name, home)
    return folder / name


def _build_alone(folder: Path, name: str, build: Callable[[Path], None], *, again: bool) -> None:
    root = folder.parent
    # Some containers run without a umask; parents that mkdir makes by itself do not have its mode.
    for place in (root.parent.parent, root.parent, root):
        place.mkdir(0o755, parents=True, exist_ok=True)
    with wait_for_lock(root / f"{folder.name}.lock", mode=0o644):
        if again or not (folder / name).is_file():
            work = Path(tempfile.mkdtemp(prefix=".build-", dir=root))
            try:
                build(work / name)
                (work / name).chmod((work / name).stat().st_mode & 0o755)
                # A temporary folder is its maker's alone; a cache may serve others, where the maker's umask lets it.
                work.chmod(0o755)
                if folder.exists():
                    shutil.rmtree(folder)
                work.rename(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)


def _refuse_planted(product: Path, home: Path) -> None:
    places = [place for place in (product, *product.parents) if place.is_relative_to(home) and place.exists()]
    trusted = {0, os.geteuid(), *(owner for place in places[-1:] for owner in _owners(place))}
    for place in places:
        if not _owners(place) <= trusted:
            raise PermissionError(errno.EPERM, f"belongs to another user than {home}", str(place))
        mode = place.stat().st_mode
        if mode & 0o022 and not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
            way = "chmod go-w" if place == home else "rm -r"
            reason = f"others than its owner may write to it; next: {way} {shlex.quote(str(place))}"
            raise PermissionError(errno.EPERM, reason, str(place))


def _owners(place: Path) -> set[int]:
    """Return the user ids of a file's owner and, if it is a link, of the link's owner, who may redirect it."""
    return {place.stat().st_uid, place.lstat().st_uid}


def build_key(sources: Iterable[Path], *parts: str) -> str:
    """Return the cache key of a build: a hash of its sources and all other inputs (compiler, flags, machine)."""
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in sorted(sources):
        digest.update(f"\0{source.name}\0".encode() + source.read_bytes())
    return digest.hexdigest()[:24]


def declare(library: ctypes.CDLL, result: type | None, signatures: Mapping[str, Sequence[type]]) -> None:
    """Declare the ctypes argument and result types of a library's functions."""
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result


def run_compiler(command: Sequence[str], unavailable: type[ConfigError]) -> str:
    """Run a compiler as a subprocess and return its output.

    Args:
        command: Program and arguments.
        unavailable: Raised where it cannot be run, takes more than five minutes or fails; carries the end of its
            output.
    """
    # The compiler's version is part of a build's key, which must not depend on a user's language.
    english = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=english, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise unavailable(f"{command[0]} could not be run: {error}") from None
    if done.returncode:
        errors = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise unavailable(f"{command[0]} failed with code {done.returncode}:\n{errors}")
    return done.stdout + done.stderr
