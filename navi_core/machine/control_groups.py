"""The control groups of Linux around this process, where its limits are written."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def groups_around(controller: str) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of every group around this process that may limit something, innermost first.

    A container sees its group as the root; jobs of Slurm, systemd and older systems (version 1) lie deeper. What lies
    outside of a container cannot be seen from within, so a folder need not be there.

    Args:
        controller: What is limited, by its name in version 1: memory or cpu.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in os.fsdecode(_OWN.read_bytes()).splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                version, root = 2, _GROUPS
            elif controller in controllers.split(","):
                version, root = 1, _GROUPS / controller
            else:
                continue
            folder = root / path.lstrip("/")
            for group in (folder, *folder.parents):
                yield version, group
                if group == root:
                    break
