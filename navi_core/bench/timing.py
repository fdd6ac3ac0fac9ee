"""Timing utilities: clocks, resident memory, and interleaved calls judged by their median process CPU time.

On a shared machine absolute times are unreliable, but ratios within one run are meaningful: interleaved calls meet the
same load.
"""

import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

CPU, WALL = 0, 1
"""Column indices of the array that `take_turns` returns."""


def clocks() -> tuple[float, float]:
    """Read process CPU time and wall time [s]."""
    return time.process_time(), time.perf_counter()


def resident_bytes() -> int:
    """Return the resident memory of this process [bytes]; the peak if the system reports no current value."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def median(times: np.ndarray, clock: int = CPU) -> float:
    """Return the median time of one clock from `take_turns` [s]."""
    return float(np.median(times[:, clock]))


def take_turns(
    calls: Mapping[str, Callable[[], Any]], repeats: int, warmup: int = 2, in_a_row: int = 1
) -> dict[str, np.ndarray]:
    """Time every call `repeats` times, interleaved in rounds.

    Args:
        calls: What to time, by name.
        repeats: Times that count.
        warmup: Calls of each before the first round.
        in_a_row: Calls of one before the next has its turn; more than one where a call lives on what the
            one before it left in the caches.

    Returns:
        Per name (repeats, 2): process CPU time and wall time of each call [s].
    """
    for call in calls.values():
        for _ in range(warmup):
            call()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for start in range(0, repeats, in_a_row):
        for name, call in calls.items():
            for _ in range(min(in_a_row, repeats - start)):
                cpu, wall = clocks()
                call()
                cpu_after, wall_after = clocks()
                taken[name].append((cpu_after - cpu, wall_after - wall))
    return {name: np.array(values) for name, values in taken.items()}
