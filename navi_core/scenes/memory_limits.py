"""What memory the system lets this process have: a container's or a job's share is less than the machine's."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["group_limits", "whole_memory"]

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def whole_memory() -> int | None:
    """Return the machine's memory, or that of the smallest group around this process [B]; None where nobody tells.

    Not what is left of it: files that were read count as taken, and are given back when needed.
    """
    found = [limit for limit, _ in group_limits()]
    if "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def group_limits() -> list[tuple[int, int]]:
    """Return limit and present use [B] of every control group around this process that has a limit.

    A container sees its group as the root; jobs of Slurm, systemd and older systems (version 1) lie deeper. What of
    files is kept in memory and not in use is given back when needed, so it does not count.
    """
    found = []
    with contextlib.suppress(OSError):
        for line in os.fsdecode(_OWN.read_bytes()).splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                root, limit, use, cache = _GROUPS, "memory.max", "memory.current", "inactive_file"
            elif "memory" in controllers.split(","):
                root, limit, use = _GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
                cache = "total_inactive_file"
            else:
                continue
            folder = root / path.lstrip("/")
            for group in (folder, *folder.parents):
                # "max" is no limit; what lies outside of a container cannot be seen from within.
                with contextlib.suppress(OSError, ValueError):
                    most, taken = int((group / limit).read_text()), int((group / use).read_text())
                    found.append((most, max(taken - _kept(group / "memory.stat", cache), 0)))
                if group == root:
                    break
    return found


def _kept(stat: Path, cache: str) -> int:
    """Return what a group keeps of files [B]; nothing where it does not tell, as in a sandbox."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(dict(line.split() for line in stat.read_text().splitlines())[cache])
    return 0
