"""Comparison of training runs: settings that differ, final figures, cost, curves, paired intervals on shared courses.

A pure function of what the runs recorded; `navi_pipeline.lib.reports.compared_runs` reads it from the warehouse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from navi_core.errors import EvaluationError
from navi_core.evaluate.comparison import compare
from navi_core.evaluate.result import EvalResult

CURVES: dict[str, str] = {
    "reward_ema": "reward per decision, smoothed",
    "episode_return": "return of an episode",
    "view_gain": "floor seen [m² per decision]",
    "collision_rate": "collisions per decision",
    "entropy": "spread of the actions [nats]",
    "approx_kl": "how far an update moves the policy [nats]",
    "explained_variance": "share of the returns' variance that the critic predicts",
    "sps": "decisions per second",
    "nll": "negative log-likelihood (cloning)",
    "validation_nll": "negative log-likelihood, held-out flights (cloning)",
}
"""Metrics of training that are compared, with their meaning and unit."""

COSTS: dict[str, str] = {"decisions": "decisions", "cpu_seconds": "CPU [s]", "wall_seconds": "training time [s]"}
"""What a run cost, with its label and unit."""

_METRICS = {"explore": ("c_seen_auc", "c_vis_auc", "collisions_per_minute"), "point_goal": ("success", "spl")}
"""Task → metrics of evaluations that are compared, where all flights have them."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """Recorded facts of one run, or of a registered version of it."""

    name: str
    """Its name in the comparison: a run, a version or an alias."""
    run_id: str
    """The training run."""
    version: str | None = None
    """Version of the registry that was evaluated; None for a run without one."""
    status: str | None = None
    """running, finished or stopped; None for a run of another home."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Configuration, nested; empty where it is not recorded."""
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    """Metric → decisions and values of its points, in order."""
    cost: Mapping[str, float | None] = field(default_factory=dict)
    """Values of `COSTS`."""
    evaluations: Mapping[str, EvalResult] = field(default_factory=dict)
    """Course → its latest evaluation there; the episodes may be without poses, which the course fixes."""


def compare_runs(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Compare two or more runs; the first is the baseline of the paired intervals.

    Returns:
        JSON data. `runs`: name, run_id, version, status of each. `settings`: setting and values of those that differ,
        one value per run, None where a run lacks it. `figures`: metric, meaning and last values. `cost`: cost, label
        and values. `curves`: metric → meaning and lines, each with steps [decisions] and values. `intervals`: per
        shared course and metric the fields of `Comparison` of a later run (a) minus the baseline (b), with the
        course's hash and name.

    Raises:
        EvaluationError: There are fewer than two runs, or one occurs twice.
    """
    if len(runs) < 2:
        raise EvaluationError(f"{len(runs)} runs cannot be compared; name two or more: navi runs compare A B")
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        raise EvaluationError(f"{next(name for name in names if names.count(name) > 1)} is named twice; name it once")
    last = [{name: values[-1] for name, (_, values) in run.curves.items() if len(values)} for run in runs]
    return {
        "runs": [{"name": r.name, "run_id": r.run_id, "version": r.version, "status": r.status} for r in runs],
        "settings": _differing([flat_settings(run.settings) for run in runs]),
        "figures": [
            {"metric": metric, "meaning": meaning, "values": [values.get(metric) for values in last]}
            for metric, meaning in CURVES.items()
            if any(metric in values for values in last)
        ],
        "cost": [
            {"cost": cost, "label": label, "values": [run.cost.get(cost) for run in runs]}
            for cost, label in COSTS.items()
        ],
        "curves": {
            metric: {"meaning": meaning, "lines": [_line(run, metric) for run in runs]}
            for metric, meaning in CURVES.items()
            if any(metric in run.curves for run in runs)
        },
        "intervals": [row for run in runs[1:] for row in _intervals(run, runs[0])],
    }


def flat_settings(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names, `ppo.learning_rate`; empty sections are left out."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flat_settings(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return flat


def _differing(sides: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = dict.fromkeys(name for side in sides for name in side)
    rows = [{"setting": name, "values": [side.get(name) for side in sides]} for name in names]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def _line(run: ComparedRun, metric: str) -> dict[str, Any]:
    steps, values = run.curves.get(metric, ((), ()))
    return {"name": run.name, "steps": list(steps), "values": list(values)}


def _intervals(run: ComparedRun, baseline: ComparedRun) -> list[dict[str, Any]]:
    """Compare the evaluations of two runs on every course that both flew, that with most episodes first."""
    shared = [course for course in run.evaluations if course in baseline.evaluations]
    shared.sort(key=lambda course: -len(run.evaluations[course].episodes))
    rows = []
    for course in shared:
        a, b = run.evaluations[course], baseline.evaluations[course]
        for metric in _METRICS.get(a.config.task, ()):
            if all(row.get(metric) is not None for side in (a, b) for row in side.episodes):
                named = {"course": course, "course_name": a.summary.get("course_name")}
                rows.append(named | compare(a, b, metric).to_row())
    return rows
