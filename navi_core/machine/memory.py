"""Memory limit of this process."""

import contextlib
import os
from pathlib import Path

from navi_core.machine.control_groups import groups_around

_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""Of each version of the groups: limit, present use, and the name of what is kept of files in `memory.stat`."""


def whole_memory() -> int | None:
    """Return the machine's memory, or that of the smallest group around this process [B]; None where unknown.

    Not what is left of it: files that were read count as taken, and are given back when needed.
    """
    found = [limit for limit, _ in group_limits()]
    if "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def group_limits() -> list[tuple[int, int]]:
    """Return limit and present use [B] of every control group around this process that has a limit.

    What of files is kept in memory and not in use is given back when needed, so it does not count.
    """
    found = []
    for version, group in groups_around("memory"):
        limit, use, cache = _FILES[version]
        # "max" is no limit.
        with contextlib.suppress(OSError, ValueError):
            most, taken = int((group / limit).read_text()), int((group / use).read_text())
            found.append((most, max(taken - _kept(group / "memory.stat", cache), 0)))
    return found


def _kept(stat: Path, cache: str) -> int:
    """Return what a group keeps of files [B]; nothing where it does not report it, as in a sandbox."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(dict(line.split() for line in stat.read_text().splitlines())[cache])
    return 0
