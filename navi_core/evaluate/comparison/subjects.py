"""Paired comparison of two subjects on the same frozen starts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from navi_core.evaluate.comparison.direction import direction
from navi_core.evaluate.comparison.pairing import mixed_code, protocol_differences, require_pairs
from navi_core.evaluate.comparison.statistics import (
    FEW_SCENES,
    RESAMPLES,
    Interval,
    interval_over_scenes,
    mean_of_scenes,
)
from navi_core.evaluate.result import EvalResult

FEWEST_STARTS = 6
"""Fewest pairs of a verdict: five pairs all fall on one side by chance in 6 % of the cases."""


@dataclass(frozen=True)
class Comparison:
    """Paired difference a − b of one metric, with its interval and verdict."""

    metric: str
    """Metric compared."""
    a: str
    """First subject."""
    b: str
    """Second subject."""
    mean_a: float
    """Mean over scenes of the first."""
    mean_b: float
    """Mean over scenes of the second."""
    mean_difference: float
    """Mean over scenes of the paired differences a − b."""
    low: float
    """Lower bound of its interval; NaN for one pair."""
    high: float
    """Upper bound of its interval; NaN for one pair."""
    better: bool
    """Whether a is better, by `verdict_of` with at least `FEWEST_STARTS`."""
    worse: bool
    """Whether a is worse, likewise."""
    scenes: int
    """Scenes compared; with one, the verdict is about that scene alone."""
    episodes: int
    """Pairs compared."""
    sentence: str
    """The verdict in words."""

    def to_row(self) -> dict[str, Any]:
        """Return plain data; NaN bounds become None."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


def compare(
    a: EvalResult, b: EvalResult, metric: str = "c_vis_auc", *, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """Compare two subjects by the paired interval over scenes and starts.

    Args:
        a: First subject.
        b: Second subject.
        metric: Episode metric.
        seed: Seed of the resampling.
        resamples: Bootstrap resamples.

    Raises:
        EvaluationError: Scenes, starts or protocols differ, or the metric is missing.
    """
    require_pairs(a, b)
    values_a, values_b = a.by_scene(metric), b.by_scene(metric)
    differences = paired_differences(a, b, metric)
    interval = interval_over_scenes(differences, seed=seed, resamples=resamples)
    mean_a, mean_b = mean_of_scenes(values_a), mean_of_scenes(values_b)
    equal = not any(value for row in differences.values() for value in row)
    enough = interval.episodes >= FEWEST_STARTS
    better, worse, why_not = verdict_of((a,), (b,), metric, interval.low, interval.high)
    if not enough:
        better, worse, why_not = False, False, f"which needs {FEWEST_STARTS} starts"
    elif interval.low == interval.high and interval.scenes < FEW_SCENES and _counted(differences):
        better, worse, why_not = False, False, "because all of so few scenes differ by the same number of flights"
    verdict = verdict_words(a.subject, b.subject, metric, better, worse, why_not)
    sentence = f"{verdict}: {mean_a:.2f} against {mean_b:.2f}, {_difference(interval, equal)}{_over(interval, a)}."
    return Comparison(
        metric=metric,
        a=a.subject,
        b=b.subject,
        mean_a=mean_a,
        mean_b=mean_b,
        mean_difference=interval.mean,
        low=interval.low,
        high=interval.high,
        better=better,
        worse=worse,
        scenes=interval.scenes,
        episodes=interval.episodes,
        sentence=" ".join([sentence, *remarks((a,), (b,))]),
    )


def paired_differences(a: EvalResult, b: EvalResult, metric: str) -> dict[str, list[float]]:
    """Return a − b of every start, by scene, for two paired results (see `require_pairs`)."""
    values_a, values_b = a.by_scene(metric), b.by_scene(metric)
    return {scene: [x - y for x, y in zip(values_a[scene], values_b[scene], strict=True)] for scene in values_a}


def verdict_of(
    a: Sequence[EvalResult], b: Sequence[EvalResult], metric: str, low: float, high: float
) -> tuple[bool, bool, str]:
    """Return whether a is better, whether it is worse, and the reason for no verdict.

    The interval of a − b must lie on one side of 0, the metric must have a better direction, and the better side must
    not have been trained on any of the scenes.

    Args:
        a: Results of the first side.
        b: Results of the second side.
        metric: Episode metric.
        low: Lower bound of the difference.
        high: Upper bound of the difference.
    """
    side = direction(metric, a[0].config.task)
    if not side:
        return False, False, "a metric without a better direction"
    better, worse = (low > 0, high < 0) if side > 0 else (high < 0, low > 0)
    if better or worse:
        for result in a if better else b:
            if known := int(result.summary.get("scenes_trained_on") or 0):
                return False, False, f"because {result.subject} was trained on {known} of these scenes"
    return better, worse, ""


def verdict_words(a: str, b: str, metric: str, better: bool, worse: bool, why_not: str) -> str:
    """Return the verdict in words, without its numbers.

    Args:
        a: The first subject.
        b: The second.
        metric: Episode metric.
        better: Whether a is better.
        worse: Whether it is worse.
        why_not: Reason for no verdict, or an empty text.
    """
    if better or worse:
        return f"{a} is {'better' if better else 'worse'} than {b} in {metric}"
    if why_not:
        return f"no verdict on {a} and {b} in {metric}, {why_not}"
    return f"no difference between {a} and {b} in {metric} is shown"


def _counted(differences: Mapping[str, Sequence[float]]) -> bool:
    """Return whether these are differences of booleans, which are often equal in all scenes by chance."""
    return all(value in (-1, 0, 1) for row in differences.values() for value in row)


def _difference(interval: Interval, equal: bool) -> str:
    if equal:
        # An interval of zero width would claim certainty.
        fraction = 1 - 0.05 ** (1 / interval.scenes)
        return f"all pairs are equal (95 % upper bound of unequal scenes: {100 * fraction:.0f} %)"
    if interval.low != interval.low:
        return f"difference {interval.mean:+.2f}"
    return f"difference {interval.mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


def _over(interval: Interval, flown: EvalResult) -> str:
    if interval.scenes == 1:
        return f" over {interval.episodes} start{'s' * (interval.episodes > 1)} of {flown.scenes[0]} alone"
    return f" over {interval.scenes} scenes and {interval.episodes} starts"


def remarks(a: Sequence[EvalResult], b: Sequence[EvalResult]) -> list[str]:
    """Return the remarks on a verdict: differences between the two sides' protocols and code."""
    differences = protocol_differences(a[0], b[0])
    found = [f"Protocols differ: {', '.join(differences)}."] if differences else []
    mixed = mixed_code([*a, *b])
    return [*found, mixed] if mixed else found
