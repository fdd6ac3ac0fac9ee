"""Statistics of evaluations: confidence intervals over scenes and starts, or seeds and scenes; Holm correction.

**Over scenes and starts.** Episodes of one scene resemble each other, so resampling episodes as if they were
independent gives intervals that are far too narrow. The bootstrap here is hierarchical (Davison & Hinkley 1997, §3.8):
first scenes with replacement, then, inside each drawn scene, its starts. Comparisons are paired: both subjects flew the
same starts, and the statistic is taken of the differences. A bootstrap over few scenes is too narrow, however many
starts each has. Below `FEW_SCENES` the interval is Student's, over the scenes' means. `navi bench interval --starts 3`
simulates the coverage of both.

Scenes of one building (`building_of`) count as one scene everywhere.

**Over training seeds and scenes.** A claim about a training method covers seeds that were not trained and scenes that
were not flown. The matrix y[i, j] = μ + seed_i + scene_j + error_ij has two random factors crossed with each other, so
that resampling episodes, or scenes alone, gives intervals that are far too narrow. The interval here is that of the
two-way random-effects analysis of variance: the variance of the mean is (MS_seed + MS_scene − MS_error) / (S·C), and a
linear combination of mean squares is nearly χ² with the degrees of freedom of Satterthwaite (1946). It is never taken
to be less than that of either factor alone, for an estimated component of variance may come out below zero.
`navi bench interval` simulates how often it covers the truth.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from navi_core.errors import EvaluationError

RESAMPLES = 10_000
"""Bootstrap resamples."""

CONFIDENCE = 0.95
"""Nominal coverage of an interval."""

FEW_SCENES = 12
"""Below this number of scenes the interval is Student's."""

FEWEST_EPISODES = 6
"""Below this number of episodes a percentage has no interval."""

_CHUNK = 4_000_000
"""Resampled numbers held at once, to bound memory."""


@dataclass(frozen=True)
class Interval:
    """Mean with its confidence interval, over scenes."""

    mean: float
    """Mean, over scenes of the scenes' means, in the unit of the values."""
    low: float
    """Lower bound; NaN for one value."""
    high: float
    """Upper bound; NaN for one value."""
    scenes: int
    """Scenes that the values come from; with one, the interval is about that scene alone."""
    episodes: int
    """Values."""


def building_of(scene: str) -> str:
    """Return the building of a scene: its name up to an @, so that hospital@2 and hospital@3 are two of one."""
    return scene.partition("@")[0]


