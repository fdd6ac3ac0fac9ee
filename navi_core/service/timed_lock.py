"""A lock that knows for how long it is held."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from navi_core.service.garbage import COLLECTOR

__all__ = ["LONG", "TimedLock"]

_KEPT = 10_000
LONG = 1e-3
"""No holder should work longer [s]."""


class TimedLock:
    """A lock, and how long its holders took.

    No round of the garbage collector begins while one is held anywhere in the process: a round takes milliseconds, for
    which whoever wants the lock would wait.

    Attributes:
        holders: How many have held it.
        work: Processor time that they spent, together [s]. Unlike `holds` it does not count how long the machine, or
            another thread of the interpreter, kept a holder waiting.
        longest_work: Most of it that one spent [s]. The kernel charges interrupts to whoever is on the core, a machine
            that shares its cores also others' time.
        long: Holders who spent more than `LONG`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holds: deque[float] = deque(maxlen=_KEPT)
        self.holders = self.long = 0
        self.work = self.longest_work = 0.0

    @contextmanager
    def held(self, timeout: float = -1.0) -> Iterator[bool]:
        """Hold the lock; yields false where it is not to be had in time.

        Args:
            timeout: Longest wait [s]; negative waits for ever.
        """
        taken = self._lock.acquire(timeout=timeout)
        start, work = time.perf_counter(), time.thread_time()
        if taken:
            COLLECTOR.pause()
        try:
            yield taken
        finally:
            if taken:
                self._holds.append(time.perf_counter() - start)
                worked = time.thread_time() - work
                self.holders += 1
                self.work += worked
                self.longest_work = max(self.longest_work, worked)
                self.long += worked > LONG
                self._lock.release()
                COLLECTOR.go_on()

    def holds(self) -> np.ndarray:
        """Return how long the latest 10,000 holders held it, waiting included [s]."""
        with self._lock:
            return np.array(self._holds)
