"""Preloaded shim of a program: fail or kill it at its n-th change of a file, refuse its locks, shift its clock.

A page of memory, shared with all processes of the program, holds what to do and counts the changes (shim.c).
"""

import ctypes
import mmap
import os
import signal
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from navi_core.errors import UnavailableError
from navi_core.kernels.native.compiler_cache import build_key, built, run_compiler
from navi_core.kernels.native.library import NativeUnavailableError, find_compiler

_SOURCE = Path(__file__).with_name("shim.c")
_ENDLESS = 2**62


class _Page(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("changes", "first", "last", "error", "signal", "clock_ns", "fired")),
        *((name, ctypes.c_int64) for name in ("deny_locks", "traced")),
        ("folder", ctypes.c_char * 4024),
    ]


@cache
def library() -> Path:
    """Build the shim with the system's compiler, or take it from the cache of compiled kernels.

    Raises:
        UnavailableError: There is no compiler, or it fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise UnavailableError("no C++ compiler builds the fault shim; next: apt install g++")
    command = [*compiler, "-x", "c", "-O2", "-shared", "-fPIC", str(_SOURCE), "-ldl", "-o"]
    return built(build_key([_SOURCE], *command), "shim.so", lambda target: _compile([*command, str(target)]))


def _compile(command: list[str]) -> None:
    run_compiler(command, NativeUnavailableError)


class Shim:
    """Faults of the programs that start with its `variables`.

    Args:
        page: File of the shared page; written anew.
        folder: Folder whose changes count.
    """

    def __init__(self, page: Path, folder: Path) -> None:
        self._file = page
        # Not truncated: a program may have mapped it.
        descriptor = os.open(page, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, bytes(ctypes.sizeof(_Page)), 0)
            self._page = _Page.from_buffer(mmap.mmap(descriptor, ctypes.sizeof(_Page)))
        finally:
            os.close(descriptor)
        self._page.folder = os.fsencode(folder.resolve())
        self._trace = page.with_suffix(".trace")

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables of a program that the shim acts in."""
        return {"LD_PRELOAD": str(library()), "SHIM_PAGE": str(self._file), "SHIM_TRACE": str(self._trace)}

    @property
    def changes(self) -> int:
        """Number of changes of files so far."""
        return int(self._page.changes)

    @property
    def fired(self) -> int:
        """Number of changes that failed or killed their program."""
        return int(self._page.fired)

    def trace(self) -> None:
        """Count changes from 0, let none fail, and note each."""
        self._trace.unlink(missing_ok=True)
        self.count()
        self._page.traced = True

    def traced(self) -> list[str]:
        """Return the changes since `trace`, in their order: the call and the path, as "write /home/x"."""
        lines = self._trace.read_text().splitlines() if self._trace.exists() else []
        rows = (line.split(" ", 1) for line in lines)
        return [row[1] for row in sorted(rows, key=lambda row: int(row[0]))]

    def fail(self, change: int, error: int, *, lasting: bool = False) -> None:
        """Let a change fail with an error number; `lasting` lets all later ones fail, too, as on a full disk."""
        self._arm(change, _ENDLESS if lasting else change, error, 0)

    def kill(self, change: int) -> None:
        """Kill the program by SIGKILL before a change."""
        self._arm(change, change, 0, signal.SIGKILL)

    def count(self) -> None:
        """Count changes from 0, let none fail and note none."""
        self._page.traced = False
        self._arm(_ENDLESS, 0, 0, 0)

    def shift_clock(self, seconds: float) -> None:
        """Set the difference of the program's wall clock to the machine's [s], at once."""
        self._page.clock_ns = round(seconds * 1e9)

    def deny_locks(self, denied: bool) -> None:
        """Refuse file locks, as a shared disk without a lock server does."""
        self._page.deny_locks = denied

    def _arm(self, first: int, last: int, error: int, sent: int) -> None:
        self._page.changes = self._page.fired = 0
        self._page.error, self._page.signal, self._page.last, self._page.first = error, sent, last, first
