"""Mean time per named stage of a loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["DeviceEvent", "StageTimer"]


class DeviceEvent(Protocol):
    """A mark on a device's stream; `torch.cuda.Event(enable_timing=True)` is one."""

    def record(self) -> None:
        """Place the mark behind all work given to the device so far."""

    def synchronize(self) -> None:
        """Wait until the device has reached the mark."""

    def elapsed_time(self, later: DeviceEvent, /) -> float:
        """Return the device's time between two marks [ms]."""


class StageTimer:
    """Adds up time by stage: `with timer("forward"): …`, then `timer.means()`.

    By default the host's clock is read: on a device this says when work was handed over, not how long it
    took, and costs nothing. With events, marks are put on the device's stream and read when the times
    are asked for, so that measuring does not make the host wait either.

    Args:
        event: Makes a mark, for example `partial(torch.cuda.Event, enable_timing=True)`.
    """

    def __init__(self, event: Callable[[], DeviceEvent] | None = None) -> None:
        self._event = event
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._marks: list[tuple[str, DeviceEvent, DeviceEvent]] = []

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time the block as one call of `stage`."""
        finish = self.begin(stage)
        try:
            yield
        finally:
            finish()

    def begin(self, stage: str) -> Callable[[], None]:
        """Start a call of `stage`; what is returned ends it."""
        if self._event is None:
            start = time.perf_counter()
            return lambda: self.add(stage, time.perf_counter() - start)
        before, after = self._event(), self._event()
        before.record()

        def finish() -> None:
            after.record()
            self._marks.append((stage, before, after))

        return finish

    def add(self, stage: str, seconds: float) -> None:
        """Count one call of `stage` that took `seconds` [s]."""
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
        self._calls[stage] = self._calls.get(stage, 0) + 1

    def means(self) -> dict[str, float]:
        """Return the mean time per call of every stage [ms]."""
        self._read_marks()
        return {stage: 1e3 * seconds / self._calls[stage] for stage, seconds in self._seconds.items()}

    def totals(self) -> dict[str, float]:
        """Return the total time of every stage [s]."""
        self._read_marks()
        return dict(self._seconds)

    def calls(self) -> dict[str, int]:
        """Return how often every stage was timed."""
        self._read_marks()
        return dict(self._calls)

    def take(self, other: StageTimer) -> None:
        """Add everything that `other` has measured, and make it forget."""
        for stage, seconds in other.totals().items():
            self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
            self._calls[stage] = self._calls.get(stage, 0) + other._calls[stage]
        other.reset()

    def reset(self) -> None:
        """Forget everything measured so far."""
        self._seconds.clear()
        self._calls.clear()
        self._marks.clear()

    def _read_marks(self) -> None:
        marks, self._marks = self._marks, []
        if marks:
            marks[-1][2].synchronize()
        for stage, before, after in marks:
            self.add(stage, 1e-3 * before.elapsed_time(after))
