"""Body of every training asset: training in a child process, and its metadata."""

import math
import sys
from typing import Any

import dagster as dg

from navi_core.errors import RunError
from navi_pipeline.lib.reports.charts import CLONING_PANELS, REWARD_PANELS, curve_charts
from navi_pipeline.lib.reports.live_training import LiveTraining
from navi_pipeline.lib.reports.pages import embedded_charts
from navi_pipeline.lib.training.monitor import Monitor
from navi_pipeline.lib.training.policies import Start, cloning_curve_of, curve_of, train_policy
from navi_pipeline.settings.nightly import NightlyConfig

STALL_MINUTES: float = NightlyConfig.model_fields["stall_minutes"].default
"""Time without progress after which a training is ended [min]: that of nights."""


def materialize_policy(
    context: dg.AssetExecutionContext,
    algorithm: str,
    *,
    seed: int,
    total_steps: int | None = None,
    epochs: int | None = None,
    start: Start = "profile",
    echo: bool = False,
) -> dg.MaterializeResult[None]:
    """Train a profile's policy, or reuse the finished run of this configuration, and show its curves.

    Args:
        context: Of the asset; its partition is the profile.
        algorithm: One of `policies.ALGORITHMS`, or bc.
        seed: Seed of the run.
        total_steps: Decisions summed over rows; None takes the profile's.
        epochs: Passes over the demonstrations, for bc.
        start: Where the weights of PPO come from.
        echo: Let the trainer's lines through to standard error.

    Raises:
        RunError: The trainer failed, made no progress, or was stopped before its end.
        RecordError: Something upstream has not been materialized.
    """
    live = LiveTraining(context, title=f"{algorithm} {context.partition_key}, seed {seed}")

    # Cloning reports epochs, which may take hours.
    stall = math.inf if algorithm == "bc" else 60.0 * STALL_MINUTES
    monitor = Monitor(lambda _: None, math.inf, stall, math.inf)

    def report(line: str) -> None:
        context.log.info(line)
        live.line(line)
        monitor.line(line)
        if echo:
            print(line, file=sys.stderr, flush=True)  # noqa: T201

    with live:
        try:
            policy = train_policy(
                context.partition_key,
                algorithm=algorithm,
                seed=seed,
                total_steps=total_steps,
                epochs=epochs,
                start=start,
                on_line=report,
                stop=monitor,
            )
        except RunError as error:
            if not monitor.stalled:
                raise
            raise RunError(f"no progress for {STALL_MINUTES:g} min, so the trainer was ended: {error}") from error
    metadata = _metadata(policy) | _curves(policy, cloned=algorithm == "bc")
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(policy["weights_hash"][:16]))


def _metadata(policy: dict[str, Any]) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "version": policy["version"],
        "parent": policy["parent"] or "none",
        "run_id": policy["run_id"],
        "steps": policy["steps"],
        "wall_time_minutes": 60.0 * policy["wall_time_hours"],
        "seed": policy["seed"],
        "reused": policy["reused"],
        "checkpoint": dg.MetadataValue.path(policy["checkpoint"]),
    }
    if policy["reward_ema"] is not None:
        metadata |= {"reward_ema": policy["reward_ema"], "train_scenes": policy["train_scenes"]}
    return metadata


def _curves(policy: dict[str, Any], *, cloned: bool) -> dict[str, Any]:
    curve = cloning_curve_of(policy["run_id"]) if cloned else curve_of(policy["run_id"])
    if not len(curve):
        return {}
    charts = curve_charts(curve, CLONING_PANELS if cloned else REWARD_PANELS)
    shown: dict[str, Any] = {
        "steps_per_second": float(curve["sps"].median()),
        "curves": dg.MetadataValue.md(embedded_charts(charts, "curves")),
    }
    if cloned:
        shown |= {
            "held_out_nll": float(curve["validation_nll"].min()),
            "held_out_nll_at_first": float(curve["validation_nll"].iloc[0]),
        }
    return shown
