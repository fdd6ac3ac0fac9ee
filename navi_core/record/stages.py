"""Mean time per named stage of a loop."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, Self


class DeviceEvent(Protocol):
    """Mark on a device's stream; `torch.cuda.Event(enable_timing=True)` is one."""

    def record(self) -> None:
        """Place the mark behind all work launched so far."""

    def synchronize(self) -> None:
        """Wait until the device has reached the mark."""

    def elapsed_time(self, later: Self, /) -> float:
        """Return the time between two marks [ms]."""


class StageTimer:
    """Adds up time by stage: `with timer("forward"): …`, then `timer.means()`.

    By default the host's clock is read: for a device this is the time of launching work, not of the work itself. With
    events, marks on the device's stream are read when the times are requested, so that the host does not wait.

    Args:
        event: Creates a mark, for example `partial(torch.cuda.Event, enable_timing=True)`.
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
        """Start a call of `stage`; the returned function ends it."""
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
        """Return the number of calls of every stage."""
        self._read_marks()
        return dict(self._calls)

    def take(self, other: Self) -> None:
        """Add the times of `other`, and reset it."""
        for stage, seconds in other.totals().items():
            self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
            self._calls[stage] = self._calls.get(stage, 0) + other._calls[stage]
        other.reset()

    def reset(self) -> None:
        """Remove all times."""
        self._seconds.clear()
        self._calls.clear()
        self._marks.clear()

    def _read_marks(self) -> None:
        marks, self._marks = self._marks, []
        if marks:
            marks[-1][2].synchronize()
        for stage, before, after in marks:
            self.add(stage, 1e-3 * before.elapsed_time(after))
