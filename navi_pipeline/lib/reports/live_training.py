"""Observations of a training run while it lasts: progress, figures, curves."""

from __future__ import annotations

import logging
import re
import time
from types import TracebackType
from typing import Any

import dagster as dg

from navi_core.record.thinned_curve import ThinnedCurve
from navi_pipeline.lib.reports.charts import REWARD_PANELS, curve_charts
from navi_pipeline.lib.reports.pages import embedded_charts

_LOG = logging.getLogger("navi.pipeline")

_STEP = re.compile(r"\bstep ([\d,]+)(?:/([\d,]+))?  ")
_FIGURES = {
    "reward_ema": re.compile(r"reward_ema ([+-][\d.]+)"),
    "explained_variance": re.compile(r"\bev (-?[\d.]+)"),
    "nll": re.compile(r"\bNLL (-?[\d.]+)"),
    "steps_per_second": re.compile(r"steps/s ([\d,.]+)"),
}
_POINTS = 400


class LiveTraining:
    """Reads a trainer's lines and reports how it goes, at most once in `interval` seconds; use it as a context manager.

    The observations stand in the run's page while it runs, and as plots on the asset's page. Dagster keeps them for
    ever, and a picture is a hundred times as large as the words: the curves come after one interval, then after two,
    four, … more, and with the last observation.

    Args:
        context: Of the asset that trains.
        interval: Least time between two observations, and until the first curves [s].
        title: Name over the curves.
    """

    def __init__(self, context: dg.AssetExecutionContext, *, interval: float = 30.0, title: str) -> None:
        self._context, self._interval, self._title = context, interval, title
        self._curve = ThinnedCurve(_POINTS)
        self._reported_at = time.monotonic()
        self._pause, self._due = interval, self._reported_at + interval
        self._newest: tuple[dict[str, float], float | None] | None = None
        self._bare = False
        """Whether the last observation had no curves."""

    def __enter__(self) -> LiveTraining:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._bare or not (error is None or isinstance(error, Exception)):
            return
        try:
            self._observe(curves=True)
        except Exception as fault:
            if error is None:
                raise
            # The trainer's own error is the one to report.
            _LOG.warning("the last curves of %s are not reported: %s", self._title, fault)

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
        self._newest = point, _number(found[2]) if found[2] else None
        now = time.monotonic()
        if now - self._reported_at >= self._interval:
            self._reported_at = now
            self._observe(curves=now >= self._due)

    def _observe(self, *, curves: bool) -> None:
        """Report the newest point, and the curves where they are wanted and there are any."""
        if self._newest is None:
            return
        point, total = self._newest
        metadata: dict[str, Any] = {name: dg.MetadataValue.float(value) for name, value in point.items()}
        if total:
            metadata["progress_percent"] = 100.0 * point["step"] / total
        self._bare = not (curves and len(self._curve.steps) > 2)
        if not self._bare:
            charts = curve_charts({"step": self._curve.steps, **self._curve.series}, REWARD_PANELS)
            metadata["curves"] = dg.MetadataValue.md(embedded_charts(charts, "curves so far"))
            self._pause *= 2
            self._due = self._reported_at + self._pause
        self._context.log_event(
            dg.AssetObservation(
                asset_key=self._context.asset_key, partition=self._context.partition_key, metadata=metadata
            )
        )


def _number(text: str) -> float:
    return float(text.replace(",", ""))
