"""Mean time per named stage of a loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["StageTimer"]


class StageTimer:
    """Adds up host time by stage: `with timer("env"): …`, then `timer.means()`.

    Args:
        synchronize: Called before each clock reading when profiling a device (for example
            `torch.cuda.synchronize`); by default the host clock alone is read.
    """

    def __init__(self, synchronize: Callable[[], object] | None = None) -> None:
        self._synchronize = synchronize
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, int] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time the block as one call of `stage`."""
        if self._synchronize is not None:
            self._synchronize()
        start = time.perf_counter()
        try:
            yield
        finally:
            if self._synchronize is not None:
                self._synchronize()
            self.add(stage, time.perf_counter() - start)

    def add(self, stage: str, seconds: float) -> None:
        """Count one call of `stage` that took `seconds` [s]."""
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
        self._calls[stage] = self._calls.get(stage, 0) + 1

    def means(self) -> dict[str, float]:
        """Return the mean time per call of every stage [ms]."""
        return {stage: 1e3 * seconds / self._calls[stage] for stage, seconds in self._seconds.items()}

    def totals(self) -> dict[str, float]:
        """Return the total time of every stage [s]."""
        return dict(self._seconds)

    def reset(self) -> None:
        """Forget everything measured so far."""
        self._seconds.clear()
        self._calls.clear()
