"""Means, interquartile means and intervals over scenes and starts.

Episodes of one scene resemble each other, so resampling episodes as if they were independent gives intervals that
are far too narrow. The bootstrap here is hierarchical (Davison & Hinkley 1997, §3.8): first scenes with
replacement, then, inside each drawn scene, its starts. Comparisons are paired: both subjects flew the same starts,
and the statistic is taken of the differences.

A bootstrap over few scenes is too narrow, however many starts each has. Below `FEW_SCENES` the interval is Student's,
over the scenes' means. `navi bench interval --starts 3` simulates the coverage of both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from navi_core.errors import EvaluationError

RESAMPLES = 10_000
"""Bootstrap resamples."""

CONFIDENCE = 0.95
"""Nominal coverage of an interval."""

FEW_SCENES = 12
"""Below this number of scenes the interval is Student's."""

_CHUNK = 4_000_000
"""Resampled numbers held at once, to bound memory."""


@dataclass(frozen=True)
class Interval:
    """A mean and its interval."""

    mean: float
    """Mean over scenes of the scenes' means, in the unit of the values."""
    low: float
    """Lower bound; NaN for one value."""
    high: float
    """Upper bound; NaN for one value."""
    scenes: int
    """Scenes that the values come from; with one, the interval is about that scene alone."""
    episodes: int
    """Values."""


def mean_of_scenes(values: Mapping[str, Sequence[float]]) -> float:
    """Return the mean over scenes of the scenes' means, so that every scene has equal weight."""
    return float(np.mean([np.mean(_finite(scene, row)) for scene, row in _checked(values).items()]))


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Return the mean of the middle half: ⌊n/4⌋ values are left out at each end (Agarwal et al. 2021).

    Args:
        values: Numbers, any shape.

    Raises:
        EvaluationError: No values, or one that is not finite.
    """
    flat = np.sort(_finite("values", np.asarray(values, dtype=np.float64).ravel()))
    cut = len(flat) // 4
    return float(flat[cut : len(flat) - cut].mean())


def interval_over_scenes(
    values: Mapping[str, Sequence[float]], *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Return the mean over scenes with its 95 % interval: Student's below `FEW_SCENES`, else the bootstrap's.

    Args:
        values: For each scene the values of its starts; for a paired interval the differences of two subjects.
        seed: Seed of the resampling.
        resamples: Bootstrap resamples.

    Raises:
        EvaluationError: No scene, a scene without values, a value that is not finite.
    """
    if len(values) < FEW_SCENES:
        return student_interval(values)
    return bootstrap_interval(values, seed=seed, resamples=resamples)


def student_interval(values: Mapping[str, Sequence[float]], *, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean over scenes with Student's interval of the scenes' means; of one scene, of its starts.

    Args:
        values: For each scene the values of its starts.
        confidence: Nominal coverage in (0, 1).

    Raises:
        EvaluationError: No scene, a scene without values, a value that is not finite.
    """
    # Imported lazily: scipy.special takes a while.
    from scipy.special import stdtrit

    rows = [_finite(scene, row) for scene, row in sorted(_checked(values).items())]
    means = np.array([row.mean() for row in rows]) if len(rows) > 1 else rows[0]
    half = float("nan")
    if len(means) > 1:
        error = float(means.std(ddof=1)) / float(np.sqrt(len(means)))
        half = float(stdtrit(len(means) - 1, 0.5 + confidence / 2.0)) * error
    mean = float(means.mean())
    return Interval(mean, mean - half, mean + half, scenes=len(rows), episodes=sum(len(row) for row in rows))


def bootstrap_interval(
    values: Mapping[str, Sequence[float]],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return the mean over scenes with its hierarchical percentile bootstrap interval.

    Args:
        values: For each scene the values of its starts; for a paired interval the differences of two subjects.
        seed: Seed of the resampling.
        resamples: Bootstrap resamples.
        confidence: Nominal coverage in (0, 1).

    Raises:
        EvaluationError: No scene, a scene without values, a value that is not finite, an impossible setting.
    """
    if resamples < 1 or not 0 < confidence < 1:
        raise EvaluationError(f"resamples {resamples} must be ≥ 1 and confidence {confidence} within (0, 1)")
    rows = [_finite(scene, row) for scene, row in sorted(_checked(values).items())]
    lengths = np.array([len(row) for row in rows])
    table = np.zeros((len(rows), lengths.max()))
    for index, row in enumerate(rows):
        table[index, : len(row)] = row

    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    chunk = max(1, _CHUNK // table.size)
    for first in range(0, resamples, chunk):
        count = min(chunk, resamples - first)
        scenes = generator.integers(0, len(rows), size=(count, len(rows)))
        picks = generator.random((count, len(rows), table.shape[1]))
        size = lengths[scenes][:, :, None]
        starts = (picks * size).astype(np.int64)
        drawn = table[scenes[:, :, None], starts]
        counted = np.arange(table.shape[1]) < size
        means[first : first + count] = ((drawn * counted).sum(2) / size[:, :, 0]).mean(1)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(means, [tail, 100.0 - tail])
    return Interval(
        mean=float(np.mean([row.mean() for row in rows])),
        low=float(low),
        high=float(high),
        scenes=len(rows),
        episodes=int(lengths.sum()),
    )


def _checked(values: Mapping[str, Sequence[float]]) -> Mapping[str, Sequence[float]]:
    if not values:
        raise EvaluationError("no scene to take statistics of")
    return values


def _finite(scene: str, row: Sequence[float] | np.ndarray) -> np.ndarray:
    numbers = np.asarray(row, dtype=np.float64)
    if numbers.size == 0:
        raise EvaluationError(f"{scene}: no values to take statistics of")
    if not np.isfinite(numbers).all():
        raise EvaluationError(f"{scene}: {int((~np.isfinite(numbers)).sum())} of {numbers.size} values are not finite")
    return numbers
