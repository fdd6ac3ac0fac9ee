"""Metric logs for what the pipeline itself records: scenes, evaluations, decisions."""

from __future__ import annotations

from navi_core.record import MetricLog, outbox_path, row_context

__all__ = ["pipeline_log"]


def pipeline_log(run_id: str, *, seed: int | None = None, config_hash: str | None = None) -> MetricLog:
    """Return a metric log with the full context of every row.

    Args:
        run_id: Run that the rows belong to: a training run, or the asset's name.
        seed: Seed of what is recorded.
        config_hash: Hash of its configuration.
    """
    return MetricLog(outbox_path(), run_id, row_context() | {"seed": seed, "config_hash": config_hash})
