"""Evaluations and decisions go to the outbox, from where they reach the warehouse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from navi_core.config import config_hash
from navi_core.evaluate.promotion import Decision
from navi_core.evaluate.result import EvalResult
from navi_core.record import MetricLog, hardware_profile, outbox_path

__all__ = ["record_decision", "record_evaluation"]


def record_evaluation(result: EvalResult, *, outbox: Path | None = None) -> int:
    """Write one row of `evaluations` and one of `episodes` per episode; they are durable when this returns.

    Args:
        result: What to record.
        outbox: Segment folder; by default the outbox of `$NAVI_HOME`.

    Returns:
        Rows written.

    Raises:
        RecordError: The rows could not be written.
    """
    log = MetricLog(outbox or outbox_path(), f"evaluate-{result.evaluation_id}", _context(result))
    written = 0
    for table, rows in result.to_rows().items():
        for row in rows:
            log.row(table, row)
            written += 1
    log.flush()
    return written


def record_decision(decision: Decision, challenger: EvalResult, *, outbox: Path | None = None) -> None:
    """Write one row of `promotions`; it is durable when this returns.

    Args:
        decision: What was decided.
        challenger: The evaluation it rests on.
        outbox: Segment folder; by default the outbox of `$NAVI_HOME`.

    Raises:
        RecordError: The row could not be written.
    """
    log = MetricLog(outbox or outbox_path(), f"promote-{decision.version}", _context(challenger))
    log.row("promotions", decision.to_row())
    log.flush()


def _context(result: EvalResult) -> dict[str, Any]:
    profile = hardware_profile()
    return {name: profile[name] for name in ("hardware", "versions", "revision")} | {
        "seed": result.config.seed,
        "config_hash": config_hash(result.config),
    }
