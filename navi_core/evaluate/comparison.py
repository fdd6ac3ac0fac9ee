"""Paired statistical comparisons on the same frozen starts: two subjects, or two training methods over their seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from navi_core.config import EvalConfig
from navi_core.errors import EvaluationError
from navi_core.evaluate.result import EvalResult, direction
from navi_core.evaluate.statistics import (
    FEW_SCENES,
    MIN_SEEDS,
    RESAMPLES,
    Interval,
    binomial_bounds,
    building_of,
    interquartile_mean,
    interval_over_scenes,
    mean_of_scenes,
    performance_profile,
    two_way_interval,
)

FEWEST_STARTS = 6
"""Least number of pairs for a verdict: five pairs all fall on one side by chance in 6 % of the cases."""
_PROFILE_POINTS = 21
"""Number of thresholds of a performance profile."""
_POSE = ("start_x", "start_y", "start_z", "start_yaw")
_GOAL = ("goal_x", "goal_y", "goal_z")
_RULES = ("task", "dynamics", "clearance_margin", "visit_cell")
"""Protocol settings that must be equal in a pair; further ones are columns of the episodes."""

_NAMED: dict[str, Callable[[EvalConfig], str]] = {
    "sensor": lambda config: "sensor clean" if config.sensor == type(config.sensor)() else "sensor noisy",
    "odometry": lambda config: f"drift of {100 * config.odometry.scale:g} % and {config.odometry.gyro_degrees:g} °/s",
    "deterministic": lambda config: "mean actions" if config.deterministic else "sampled actions",
    "recovery": lambda config: {None: "recovery as trained", True: "recovery", False: "no recovery"}[config.recovery],
    "done_after": lambda config: f"done_after {config.done_after}",
}
"""Settings that may differ in a pair, with their values in words."""


def require_pairs(a: EvalResult, b: EvalResult) -> None:
    """Validate that two results are paired samples: same scenes, same starts, same length, same physics.

    Raises:
        EvaluationError: Scenes, starts or protocols differ.
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
            # Older files have no goals.
            if row.get(name) != other.get(name):
                raise EvaluationError(
                    f"{a.subject} and {b.subject} flew different starts: {name} of scene {key[0]}, start {key[1]} "
                    f"is {row.get(name)} and {other.get(name)}; evaluate both with the same configuration"
                )
    for name in (*_RULES, *(("goal",) if a.config.task == "point_goal" else ())):
        mine, theirs = getattr(a.config, name), getattr(b.config, name)
        if mine != theirs:
            raise EvaluationError(
                f"{a.subject} and {b.subject} flew by different rules: {name} is {mine} and {theirs}; evaluate both "
                "with the same configuration"
            )


def protocol_differences(a: EvalResult, b: EvalResult) -> list[str]:
    """List the permitted protocol differences of two paired results, in words.

    Such a pair may be intended (a noisy sensor against a clean one), but a verdict must mention it.
    """
    differences = []
    for name, words in _NAMED.items():
        if getattr(a.config, name) != getattr(b.config, name):
            mine, theirs = words(a.config), words(b.config)
            differences.append(f"{mine} against {theirs}" if mine != theirs else f"another {name}")
    return differences


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Paired difference a − b of one metric, with its confidence interval and verdict."""

    metric: str
    """Metric compared."""
    a: str
    """First side."""
    b: str
    """Second side."""
    mean_a: float
    """Mean of the first."""
    mean_b: float
    """Mean of the second."""
    mean_difference: float
    """Mean of the paired differences a − b."""
    low: float
    """Lower bound of its interval; NaN for one pair."""
    high: float
    """Upper bound of its interval; NaN for one pair."""
    better: bool
    """Whether a is better, by `verdict_of` with enough pairs or seeds."""
    worse: bool
    """Whether a is worse, likewise."""
    scenes: int
    """Scenes compared; with one, the verdict is about that scene alone."""
    sentence: str
    """The verdict in words."""

    def to_row(self) -> dict[str, Any]:
        """Convert to a JSON-compatible dictionary; NaN bounds become None."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class Comparison(Verdict):
    """Paired comparison of two subjects over scenes and starts; means are over scenes."""

    episodes: int
    """Pairs compared."""


@dataclass(frozen=True, kw_only=True)
class SeedComparison(Verdict):
    """Paired comparison of two training methods over seeds and scenes, by the two-way confidence interval."""

    iqm_a: float
    """Interquartile mean over seeds and scenes of the first."""
    iqm_b: float
    """Interquartile mean over seeds and scenes of the second."""
    degrees_of_freedom: float
    """Degrees of freedom of the interval."""
    p_value: float
    """p-value of no difference, by the same statistic."""
    seeds: int
    """Training seeds compared."""
    thresholds: tuple[float, ...]
    """Thresholds of the performance profiles, in the metric's unit."""
    profile_a: tuple[float, ...]
    """Fraction of seeds × scenes above each threshold, first side."""
    profile_b: tuple[float, ...]
    """The same for the second side."""

    def withheld(self, why: str) -> Self:
        """Return a copy without a verdict but with the reason why; its numbers stay."""
        length = len(verdict_words(self.a, self.b, self.metric, self.better, self.worse, ""))
        words = verdict_words(self.a, self.b, self.metric, False, False, why)
        return replace(self, better=False, worse=False, sentence=words + self.sentence[length:])


