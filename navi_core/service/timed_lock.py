"""Mutex that measures its hold times, and a reference-counted pause of the garbage collector while one is held."""

import gc
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def settle() -> None:
    """Collect garbage, then `gc.freeze` the live objects: collections that scan them delay a decision by milliseconds.

    Called by a process before it serves.
    """
    gc.collect()
    gc.freeze()


class Collector:
    """Reference-counted pause of the process's garbage collector."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users, self._was_on = 0, False

    def pause(self) -> None:
        """Disable garbage collection until `resume`; pauses nest."""
        with self._lock:
            if self._users == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._users += 1

    def resume(self) -> None:
        """End one pause; after the last one collection is enabled again, if it was before the first."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._was_on:
                gc.enable()


COLLECTOR = Collector()
"""Garbage-collection pause of this process."""


_KEPT = 10_000
LONG = 1e-3
"""Processor time above which a holder counts as long [s]."""


class TimedLock:
    """Mutex that measures its holders' hold times and processor times.

    Garbage collection is paused while one is held anywhere in the process: it would delay the waiting threads by
    milliseconds.

    Attributes:
        holders: Number of holders so far.
        work: Processor time of all holders [s]; unlike `holds` without the time that a holder was descheduled.
        longest_work: Largest processor time of one holder [s]; includes interrupts on its core.
        long: Holders with more than `LONG`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holds: deque[float] = deque(maxlen=_KEPT)
        self.holders = self.long = 0
        self.work = self.longest_work = 0.0

    @contextmanager
    def held(self, timeout: float = -1.0) -> Iterator[bool]:
        """Context manager that acquires the lock; yields false after a timeout.

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
                COLLECTOR.resume()

    def holds(self) -> np.ndarray:
        """Return the hold times of the latest 10,000 holders, descheduled time included [s]."""
        with self._lock:
            return np.array(self._holds)
