"""Resource limits of this process: cgroups, cores and memory, and the cache folder of numba's compiled code.

A container with `--cpus=2` on a machine of 64 cores may run on each of them, but is stopped for the rest of every tenth
of a second once its threads together have used up their share: 64 threads are slower there than two. The control groups
of Linux around a process hold its limits.

numba keeps its code in the installation, else in the user's cache, and ends every import where it may write to neither:
a user without a home whose Navi belongs to another, as in many containers. Such a process gets its own folder.
"""

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def groups_around(controller: str) -> Iterator[tuple[int, Path]]:
    """Yield (version, folder) of every cgroup of this process that may set a limit, innermost first.

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


_THREADS = {"torch": "OMP_NUM_THREADS", "numba": "NUMBA_NUM_THREADS"}
"""Libraries that start a thread for each core of the machine, and what they read when they are imported."""


def usable_cores() -> int:
    """Return the CPU cores that this process may use, by affinity and cgroup quota, ≥ 1."""
    quotas = [quota for version, group in groups_around("cpu") if (quota := _quota(version, group)) is not None]
    return max(1, min([_affinity(), *(math.ceil(quota) for quota in quotas)]))


def limit_threads() -> None:
    """Limit the thread pools of not yet imported libraries to the usable cores.

    User-set variables stay. Call it before torch and numba are imported.
    """
    cores = usable_cores()
    if cores < _affinity():
        for library, variable in _THREADS.items():
            if library not in sys.modules:
                os.environ.setdefault(variable, str(cores))


def chosen_threads() -> set[str]:
    """Return the thread-count environment variables that the user has set.

    Excludes what `limit_threads` set, in this process or in its parent.
    """
    cores = usable_cores()
    given = str(cores) if cores < _affinity() else None
    return {variable for variable in _THREADS.values() if os.environ.get(variable) not in (None, given)}


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _quota(version: int, group: Path) -> float | None:
    """Return the CPU quota of a cgroup [processor seconds per second]; None where unlimited or not reported."""
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        if version == 2:
            share, period = (group / "cpu.max").read_text().split()
        else:
            share, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        # "max" and -1 are no limit.
        if float(share) > 0:
            return float(share) / float(period)
    return None


_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""Of each version of the groups: limit, present use, and the name of what is kept of files in `memory.stat`."""


def whole_memory() -> int | None:
    """Return the total memory: the machine's, or the smallest cgroup limit [B]; None where unknown.

    Total, not free memory: the page cache counts as used, but is reclaimed when needed.
    """
    found = [limit for limit, _ in group_limits()]
    if "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def group_limits() -> list[tuple[int, int]]:
    """Return (memory limit, current usage) [B] of every limited cgroup of this process.

    Inactive page cache is reclaimable, so it does not count as usage.
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
    """Return a cgroup's page cache (file memory) [B]; 0 where not reported, as in a sandbox."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(dict(line.split() for line in stat.read_text().splitlines())[cache])
    return 0


def keep_compiled_code() -> None:
    """Set NUMBA_CACHE_DIR to a temporary folder of this process, where numba's own cache is not writable.

    Child processes share it. Call it before a module with numba functions is imported.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    named = os.environ.get("NUMBA_CACHE_DIR")
    if any(map(_may_write, filter(None, (named, str(Path(__file__).parents[1]), home)))):
        return
    import atexit
    import logging
    import sys
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="navi-numba-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    os.environ["NUMBA_CACHE_DIR"] = folder.name
    if "numba" in sys.modules:
        sys.modules["numba"].config.reload_config()
    logging.getLogger(__name__).warning(
        "numba compiles for this process alone: %s cannot be written; set XDG_CACHE_HOME to a folder that can", home
    )


def _may_write(name: str) -> bool:
    """Return whether a folder is writable or can be created; False for an unknown home."""
    folder = Path(name)
    if name.startswith("~"):
        return False
    # os.path: a folder that is closed to this user is none to it, where a Path raises.
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)
