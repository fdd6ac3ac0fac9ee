"""Downsampled metric curve: a growing series kept in a bounded number of evenly spaced points."""

import math
from collections.abc import Mapping


class ThinnedCurve:
    """Downsampled curve: all points of a short series, every 2nd, 4th, 8th … point of a longer one.

    The newest point is always the last one. Values that only dropped points had (of a metric that not every update has)
    are merged into the next kept point.

    Args:
        most: Capacity in points, at least 2.
    """

    def __init__(self, most: int) -> None:
        self._most, self._stride, self._taken = most, 1, 0
        self._kept: list[tuple[float, dict[str, float]]] = []
        """The points 0, stride, 2 · stride, … of those taken."""
        self._newest: tuple[float, dict[str, float]] | None = None
        """The last point, where it is none of them."""
        self._names: dict[str, None] = {}

    def take(self, step: float, values: Mapping[str, float]) -> None:
        """Append a point.

        An earlier step means that the run was resumed from an earlier point: the points behind it are removed. The
        same step updates the last point.

        Args:
            step: Position; finite.
            values: By name; non-finite ones are unknown.
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
        is_kept = self._taken % self._stride == 0
        self._taken += 1
        self._newest = None if is_kept else (step, known)
        if is_kept:
            self._kept.append((step, known))
            if len(self._kept) >= self._most:
                self._thin()

    @property
    def steps(self) -> list[float]:
        """Steps (x values) of the kept points, in order."""
        return [step for step, _ in self._points()]

    @property
    def series(self) -> dict[str, list[float | None]]:
        """Values (y) at `steps` by metric name; None where unknown."""
        points = self._points()
        return {name: [values.get(name) for _, values in points] for name in self._names}

    def _points(self) -> list[tuple[float, dict[str, float]]]:
        return self._kept if self._newest is None else [*self._kept, self._newest]

    def _return_to(self, step: float) -> None:
        """Rewind the curve: remove the points at a step or later."""
        self._newest = None
        self._kept = [point for point in self._kept if point[0] < step]
        if len(self._kept) < self._most // 4:
            self._stride = 1  # few points of a long run are left: later points are not thinned
        # The number of points up to the last one left.
        self._taken = (len(self._kept) - 1) * self._stride + 1 if self._kept else 0

    def _thin(self) -> None:
        kept, self._stride = self._kept, 2 * self._stride
        self._newest = kept[-1] if len(kept) % 2 == 0 else None
        pairs = zip(kept[1::2], kept[2::2], strict=False)
        self._kept = [kept[0], *((step, left_out | values) for (_, left_out), (step, values) in pairs)]