def compare(
    a: EvalResult, b: EvalResult, metric: str | None = None, *, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """Compare two subjects by the paired confidence interval over scenes and starts.

    Args:
        a: First subject.
        b: Second subject.
        metric: Episode metric; by default the protocol's `coverage_metric`.
        seed: Seed of the resampling.
        resamples: Bootstrap resamples.

    Raises:
        EvaluationError: Scenes, starts or protocols differ, or the metric is missing.
    """
    require_pairs(a, b)
    metric = metric or a.config.coverage_metric
    differences = paired_differences(a, b, metric)
    interval = interval_over_scenes(differences, seed=seed, resamples=resamples)
    mean_a, mean_b = (mean_of_scenes(side.by_scene(metric)) for side in (a, b))
    equal = not any(value for row in differences.values() for value in row)
    better, worse, why_not = verdict_of((a,), (b,), metric, interval.low, interval.high)
    if interval.episodes < FEWEST_STARTS:
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
    """Compute the paired differences a − b of every start, by scene, of two paired results (see `require_pairs`)."""
    values_a, values_b = a.by_scene(metric), b.by_scene(metric)
    return {scene: [x - y for x, y in zip(values_a[scene], values_b[scene], strict=True)] for scene in values_a}


def verdict_of(
    a: Sequence[EvalResult], b: Sequence[EvalResult], metric: str, low: float, high: float
) -> tuple[bool, bool, str]:
    """Classify a difference's interval: whether a is better, whether it is worse, and the reason for no verdict.

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
    """Format the verdict as a sentence, without its numbers.

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
    """Return whether all paired differences are −1, 0 or 1 (a binary metric), where ties in all scenes are likely."""
    return all(value in (-1, 0, 1) for row in differences.values() for value in row)


def _difference(interval: Interval, equal: bool) -> str:
    if equal:
        # An interval of zero width would claim certainty.
        fraction = binomial_bounds(0, interval.scenes)[1]
        return f"all pairs are equal (95 % upper bound of unequal scenes: {100 * fraction:.0f} %)"
    if interval.low != interval.low:
        return f"difference {interval.mean:+.2f}"
    return f"difference {interval.mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


def _over(interval: Interval, flown: EvalResult) -> str:
    if interval.scenes == 1:
        return f" over {interval.episodes} start{'s' * (interval.episodes > 1)} of {flown.scenes[0]} alone"
    return f" over {interval.scenes} scenes and {interval.episodes} starts"


def remarks(a: Sequence[EvalResult], b: Sequence[EvalResult]) -> list[str]:
    """List remarks on a verdict: differences between the two sides' protocols and code versions."""
    differences = protocol_differences(a[0], b[0])
    found = [f"Protocols differ: {', '.join(differences)}."] if differences else []
    # Old results hold no version: they differ from newer ones, and nothing is known of two old ones.
    mixed = len({result.summary.get("flight_code") for result in (*a, *b)}) > 1
    return [*found, "Flown by different versions of Navi's code."] if mixed else found


def seed_matrix(
    results: Sequence[EvalResult], metric: str, scenes: Sequence[str] | None = None
) -> npt.NDArray[np.float64]:
    """Build the matrix of a metric's means over starts, float64 (S, C): one row per result (seed), a column per scene.

    Args:
        results: One per seed.
        metric: Episode metric.
        scenes: Order of the columns; by default that of the first result.

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
    order = scenes or results[0].scenes
    tables = [result.by_scene(metric) for result in results]
    return np.array([[float(np.mean(table[scene])) for scene in order] for table in tables])


# A third documents the arguments, a third fills the columns of one row.
def compare_seeds(
    a: Sequence[EvalResult],
    b: Sequence[EvalResult],
    metric: str | None = None,
    *,
    names: tuple[str, str] | None = None,
) -> SeedComparison:
    """Compare two training methods by the paired two-way confidence interval over training seeds and scenes.

    Seed i of one side is paired with seed i of the other. A side with one result, such as a pilot, counts as fixed;
    only the seeds of the other side are random. A fixed checkpoint is named in the sentence.

    Args:
        a: First side, one result per training seed.
        b: Second side: as many results, or one.
        metric: Episode metric; by default the protocol's `coverage_metric`.
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
    metric = metric or next((result.config.coverage_metric for result in a), "c_vis_auc")
    matrix_a = seed_matrix(a, metric)
    require_pairs(a[0], b[0])
    matrix_b = seed_matrix(b, metric, a[0].scenes)
    buildings = [building_of(scene) for scene in a[0].scenes]
    matrix_a, matrix_b = (_by_building(matrix, buildings) for matrix in (matrix_a, matrix_b))
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


def _by_building(matrix: np.ndarray, buildings: list[str]) -> np.ndarray:
    """Average the columns of a matrix of seeds × scenes that belong to one building; their order stays."""
    named = np.array(buildings)
    return np.stack([matrix[:, named == name].mean(axis=1) for name in dict.fromkeys(buildings)], axis=1)


def _require_different(side: Sequence[EvalResult]) -> None:
    """Validate that results are independent seeds: no checkpoint twice, no two checkpoints of one run."""
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
