"""Stop flag: signals set it, and the run loop polls it between decisions."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class StopFlag:
    """True once SIGTERM, SIGINT or SIGHUP arrived, or once `also()` returns True.

    A context manager: handlers are installed on entry and put back on exit. Python delivers signals to
    the main thread only, so elsewhere the flag listens to `also` alone. A second signal meets the
    handlers that were there before, so that a stuck process can still be interrupted.

    Args:
        also: A further reason to stop.
        promise: Work done before the process ends; printed on standard error when a signal arrives.
    """

    def __init__(self, also: Callable[[], bool] | None = None, promise: str = "") -> None:
        self._also, self._promise = also, promise
        self._earlier: dict[int, Any] = {}
        self.signal_name: str | None = None
        """Name of the signal that arrived."""
        self._set = False

    def __call__(self) -> bool:
        """Whether to stop; stays True."""
        if not self._set and self._also is not None and self._also():
            self._set = True
        return self._set

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._earlier[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        self.signal_name = signal.Signals(number).name
        self._set = True
        self._restore()
        if self._promise:
            # Not through Python's streams: the handler may have interrupted a write of theirs.
            with contextlib.suppress(OSError):
                os.write(2, f"\n{self.signal_name}: {self._promise}; once more ends it at once\n".encode())

    def _restore(self) -> None:
        while self._earlier:
            number, handler = self._earlier.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
