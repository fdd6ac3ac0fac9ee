"""Number of cores that this process may use.

A container with `--cpus=2` on a machine of 64 cores may run on each of them, but is stopped for the rest of every tenth
of a second once its threads together have used up their share: 64 threads are slower there than two.
"""

import contextlib
import math
import os
import sys
from pathlib import Path

from navi_core.machine.control_groups import groups_around

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
