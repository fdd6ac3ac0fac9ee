"""What may be read into memory at once."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from navi_core.errors import DemoError

__all__ = ["require_memory"]

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
    have = _memory()
    if have is not None and need > _SHARE * have:
        raise DemoError(
            f"needs {need / 2**30:.1f} GiB of memory, this machine has {have / 2**30:.1f}; {remedy}", path=path
        )


def _memory() -> int | None:
    """Return the memory of the machine, or of the container that this is [B]; None where the system does not tell."""
    found = []
    if "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):
        # Not what is left of it: files that were read count as taken there, and are given back when needed.
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found, default=None)
