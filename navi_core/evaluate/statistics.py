"""Means, interquartile means and bootstrap intervals that treat scenes and starts as random.

Episodes of one scene resemble each other, so resampling episodes as if they were independent gives intervals that
are far too narrow. The bootstrap here is hierarchical (Davison & Hinkley 1997, §3.8): first scenes with
replacement, then, inside each drawn scene, its starts. Comparisons are paired: both subjects flew the same starts,
and the statistic is taken of the differences.

How often a nominal 95 % interval covered the truth in 600 simulated worlds, scenes spread as widely as starts within
them: 4 scenes × 3 starts 86 % (scenes half as wide: 91 %), 12 × 4 94 %; 20 × 10 with half as wide scenes 97 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from navi_core.errors import EvaluationError

__all__ = ["Interval", "bootstrap_interval", "interquartile_mean", "mean_of_scenes"]

RESAMPLES = 10_000
"""Bootstrap resamples."""

CONFIDENCE = 0.95
"""Nominal coverage of an interval."""

_CHUNK = 4_000_000
"""Resampled numbers held at once, to bound memory."""


@dataclass(frozen=True)
class Interval:
    """A mean and its percentile bootstrap interval."""

    mean: float
    """Mean over scenes of the scenes' means, in the unit of the values."""
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""
    scenes: int
    """Scenes that the values come from."""
    episodes: int
    """Values."""


def mean_of_scenes(values: Mapping[str, Sequence[float]]) -> float:
    """Return the mean over scenes of the means of their values, so that every scene counts alike."""
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