def by_building(values: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Join the values of scenes of one building; scenes without an @ in their names stay as they are."""
    joined: dict[str, list[float]] = {}
    for scene, row in values.items():
        joined.setdefault(building_of(scene), []).extend(row)
    return joined


def mean_of_scenes(values: Mapping[str, Sequence[float]]) -> float:
    """Compute the mean over buildings of their means, so that each has equal weight; most scenes are their own."""
    return float(np.mean([np.mean(_finite(scene, row)) for scene, row in by_building(_checked(values)).items()]))


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Compute the interquartile mean (IQM): ⌊n/4⌋ values are left out at each end (Agarwal et al. 2021).

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
    """Compute the mean over buildings with its 95 % interval: Student's t below `FEW_SCENES`, else the bootstrap.

    Args:
        values: For each scene the values of its starts; for a paired interval the differences of two subjects.
        seed: Seed of the resampling.
        resamples: Bootstrap resamples.

    Raises:
        EvaluationError: No scene, a scene without values, a value that is not finite.
    """
    clusters = by_building(values)
    if len(clusters) < FEW_SCENES:
        return student_interval(clusters)
    return bootstrap_interval(clusters, seed=seed, resamples=resamples)


def percentage_interval(values: Mapping[str, Sequence[float]], *, seed: int = 0) -> Interval:
    """Compute the mean of percentages over scenes with a 95 % interval within [0, 100].

    At least `FEW_SCENES` scenes: the bootstrap. Fewer: Student's t on the logit scale, by the delta method. Fewer than
    `FEWEST_EPISODES` values: no interval.

    Args:
        values: For each scene the values of its starts [%].
        seed: Seed of the resampling.

    Returns:
        Interval [%]; its bounds are NaN where none is given.

    Raises:
        EvaluationError: No scene, a scene without values, a value that is not finite.
    """
    found = interval_over_scenes(values, seed=seed)
    if found.episodes < FEWEST_EPISODES:
        return replace(found, low=math.nan, high=math.nan)
    if found.scenes >= FEW_SCENES or found.low == found.high or not 0 < found.mean < 100:
        return found
    centre = math.log(found.mean / (100.0 - found.mean))
    half = 100.0 * (found.high - found.mean) / (found.mean * (100.0 - found.mean))
    low, high = (100.0 / (1.0 + math.exp(min(-end, 700.0))) for end in (centre - half, centre + half))
    return replace(found, low=low, high=high)


def student_interval(values: Mapping[str, Sequence[float]], *, confidence: float = CONFIDENCE) -> Interval:
    """Compute the mean with Student's t interval over the scenes' means; of one scene, over its starts.

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
    """Compute the mean over scenes with its hierarchical percentile bootstrap interval.

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


MIN_SEEDS = 5
"""Fewest training seeds of a verdict."""


@dataclass(frozen=True)
class TwoWayInterval(Interval):
    """Mean over seeds and scenes with its two-way random-effects confidence interval, in the unit of the values."""

    standard_error: float
    """Standard error of the mean."""
    degrees_of_freedom: float
    """Degrees of freedom of Student's t, by Satterthwaite."""
    seeds: int
    """Rows S; the scenes are the columns C."""

    @property
    def p_value(self) -> float:
        """Two-sided p-value of a true mean of 0."""
        from scipy.special import stdtr

        if self.standard_error == 0:
            return float(self.mean == 0)
        return 2.0 * float(stdtr(self.degrees_of_freedom, -abs(self.mean) / self.standard_error))


def two_way_interval(matrix: npt.ArrayLike, *, confidence: float = 0.95) -> TwoWayInterval:
    """Compute the mean of a seeds × scenes matrix with its two-way random-effects confidence interval.

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
    return TwoWayInterval(
        mean=mean,
        low=mean - half,
        high=mean + half,
        scenes=scenes,
        episodes=values.size,
        standard_error=error,
        degrees_of_freedom=degrees,
        seeds=seeds,
    )


def performance_profile(matrix: npt.ArrayLike, thresholds: Sequence[float]) -> list[float]:
    """Compute the performance profile: fraction of the matrix above each threshold (Agarwal et al. 2021, §4.3).

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


def binomial_bounds(successes: int, trials: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact lower and upper bound of a probability, each one-sided (Clopper & Pearson 1934)."""
    from scipy.special import betaincinv

    failures = trials - successes
    low = betaincinv(successes, failures + 1, 1 - confidence) if successes else 0.0
    return float(low), float(betaincinv(successes + 1, failures, confidence)) if failures else 1.0


def holm(p_values: Sequence[float], *, level: float = 0.05) -> list[bool]:
    """Apply the Holm correction: which hypotheses are rejected, at a family-wise error rate of at most `level`.

    Holm (1979): the smallest of n p-values has to be below level / n, the next one below level / (n − 1), and so on;
    the first that is not ends the procedure.

    Args:
        p_values: One per hypothesis, in [0, 1].
        level: Probability of at least one false rejection.

    Raises:
        EvaluationError: A p-value is not within [0, 1].
    """
    values = np.asarray(p_values, dtype=np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise EvaluationError(f"p-values are within [0, 1], not {values.min()} to {values.max()}")
    rejected = [False] * len(values)
    for rank, index in enumerate(np.argsort(values, kind="stable")):
        if values[index] >= level / (len(values) - rank):
            break
        rejected[int(index)] = True
    return rejected
