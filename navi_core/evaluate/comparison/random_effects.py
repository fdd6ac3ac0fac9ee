"""Two-way random-effects interval of a mean over training seeds and scenes.

A claim about a training method covers seeds that were not trained and scenes that were not flown. The
matrix y[i, j] = μ + seed_i + scene_j + error_ij has two random factors crossed with each other, so that resampling
episodes, or scenes alone, gives intervals that are far too narrow. The interval here is that of the two-way
random-effects analysis of variance: the variance of the mean is (MS_seed + MS_scene − MS_error) / (S·C), and a linear
combination of mean squares is nearly χ² with the degrees of freedom of Satterthwaite (1946). It is never taken to be
less than that of either factor alone, for an estimated component of variance may come out below zero.

`navi bench interval` simulates how often it covers the truth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from navi_core.errors import EvaluationError

MIN_SEEDS = 5
"""Fewest training seeds of a verdict."""


@dataclass(frozen=True)
class TwoWayInterval:
    """Mean over seeds and scenes with its two-way random-effects interval, in the unit of the values."""

    mean: float
    """Mean of the matrix."""
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""
    standard_error: float
    """Standard error of the mean."""
    degrees_of_freedom: float
    """Degrees of freedom of Student's t, by Satterthwaite."""
    seeds: int
    """Rows S."""
    scenes: int
    """Columns C."""

    @property
    def p_value(self) -> float:
        """Two-sided p-value of a true mean of 0."""
        from scipy.special import stdtr

        if self.standard_error == 0:
            return float(self.mean == 0)
        return 2.0 * float(stdtr(self.degrees_of_freedom, -abs(self.mean) / self.standard_error))


def two_way_interval(matrix: npt.ArrayLike, *, confidence: float = 0.95) -> TwoWayInterval:
    """Return the mean of a matrix with its two-way random-effects interval.

    Args:
        matrix: Values (S, C) of S ≥ 2 seeds on C ≥ 2 scenes, each the mean over the scene's starts; for a paired
            interval the differences of two subjects.
        confidence: Nominal coverage in (0, 1).

    Raises:
        EvaluationError: Fewer than two seeds or scenes, a value that is not finite, an impossible confidence.
    """
    # Imported lazily: scipy.special takes a while.
    from scipy.special import stdtrit

    values = _matrix(matrix)
    seeds, scenes = values.shape
    if seeds < 2 or scenes < 2:
        raise EvaluationError(
            f"an interval over seeds and scenes needs two of each and has {seeds} and {scenes}; train and evaluate more"
        )
    if not 0 < confidence < 1:
        raise EvaluationError(f"confidence is {confidence}; allowed: within (0, 1)")
    mean = float(values.mean())
    of_seeds, of_scenes = values.mean(axis=1, keepdims=True), values.mean(axis=0, keepdims=True)
    freedom = np.array([seeds - 1, scenes - 1, (seeds - 1) * (scenes - 1)], dtype=np.float64)
    residual = values - of_seeds - of_scenes + mean
    squares = np.array(
        [scenes * ((of_seeds - mean) ** 2).sum(), seeds * ((of_scenes - mean) ** 2).sum(), (residual**2).sum()]
    )
    mean_squares = squares / freedom
    combined = float(max(mean_squares[0] + mean_squares[1] - mean_squares[2], mean_squares[0], mean_squares[1]))
    fewest = float(freedom[:2].min())
    spread = float((mean_squares**2 / freedom).sum())
    degrees = max(combined**2 / spread, fewest) if spread > 0 else fewest
    error = float(np.sqrt(combined / values.size))
    half = float(stdtrit(degrees, 0.5 + confidence / 2.0)) * error
    return TwoWayInterval(mean, mean - half, mean + half, error, degrees, seeds, scenes)


def performance_profile(matrix: npt.ArrayLike, thresholds: Sequence[float]) -> list[float]:
    """Return the fraction of the matrix above each threshold (Agarwal et al. 2021, §4.3), in [0, 1].

    Args:
        matrix: Values (S, C).
        thresholds: τ, in the unit of the values.

    Raises:
        EvaluationError: A value is not finite, or the matrix is empty.
    """
    values = _matrix(matrix)
    return [float((values > threshold).mean()) for threshold in thresholds]


def _matrix(matrix: npt.ArrayLike) -> npt.NDArray[np.float64]:
    values = np.asarray(matrix, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise EvaluationError(f"values of shape {values.shape} are no matrix of seeds × scenes")
    if not np.isfinite(values).all():
        raise EvaluationError(f"{int((~np.isfinite(values)).sum())} of {values.size} values are not finite")
    return values
