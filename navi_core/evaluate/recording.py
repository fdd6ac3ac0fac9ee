"""Export of evaluations, comparisons and promotion decisions as warehouse rows, written to the outbox."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from navi_core.config import config_hash
from navi_core.evaluate.comparison import Comparison, SeedComparison, seed_matrix
from navi_core.evaluate.promotion import Decision
from navi_core.evaluate.result import EvalResult, short_hash
from navi_core.record import MetricLog, outbox_path, row_context


def record_evaluation(result: EvalResult, *, outbox: Path | None = None) -> int:
    """Record an evaluation: a row of `evaluations` and of `named_courses`, and one of `episodes` per episode.

    Args:
        result: The evaluation.
        outbox: Segment folder; by default the outbox of `$NAVI_HOME`.

    Returns:
        Rows written.

    Raises:
        RecordError: The rows could not be written.
    """
    rows = result.to_rows()
    _write(f"evaluate-{result.evaluation_id}", rows, result, outbox)
    return sum(map(len, rows.values()))


def record_comparison(
    verdict: Comparison | SeedComparison,
    a: Sequence[EvalResult],
    b: Sequence[EvalResult],
    *,
    outbox: Path | None = None,
) -> str:
    """Record a comparison as one row of `comparisons`; durable on return.

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
        matrices = {
            side: seed_matrix(results, verdict.metric, scenes).tolist() for side, results in (("a", a), ("b", b))
        }
        row |= {"profiles": profiles, "matrices": {"scenes": scenes, **matrices}}
    row |= {
        "comparison_id": comparison_id,
        "over": "seeds and scenes" if seeds else "scenes and starts",
        "evaluations": sides,
        "task": a[0].config.task,
    }
    _write(f"compare-{comparison_id}", {"comparisons": [row]}, a[0], outbox)
    return comparison_id


def record_decision(decision: Decision, challenger: EvalResult, *, outbox: Path | None = None) -> None:
    """Record a promotion decision as one row of `promotions`; durable on return.

    Args:
        decision: The decision.
        challenger: The challenger's evaluation.
        outbox: Segment folder; by default the outbox of `$NAVI_HOME`.

    Raises:
        RecordError: The row could not be written.
    """
    _write(f"promote-{decision.version}", {"promotions": [decision.to_row()]}, challenger, outbox)


def _write(run_id: str, rows: dict[str, list[dict[str, Any]]], result: EvalResult, outbox: Path | None) -> None:
    """Write rows by table to the outbox with the context of an evaluation."""
    context = row_context() | {"seed": result.config.seed, "config_hash": config_hash(result.config)}
    log = MetricLog(outbox or outbox_path(), run_id, context)
    for table, added in rows.items():
        for row in added:
            log.row(table, row)
    log.flush()
