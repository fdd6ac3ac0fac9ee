"""Warehouse rows of evaluations, comparisons and promotion decisions, written to the outbox."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from navi_core.config import config_hash
from navi_core.evaluate.comparison import Comparison, SeedComparison, seed_matrix
from navi_core.evaluate.promotion import Decision
from navi_core.evaluate.result import EvalResult, short_hash
from navi_core.record import MetricLog, outbox_path, row_context


def record_evaluation(result: EvalResult, *, outbox: Path | None = None) -> int:
    """Write one row of `evaluations` and one of `episodes` per episode; durable on return.

    Args:
        result: The evaluation.
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


def record_comparison(
    verdict: Comparison | SeedComparison,
    a: Sequence[EvalResult],
    b: Sequence[EvalResult],
    *,
    outbox: Path | None = None,
) -> str:
    """Write one row of `comparisons`; durable on return.

    Args:
        verdict: The comparison; over seeds also its profiles and matrices of seeds × scenes are stored.
        a: Results of the first side, one per training seed.
        b: Results of the second side.
        outbox: Segment folder; by default the outbox of `$NAVI_HOME`.

    Returns:
        The comparison's id, a hash of the evaluations.

    Raises:
        RecordError: The row could not be written.
    """
    sides = {"a": [result.evaluation_id for result in a], "b": [result.evaluation_id for result in b]}
    seeds = isinstance(verdict, SeedComparison)
    row = verdict.to_row()
    profiles = {name: row.pop(name, None) for name in ("thresholds", "profile_a", "profile_b")}
    comparison_id = short_hash([sides, seeds])
    if seeds:
        scenes = a[0].scenes
        matrices = {}
        for side, results in (("a", a), ("b", b)):
            columns = [results[0].scenes.index(scene) for scene in scenes]
            matrices[side] = seed_matrix(results, verdict.metric)[:, columns].tolist()
        row |= {"profiles": profiles, "matrices": {"scenes": scenes, **matrices}}
    row |= {
        "comparison_id": comparison_id,
        "over": "seeds and scenes" if seeds else "scenes and starts",
        "evaluations": sides,
        "task": a[0].config.task,
    }
    log = MetricLog(outbox or outbox_path(), f"compare-{comparison_id}", _context(a[0]))
    log.row("comparisons", row)
    log.flush()
    return comparison_id


def record_decision(decision: Decision, challenger: EvalResult, *, outbox: Path | None = None) -> None:
    """Write one row of `promotions`; durable on return.

    Args:
        decision: The decision.
        challenger: The challenger's evaluation.
        outbox: Segment folder; by default the outbox of `$NAVI_HOME`.

    Raises:
        RecordError: The row could not be written.
    """
    log = MetricLog(outbox or outbox_path(), f"promote-{decision.version}", _context(challenger))
    log.row("promotions", decision.to_row())
    log.flush()


def _context(result: EvalResult) -> dict[str, Any]:
    return row_context() | {"seed": result.config.seed, "config_hash": config_hash(result.config)}
