"""When a process that serves collects garbage: a round takes milliseconds, in which nothing is decided."""

from __future__ import annotations

import gc
import threading

__all__ = ["COLLECTOR", "Collector", "settle"]


def settle() -> None:
    """Take what is loaded by now out of the garbage collector's rounds: they would stop a decision for milliseconds.

    For a process that serves from here on.
    """
    gc.collect()
    gc.freeze()


class Collector:
    """The process's garbage collector, off while anybody needs it to be."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users, self._was_on = 0, False

    def pause(self) -> None:
        """Begin no round until `go_on`."""
        with self._lock:
            if self._users == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._users += 1

    def go_on(self) -> None:
        """End one's pause; the collector is on again after that of the last, if it was on before the first."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._was_on:
                gc.enable()


COLLECTOR = Collector()
"""That of this process."""
