"""Comparison of two training methods over training seeds and scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import EvaluationError
from navi_core.evaluate.comparison.pairing import protocol_differences, require_pairs
from navi_core.evaluate.comparison.random_effects import MIN_SEEDS, performance_profile, two_way_interval
from navi_core.evaluate.comparison.statistics import interquartile_mean
from navi_core.evaluate.comparison.subjects import remarks, verdict_of, verdict_words
from navi_core.evaluate.result import EvalResult

_PROFILE_POINTS = 21
"""Thresholds of a performance profile."""


@dataclass(frozen=True)
class SeedComparison:
    """Paired difference a − b of one metric over seeds and scenes, with its interval and verdict."""

    metric: str
    """Metric compared."""
    a: str
    """First side."""
    b: str
    """Second side."""
    mean_a: float
    """Mean over seeds and scenes of the first."""
    mean_b: float
    """Mean over seeds and scenes of the second."""
    iqm_a: float
    """Interquartile mean over seeds and scenes of the first."""
    iqm_b: float
    """Interquartile mean over seeds and scenes of the second."""
    mean_difference: float
    """Mean of the paired differences a − b."""
    low: float
    """Lower bound of its two-way interval."""
    high: float
    """Upper bound of its two-way interval."""
    degrees_of_freedom: float
    """Degrees of freedom of the interval."""
    p_value: float
    """p-value of no difference, by the same statistic."""
    better: bool
    """Whether a is better: the interval lies on the good side of 0, and there are at least five seeds."""
    worse: bool
    """Whether a is worse: the interval lies on the bad side of 0, and there are at least five seeds."""
    seeds: int
    """Training seeds compared."""
    scenes: int
    """Scenes compared."""
    thresholds: tuple[float, ...]
    """Thresholds of the performance profiles, in the metric's unit."""
    profile_a: tuple[float, ...]
    """Fraction of seeds × scenes above each threshold, first side."""
    profile_b: tuple[float, ...]
    """The same for the second side."""
    sentence: str
    """The verdict in words."""

    def to_row(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def withheld(self, why: str) -> SeedComparison:
        """Return the comparison without its verdict but with the reason; its numbers stay."""
        length = len(verdict_words(self.a, self.b, self.metric, self.better, self.worse, ""))
        words = verdict_words(self.a, self.b, self.metric, False, False, why)
        return replace(self, better=False, worse=False, sentence=words + self.sentence[length:])


def seed_matrix(results: Sequence[EvalResult], metric: str) -> npt.NDArray[np.float64]:
    """Return a metric's means over starts, float64 (S, C): one row per result, one column per scene.

    Raises:
        EvaluationError: Starts differ, or the metric is missing.
    """
    if not results:
        raise EvaluationError("there are no results")
    for other in results[1:]:
        require_pairs(results[0], other)
        if differences := protocol_differences(results[0], other):
            raise EvaluationError(
                f"{results[0].subject} and {other.subject} are seeds of one side, but their protocols differ: "
                f"{', '.join(differences)}; evaluate both with the same configuration"
            )
    order = results[0].scenes
    tables = [result.by_scene(metric) for result in results]
    return np.array([[float(np.mean(table[scene])) for scene in order] for table in tables])


def compare_seeds(
    a: Sequence[EvalResult],
    b: Sequence[EvalResult],
    metric: str = "c_vis_auc",
    *,
    names: tuple[str, str] | None = None,
) -> SeedComparison:
    """Compare two training methods by the paired two-way interval over training seeds and scenes.

    Seed i of one side is paired with seed i of the other. A side with one result, such as a pilot, counts as fixed;
    only the seeds of the other side are random. A fixed checkpoint is named in the sentence.

    Args:
        a: First side, one result per training seed.
        b: Second side: as many results, or one.
        metric: Episode metric.
        names: Names of the two sides; by default those of their first subjects.

    Raises:
        EvaluationError: The sides have different numbers of seeds, a checkpoint or run occurs twice, starts differ,
            there is only one scene, or the metric is missing.
    """
    if min(len(a), len(b)) != 1 and len(a) != len(b):
        raise EvaluationError(
            f"{len(a)} checkpoints cannot be paired with {len(b)}; give as many of both sides, or one on one side"
        )
    for side in (a, b):
        _require_different(side)
    matrix_a, matrix_b = seed_matrix(a, metric), seed_matrix(b, metric)
    require_pairs(a[0], b[0])
    # Columns of the second side in the order of the first side's scenes.
    matrix_b = matrix_b[:, [b[0].scenes.index(scene) for scene in a[0].scenes]]
    interval = two_way_interval(matrix_a - matrix_b)
    name_a, name_b = names or (a[0].subject, b[0].subject)
    better, worse, why_not = verdict_of(a, b, metric, interval.low, interval.high)
    if interval.seeds < MIN_SEEDS:
        better, worse, why_not = False, False, f"which needs {MIN_SEEDS} seeds and has {interval.seeds}"
    fixed = [side[0] for side in (a, b) if len(side) == 1 and side[0].summary.get("weights_hash") is not None]
    notes = [f"{alone.subject} is one checkpoint, not a training method." for alone in fixed] + remarks(a, b)
    verdict = verdict_words(name_a, name_b, metric, better, worse, why_not)
    both = np.concatenate([matrix_a.ravel(), matrix_b.ravel()])
    thresholds = np.linspace(both.min(), both.max(), _PROFILE_POINTS).tolist()
    return SeedComparison(
        metric=metric,
        a=name_a,
        b=name_b,
        mean_a=float(matrix_a.mean()),
        mean_b=float(matrix_b.mean()),
        iqm_a=interquartile_mean(matrix_a),
        iqm_b=interquartile_mean(matrix_b),
        mean_difference=interval.mean,
        low=interval.low,
        high=interval.high,
        degrees_of_freedom=interval.degrees_of_freedom,
        p_value=interval.p_value,
        better=better,
        worse=worse,
        seeds=interval.seeds,
        scenes=interval.scenes,
        thresholds=tuple(thresholds),
        profile_a=tuple(performance_profile(matrix_a, thresholds)),
        profile_b=tuple(performance_profile(matrix_b, thresholds)),
        sentence=" ".join(
            [
                f"{verdict}: {matrix_a.mean():.2f} against {matrix_b.mean():.2f}, "
                f"difference {interval.mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}] "
                f"over {interval.seeds} seeds and {interval.scenes} scenes.",
                *notes,
            ]
        ),
    )


def _require_different(side: Sequence[EvalResult]) -> None:
    """Refuse copies of a checkpoint and several checkpoints of one run; they are no further seeds."""
    weights: dict[str, str] = {}
    runs: dict[str, str] = {}
    for result in side:
        mine, run = result.summary.get("weights_hash"), result.summary.get("training_run_id")
        if len(side) > 1 and mine is None:
            raise EvaluationError(f"{result.subject} has no weights, so it has no training seeds; name it once")
        if mine in weights:
            raise EvaluationError(
                f"{result.subject} and {weights[mine]} have the same weights; give checkpoints of different seeds"
            )
        if run in runs:
            raise EvaluationError(
                f"{result.subject} and {runs[run]} are checkpoints of one run ({run}), not two seeds; "
                "give one of each run"
            )
        if mine is not None:
            weights[mine] = result.subject
        if run is not None:
            runs[run] = result.subject
