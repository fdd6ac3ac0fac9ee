"""How long a call takes on a device."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from navi_core.bench.timing import WALL, median, take_turns

__all__ = ["device_seconds"]


def device_seconds(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the median time of a call [s], on the device's own clock where it has one; three calls go before.

    Args:
        call: What is timed.
        device: Where it computes.
        repeats: Calls that are timed.
    """
    for _ in range(3):
        call()
    if device.type != "cuda":
        return median(take_turns({"": call}, repeats, warmup=0)[""], WALL)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) / 1e3 for a, b in pairwise(marks))
