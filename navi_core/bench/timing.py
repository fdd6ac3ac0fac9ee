"""How benchmarks measure: calls take turns, each is judged by its median process CPU time.

On a shared machine seconds mean little and ratios within one run mean much: interleaved calls meet
the same neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["take_turns", "torch_threads"]


def take_turns(calls: Mapping[str, Callable[[], Any]], repeats: int, warmup: int = 2) -> dict[str, np.ndarray]:
    """Time every call `repeats` times, one after another in every round.

    Args:
        calls: What to time, by name.
        repeats: Rounds that count.
        warmup: Calls of each before the first round.

    Returns:
        Per name (repeats, 2): process CPU time and wall time of each call [s].
    """
    for call in calls.values():
        for _ in range(warmup):
            call()
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            cpu, wall = time.process_time(), time.perf_counter()
            call()
            taken[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {name: np.array(values) for name, values in taken.items()}


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run the block with so many torch threads, and put the former number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
