"""A training run as it is seen while it runs: progress, figures and curves as observations of its asset."""

from __future__ import annotations

import re
import time
from typing import Any

import dagster as dg

from navi_core.record.thinned_curve import ThinnedCurve

__all__ = ["LiveTraining"]

_STEP = re.compile(r"\bstep ([\d,]+)(?:/([\d,]+))?  ")
_FIGURES = {
    "reward_ema": re.compile(r"reward_ema ([+-][\d.]+)"),
    "explained_variance": re.compile(r"\bev (-?[\d.]+)"),
    "nll": re.compile(r"\bNLL (-?[\d.]+)"),
    "steps_per_second": re.compile(r"steps/s ([\d,.]+)"),
}
_POINTS = 400


class LiveTraining:
    """Reads a trainer's lines and reports how it goes, at most once in `interval` seconds.

    The observations stand in the run's page while it runs, and as plots on the asset's page.

    Args:
        context: Of the asset that trains.
        interval: Least time between two observations [s].
        title: Name over the curves.
    """

    def __init__(self, context: dg.AssetExecutionContext, *, interval: float = 30.0, title: str) -> None:
        self._context, self._interval, self._title = context, interval, title
        self._curve = ThinnedCurve(_POINTS)
        self._told = time.monotonic()

    def line(self, text: str) -> None:
        """Take a line; most are not about progress."""
        found = _STEP.search(text)
        if found is None:
            return
        point = {"step": _number(found[1])}
        for name, pattern in _FIGURES.items():
            if figure := pattern.search(text):
                point[name] = _number(figure[1])
        self._curve.take(point["step"], {name: value for name, value in point.items() if name != "step"})
        if time.monotonic() - self._told >= self._interval:
            self._told = time.monotonic()
            self._observe(point, _number(found[2]) if found[2] else None)

    def _observe(self, point: dict[str, float], total: float | None) -> None:
        metadata: dict[str, Any] = {name: dg.MetadataValue.float(value) for name, value in point.items()}
        if total:
            metadata["progress_percent"] = 100.0 * point["step"] / total
        if len(self._curve.steps) > 2:
            metadata["curves"] = dg.MetadataValue.md(self._curves())
        self._context.log_event(
            dg.AssetObservation(
                asset_key=self._context.asset_key, partition=self._context.partition_key, metadata=metadata
            )
        )

    def _curves(self) -> str:
        import pandas

        from navi_pipeline.lib.pictures import embedded_picture, reward_curves

        frame = pandas.DataFrame({"step": self._curve.steps} | self._curve.series)
        return embedded_picture(reward_curves(frame, self._title), "curves so far")


def _number(text: str) -> float:
    return float(text.replace(",", ""))
