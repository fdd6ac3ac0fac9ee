"""Comparing two subjects that flew the same frozen starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from navi_core.evaluate.comparison.direction import direction
from navi_core.evaluate.comparison.pairing import mixed_code, require_pairs, unlike
from navi_core.evaluate.comparison.statistics import (
    FEW_SCENES,
    RESAMPLES,
    Interval,
    interval_over_scenes,
    mean_of_scenes,
)
from navi_core.evaluate.result import EvalResult

__all__ = ["Comparison", "compare", "judged", "paired_differences", "remarks", "verdict_words"]

FEWEST_STARTS = 6
"""Of fewer pairs nothing is said: all of five fall on one side by chance in 6 % of the cases."""


@dataclass(frozen=True)
class Comparison:
    """The paired difference a − b of one metric, and what may be said of it."""

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
    """Lower bound of its interval; NaN of one pair."""
    high: float
    """Upper bound of its interval; NaN of one pair."""
    better: bool
    """Whether a is better: `judged`, and there are `FEWEST_STARTS`."""
    worse: bool
    """Whether a is worse: likewise."""
    scenes: int
    """Scenes compared; with one, the verdict is about that scene alone."""
    episodes: int
    """Pairs compared."""
    sentence: str
    """The verdict in words."""

    def to_row(self) -> dict[str, Any]:
        """Return plain data; bounds that one pair does not have are None."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


def compare(
    a: EvalResult, b: EvalResult, metric: str = "c_vis_auc", *, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """Compare two subjects by the paired interval over scenes and starts.

    Args:
        a: The one that may be better.
        b: The one it is compared with.
        metric: Episode metric.
        seed: Seed of the resampling.
        resamples: Bootstrap resamples.

    Raises:
        EvaluationError: The two flew other scenes, starts or protocols, or the metric is missing.
    """
    require_pairs(a, b)
    values_a, values_b = a.by_scene(metric), b.by_scene(metric)
    differences = paired_differences(a, b, metric)
    interval = interval_over_scenes(differences, seed=seed, resamples=resamples)
    mean_a, mean_b = mean_of_scenes(values_a), mean_of_scenes(values_b)
    equal = not any(value for row in differences.values() for value in row)
    enough = interval.episodes >= FEWEST_STARTS
    better, worse, why_not = judged((a,), (b,), metric, interval.low, interval.high)
    if not enough:
        better, worse, why_not = False, False, f"{FEWEST_STARTS} starts are the fewest for one"
    elif interval.low == interval.high and interval.scenes < FEW_SCENES and _counted(differences):
        better, worse, why_not = False, False, "for so few scenes that all differ by the same number of flights"
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
    """Return a − b of every start, by scene; the two have to be pairs (`require_pairs`)."""
    values_a, values_b = a.by_scene(metric), b.by_scene(metric)
    return {scene: [x - y for x, y in zip(values_a[scene], values_b[scene], strict=True)] for scene in values_a}


def judged(
    a: Sequence[EvalResult], b: Sequence[EvalResult], metric: str, low: float, high: float
) -> tuple[bool, bool, str]:
    """Tell whether a is better, whether it is worse, and why neither may be said, if so.

    The interval of a − b has to lie on one side of 0, the metric needs a better side, and who is called better must
    not have been trained on one of the scenes: there it shows what it remembers.

    Args:
        a: The results of the first side.
        b: The second's.
        metric: Episode metric.
        low: Lower bound of the difference.
        high: Upper bound.
    """
    side = direction(metric, a[0].config.task)
    if not side:
        return False, False, "of which neither more nor less is better"
    better, worse = (low > 0, high < 0) if side > 0 else (high < 0, low > 0)
    if better or worse:
        for result in a if better else b:
            if known := int(result.summary.get("scenes_trained_on") or 0):
                return False, False, f"for {result.subject} was trained on {known} of these scenes"
    return better, worse, ""


def verdict_words(a: str, b: str, metric: str, better: bool, worse: bool, why_not: str) -> str:
    """Return the verdict in words, without its numbers.

    Args:
        a: The first subject.
        b: The second.
        metric: What they were compared in.
        better: Whether a is better.
        worse: Whether it is worse.
        why_not: Why neither may be said; empty where nothing forbids it.
    """
    if better or worse:
        return f"{a} is {'better' if better else 'worse'} than {b} in {metric}"
    if why_not:
        return f"no verdict on {a} and {b} in {metric}, {why_not}"
    return f"no difference between {a} and {b} in {metric} is shown"


def _counted(differences: Mapping[str, Sequence[float]]) -> bool:
    """Whether these are differences of yes and no, which are often the same in every scene by chance."""
    return all(value in (-1, 0, 1) for row in differences.values() for value in row)


def _difference(interval: Interval, equal: bool) -> str:
    if equal:
        # An interval of no width would say that there is none anywhere.
        share = 1 - 0.05 ** (1 / interval.scenes)
        return f"all pairs are equal (in up to {100 * share:.0f} % of such scenes they might not be)"
    if interval.low != interval.low:
        return f"difference {interval.mean:+.2f}"
    return f"difference {interval.mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


def _over(interval: Interval, flown: EvalResult) -> str:
    if interval.scenes == 1:
        return f" over {interval.episodes} start{'s' * (interval.episodes > 1)} of {flown.scenes[0]} alone"
    return f" over {interval.scenes} scenes and {interval.episodes} starts"


def remarks(a: Sequence[EvalResult], b: Sequence[EvalResult]) -> list[str]:
    """Return the sentences that have to follow a verdict: what differs in how the two sides were flown."""
    told = unlike(a[0], b[0])
    alike = [f"Not flown alike: {', '.join(told)}."] if told else []
    mixed = mixed_code([*a, *b])
    return [*alike, mixed] if mixed else alike
