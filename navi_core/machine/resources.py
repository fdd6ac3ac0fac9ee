"""Resources of this process: its control groups, cores and memory, and the cache of the code that numba compiles.

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


_THREADS = {"torch": "OMP_NUM_THREADS", "numba": "NUMBA_NUM_THREADS"}
"""Libraries that start a thread for each core of the machine, and what they read when they are imported."""


def usable_cores() -> int:
    """Return the cores that this process may run on, or the share of them that its control groups leave it, ≥ 1."""
    quotas = [quota for version, group in groups_around("cpu") if (quota := _quota(version, group)) is not None]
    return max(1, min([_affinity(), *(math.ceil(quota) for quota in quotas)]))


def limit_threads() -> None:
    """Let libraries that are not yet imported start no more threads than there is a share of cores for.

    What the user has set stays. To be called before torch and numba are imported.
    """
    cores = usable_cores()
    if cores < _affinity():
        for library, variable in _THREADS.items():
            if library not in sys.modules:
                os.environ.setdefault(variable, str(cores))


def chosen_threads() -> set[str]:
    """Return the variables above that the user has set.

    What `limit_threads` gives, in this process or in the one that started it, is nobody's choice.
    """
    cores = usable_cores()
    given = str(cores) if cores < _affinity() else None
    return {variable for variable in _THREADS.values() if os.environ.get(variable) not in (None, given)}


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _quota(version: int, group: Path) -> float | None:
    """Return the processor seconds per second of a group; None where it has no limit or does not report it."""
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


def keep_compiled_code() -> None:
    """Set NUMBA_CACHE_DIR to a folder that ends with this process, where numba could keep nothing elsewhere.

    Processes that this one starts share it. To be called before a module with numba's functions is imported.
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
    """Return whether a folder may be written to, or made; one of a home that is not known may not."""
    folder = Path(name)
    if name.startswith("~"):
        return False
    # os.path: a folder that is closed to this user is none to it, where a Path raises.
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)
