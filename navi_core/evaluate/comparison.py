"""Comparing two subjects that flew the same frozen starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from navi_core.errors import EvaluationError
from navi_core.evaluate.result import EvalResult
from navi_core.evaluate.statistics import RESAMPLES, bootstrap_interval

__all__ = ["LOWER_IS_BETTER", "Comparison", "compare", "require_pairs"]

LOWER_IS_BETTER = frozenset(
    {"collisions", "collisions_per_minute", "collisions_per_100m", "goal_distance"}
    | {f"{name}_steps_to_{share}" for name in ("c_vis", "c_visit", "c_surf") for share in (50, 75, 90)}
)
"""Metrics of which less is better; of every other more is."""

FEWEST_STARTS = 6
"""Of fewer pairs nothing is said: all of five fall on one side by chance in 6 % of the cases."""
_POSE = ("start_x", "start_y", "start_z", "start_yaw")
_GOAL = ("goal_x", "goal_y", "goal_z")


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
    """Lower bound of its interval."""
    high: float
    """Upper bound of its interval."""
    better: bool
    """Whether a is better: there are `FEWEST_STARTS`, and the interval lies wholly on the good side of 0."""
    worse: bool
    """Whether a is worse: likewise, wholly on the bad side."""
    scenes: int
    """Scenes compared."""
    episodes: int
    """Pairs compared."""
    sentence: str
    """The verdict in words."""

    def to_row(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def compare(
    a: EvalResult, b: EvalResult, metric: str = "c_vis_auc", *, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """Compare two subjects by the paired bootstrap interval over scenes and starts.

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
    differences = {scene: [x - y for x, y in zip(values_a[scene], values_b[scene], strict=True)] for scene in values_a}
    interval = bootstrap_interval(differences, seed=seed, resamples=resamples)
    mean_a = bootstrap_interval(values_a, resamples=1).mean
    mean_b = bootstrap_interval(values_b, resamples=1).mean
    above, below = interval.low > 0, interval.high < 0
    enough = interval.episodes >= FEWEST_STARTS
    better, worse = ((below, above) if metric in LOWER_IS_BETTER else (above, below)) if enough else (False, False)
    if not enough:
        verdict = (
            f"no verdict on {a.subject} and {b.subject} in {metric}, {FEWEST_STARTS} starts are the fewest for one"
        )
    elif better or worse:
        verdict = f"{a.subject} is {'better' if better else 'worse'} than {b.subject} in {metric}"
    else:
        verdict = f"no difference between {a.subject} and {b.subject} in {metric} is shown"
    sentence = (
        f"{verdict}: {mean_a:.2f} against {mean_b:.2f}, difference {interval.mean:+.2f} "
        f"[{interval.low:+.2f}, {interval.high:+.2f}] over {interval.scenes} scenes and {interval.episodes} starts."
    )
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
        sentence=sentence,
    )


def require_pairs(a: EvalResult, b: EvalResult) -> None:
    """Refuse results whose episodes are not pairs: same scenes, same starts, same length, same physics.

    Raises:
        EvaluationError: They flew other scenes, starts or protocols.
    """
    starts = [{(row["scene"], row["start"]): row for row in result.episodes} for result in (a, b)]
    if starts[0].keys() != starts[1].keys():
        odd = sorted(starts[0].keys() ^ starts[1].keys())[0]
        raise EvaluationError(
            f"{a.subject} and {b.subject} flew different starts (scene {odd[0]}, start {odd[1]} is in one of them "
            "alone); evaluate both on the same scenes with the same configuration"
        )
    for key, row in starts[0].items():
        other = starts[1][key]
        for name in ("scene_hash", *_POSE, *_GOAL, "max_steps", "decision_hz", "view_radius", "floor_cell"):
            # Files of before there were goals have none.
            if row.get(name) != other.get(name):
                raise EvaluationError(
                    f"{a.subject} and {b.subject} flew different starts: {name} of scene {key[0]}, start {key[1]} "
                    f"is {row.get(name)} and {other.get(name)}; evaluate both with the same configuration"
                )
