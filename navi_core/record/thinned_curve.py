"""A curve that may grow for ever, in a bounded number of points that lie evenly over all of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["ThinnedCurve"]


class ThinnedCurve:
    """Keeps every point while they are few, and later every second, fourth, eighth …, from the beginning on.

    The newest point always stands at the end, until the next takes its place. What only points had that are left out
    (a figure that not every update has) is told with the next one that stands.

    Args:
        most: Points, at least 2.
    """

    def __init__(self, most: int) -> None:
        self._most, self._stride, self._taken = most, 1, 0
        self._kept: list[tuple[float, dict[str, float]]] = []
        """The points 0, stride, 2 · stride, … of those taken."""
        self._newest: tuple[float, dict[str, float]] | None = None
        """The last one taken, where it is none of them."""
        self._names: dict[str, None] = {}

    def take(self, step: float, values: Mapping[str, float]) -> None:
        """Add a point at the end.

        One of an earlier step says that the run was started again from an earlier point: what came after it goes. One
        of the same step corrects the last.

        Args:
            step: Where it stands; finite.
            values: Its figures by name; those that are no finite numbers are unknown.
        """
        self._names |= dict.fromkeys(values)
        known = {name: value for name, value in values.items() if math.isfinite(value)}
        last = self._newest or (self._kept[-1] if self._kept else None)
        if last is not None and step == last[0]:
            last[1].update(known)
            return
        if last is not None and step < last[0]:
            self._return_to(step)
        if self._newest is not None:
            known = self._newest[1] | known
        stands = self._taken % self._stride == 0
        self._taken += 1
        self._newest = None if stands else (step, known)
        if stands:
            self._kept.append((step, known))
            if len(self._kept) >= self._most:
                self._thin()

    @property
    def steps(self) -> list[float]:
        """Where the points stand, in order."""
        return [step for step, _ in self._points()]

    @property
    def series(self) -> dict[str, list[float | None]]:
        """Figures at `steps` by name; None where one is unknown."""
        points = self._points()
        return {name: [values.get(name) for _, values in points] for name in self._names}

    def _points(self) -> list[tuple[float, dict[str, float]]]:
        return self._kept if self._newest is None else [*self._kept, self._newest]

    def _return_to(self, step: float) -> None:
        """Forget what came at a step or later."""
        self._newest = None
        self._kept = [point for point in self._kept if point[0] < step]
        if len(self._kept) < self._most // 4:
            self._stride = 1  # of a long run little is left: what comes is not thinned for its sake
        # As many as there would be if the last that is left had just come.
        self._taken = (len(self._kept) - 1) * self._stride + 1 if self._kept else 0

    def _thin(self) -> None:
        kept, self._stride = self._kept, 2 * self._stride
        self._newest = kept[-1] if len(kept) % 2 == 0 else None
        pairs = zip(kept[1::2], kept[2::2], strict=False)
        self._kept = [kept[0], *((step, left_out | values) for (_, left_out), (step, values) in pairs)]
