"""Body of the training assets: training in a child process, live asset observations, metadata."""

from __future__ import annotations

import logging
import math
import sys
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import dagster as dg

from navi_core.config import TrainConfig
from navi_core.errors import RunError
from navi_core.record.thinned_curve import ThinnedCurve
from navi_pipeline.lib.orchestration import materialized
from navi_pipeline.lib.reports.pages import CLONING_PANELS, REWARD_PANELS, curve_charts, embedded_charts
from navi_pipeline.lib.training.policies import cloning_curve_of, curve_of, train_policy
from navi_pipeline.lib.training.run_curve import Monitor
from navi_pipeline.settings import NightlyConfig

_LOG = logging.getLogger("navi.pipeline")

_FIGURES = {
    "reward_ema": "reward_ema",
    "explained_variance": "explained_variance",
    "nll": "nll",
    "sps": "steps_per_second",
}
"""Metrics of an observation: name in the rows → name in Dagster."""
_POINTS = 400


class LiveTraining(AbstractContextManager[Any, None]):
    """Context manager that reports a training's progress as Dagster asset observations, one per `interval` at most.

    Observations are shown on the run's page, and as plots on the asset's page. Dagster keeps them for ever, and a
    picture is a hundred times larger than text. So curves are attached to the first observation, the third, the
    seventh, the fifteenth, …, and to the last one.

    Args:
        context: Execution context of the training asset.
        interval: Minimum time between two observations, and until the first curves [s].
        title: Title of the curves.
    """

    def __init__(self, context: dg.AssetExecutionContext, *, interval: float = 30.0, title: str) -> None:
        self.total_steps: int | None = None
        """Decisions at which the run ends, for the progress in percent; None if unknown."""
        self._context, self._interval, self._title = context, interval, title
        self._curve = ThinnedCurve(_POINTS)
        self._reported_at, self._reports = time.monotonic(), 0
        self._bare = False
        """True if the last observation had no curves."""

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

    def update(self, step: int, metrics: dict[str, float]) -> None:
        """Take the metrics of an update, and report them if the interval is over."""
        self._curve.take(step, {shown: metrics[name] for name, shown in _FIGURES.items() if name in metrics})
        now = time.monotonic()
        if now - self._reported_at >= self._interval:
            self._reported_at = now
            self._reports += 1
            # The first, third, seventh, … observation.
            self._observe(curves=self._reports & (self._reports + 1) == 0)

    def _observe(self, *, curves: bool) -> None:
        """Log an asset observation of the newest point, with the curves if requested and long enough."""
        steps, series = self._curve.steps, self._curve.series
        metadata: dict[str, Any] = {"step": float(steps[-1])}
        metadata |= {name: values[-1] for name, values in series.items() if values[-1] is not None}
        if self.total_steps:
            metadata["progress_percent"] = 100.0 * steps[-1] / self.total_steps
        self._bare = not (curves and len(steps) > 2)
        if not self._bare:
            charts = curve_charts({"step": steps, **series}, REWARD_PANELS)
            metadata["curves"] = dg.MetadataValue.md(embedded_charts(charts, "curves so far"))
        self._context.log_event(
            dg.AssetObservation(
                asset_key=self._context.asset_key, partition=self._context.partition_key, metadata=metadata
            )
        )


STALL_MINUTES: float = NightlyConfig.model_fields["stall_minutes"].default
"""Time without progress after which a training is stopped [min], the default of nightly runs."""


# Above 60 lines: half of it describes the arguments, the rest is one training and what it shows.
def materialize_policy(
    context: dg.AssetExecutionContext,
    algorithm: str,
    profile: str,
    seed: int,
    *,
    total_steps: int | None = None,
    epochs: int | None = None,
    start: str = "profile",
    echo: bool = False,
) -> dg.MaterializeResult[None]:
    """Train a profile's policy, or reuse the finished run; return the asset's metadata with its curves.

    Args:
        context: Execution context of the asset.
        algorithm: One of `policies.ALGORITHMS`, or bc.
        profile: Preset name.
        seed: Seed of the run.
        total_steps: Decisions summed over rows; None takes the profile's.
        epochs: Passes over the demonstrations, for bc.
        start: Source of PPO's initial weights.
        echo: Let the trainer's lines through to standard error.

    Raises:
        RunError: The trainer failed, made no progress, or was stopped before its end.
        RecordError: Something upstream has not been materialized.
    """
    live = LiveTraining(context, title=f"{algorithm} {profile}, seed {seed}")

    # Cloning writes a row an epoch, which may take hours.
    stall = math.inf if algorithm == "bc" else 60.0 * STALL_MINUTES
    monitors: list[Monitor] = []

    def watch(run_id: str, config: TrainConfig) -> Monitor:
        live.total_steps = config.total_steps
        monitors.append(Monitor(run_id, stall_seconds=stall, on_update=live.update))
        return monitors[0]

    def report(line: str) -> None:
        context.log.info(line)
        if echo:
            print(line, file=sys.stderr, flush=True)  # noqa: T201

    with live:
        try:
            policy = train_policy(
                profile,
                algorithm=algorithm,
                seed=seed,
                total_steps=total_steps,
                epochs=epochs,
                start=start,
                on_line=report,
                watch=watch,
            )
        except RunError as error:
            if not any(monitor.stalled for monitor in monitors):
                raise
            raise RunError(f"no progress for {STALL_MINUTES:g} min, so the trainer was ended: {error}") from error
    cloned = algorithm == "bc"
    metadata = {
        **{name: policy[name] for name in ("version", "run_id", "steps", "seed", "reused", "reward_ema")},
        "parent": policy["parent"] or "none",
        "wall_time_minutes": 60.0 * policy["wall_time_hours"],
        "checkpoint": dg.MetadataValue.path(policy["checkpoint"]),
        "train_scenes": None if policy["reward_ema"] is None else policy["train_scenes"],
    }
    curve = cloning_curve_of(policy["run_id"]) if cloned else curve_of(policy["run_id"])
    if len(curve):
        charts = curve_charts(curve, CLONING_PANELS if cloned else REWARD_PANELS)
        metadata |= {
            "steps_per_second": float(curve["sps"].median()),
            "curves": dg.MetadataValue.md(embedded_charts(charts, "curves")),
            "held_out_nll": float(curve["validation_nll"].min()) if cloned else None,
            "held_out_nll_at_first": float(curve["validation_nll"].iloc[0]) if cloned else None,
        }
    return materialized(metadata, policy["weights_hash"][:16])
