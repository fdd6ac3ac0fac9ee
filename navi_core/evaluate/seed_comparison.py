"""Comparing two ways of training: several checkpoints a side, that differ in their training seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import EvaluationError
from navi_core.evaluate.comparison import LOWER_IS_BETTER, require_pairs
from navi_core.evaluate.random_effects import MIN_SEEDS, performance_profile, two_way_interval
from navi_core.evaluate.result import EvalResult
from navi_core.evaluate.statistics import interquartile_mean

__all__ = ["SeedComparison", "compare_seeds", "seed_matrix"]

_PROFILE_POINTS = 21
"""Thresholds of a performance profile."""


@dataclass(frozen=True)
class SeedComparison:
    """The paired difference a − b of one metric over seeds and scenes, and what may be said of it."""

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
    """Of that interval."""
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
    """Share of seeds × scenes above each threshold, of the first."""
    profile_b: tuple[float, ...]
    """The same of the second."""
    sentence: str
    """The verdict in words."""

    def to_row(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def seed_matrix(results: Sequence[EvalResult], metric: str) -> npt.NDArray[np.float64]:
    """Return a metric's means over starts, float64 (S, C): one row per result, one column per scene.

    Raises:
        EvaluationError: The results flew other starts, or the metric is missing.
    """
    if not results:
        raise EvaluationError("no results to make a matrix of seeds × scenes of")
    for other in results[1:]:
        require_pairs(results[0], other)
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
    """Compare two ways of training by the paired two-way interval over training seeds and scenes.

    Seed i of one side is paired with seed i of the other. A side of one result, such as a pilot, is taken as fixed:
    then the seeds of the other side alone are random.

    Args:
        a: The side that may be better, one result per training seed.
        b: The side it is compared with: as many, or one.
        metric: Episode metric.
        names: What the two sides are called; by default as their first subjects.

    Raises:
        EvaluationError: Sides of different numbers of seeds, a checkpoint named twice, other starts, one scene alone,
            or the metric is missing.
    """
    if min(len(a), len(b)) != 1 and len(a) != len(b):
        raise EvaluationError(
            f"{len(a)} checkpoints cannot be paired with {len(b)}; give as many of both sides, or one on one side"
        )
    for side in (a, b):
        _require_different(side)
    matrix_a, matrix_b = seed_matrix(a, metric), seed_matrix(b, metric)
    require_pairs(a[0], b[0])
    # The second side's columns are ordered as the first side's scenes.
    matrix_b = matrix_b[:, [b[0].scenes.index(scene) for scene in a[0].scenes]]
    interval = two_way_interval(matrix_a - matrix_b)
    name_a, name_b = names or (a[0].subject, b[0].subject)
    above, below = interval.low > 0, interval.high < 0
    good, bad = (below, above) if metric in LOWER_IS_BETTER else (above, below)
    enough = interval.seeds >= MIN_SEEDS
    if not enough:
        verdict = f"no verdict on {name_a} and {name_b} in {metric}, for {interval.seeds} seeds are under {MIN_SEEDS}"
    elif good or bad:
        verdict = f"{name_a} is {'better' if good else 'worse'} than {name_b} in {metric}"
    else:
        verdict = f"no difference between {name_a} and {name_b} in {metric} is shown"
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
        better=enough and good,
        worse=enough and bad,
        seeds=interval.seeds,
        scenes=interval.scenes,
        thresholds=tuple(thresholds),
        profile_a=tuple(performance_profile(matrix_a, thresholds)),
        profile_b=tuple(performance_profile(matrix_b, thresholds)),
        sentence=(
            f"{verdict}: {matrix_a.mean():.2f} against {matrix_b.mean():.2f}, difference {interval.mean:+.2f} "
            f"[{interval.low:+.2f}, {interval.high:+.2f}] over {interval.seeds} seeds and {interval.scenes} scenes."
        ),
    )


def _require_different(side: Sequence[EvalResult]) -> None:
    """Refuse one checkpoint under two names: a copy is no second seed."""
    known: dict[str, str] = {}
    for result in side:
        weights = result.summary.get("weights_hash")
        if len(side) > 1 and weights is None:
            raise EvaluationError(f"{result.subject} has no weights, so it has no training seeds; name it once")
        if weights is not None and weights in known:
            raise EvaluationError(
                f"{result.subject} and {known[weights]} have the same weights; give checkpoints of different seeds"
            )
        known[str(weights)] = result.subject
