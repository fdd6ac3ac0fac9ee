"""HTML page of a study: progress, best trials, importances."""

import json
import math
import warnings
from html import escape
from pathlib import Path
from typing import Any

from navi_pipeline.lib.reports.pages import (
    Part,
    line_chart,
    reports_folder,
    scatter_chart,
    section,
    table_part,
    text_part,
    write_page,
)
from navi_pipeline.lib.studies.best_trial import selection_note, trials_compared
from navi_pipeline.lib.studies.trial_queue import TrialQueue

_CURVES = 8
_SCATTERS = 8
_SHOWN = ("slot", "trial", "state", "value", "reward_ema", "sps", "memory_gib", "feasible", "step", "wall_time_seconds")

Rows = list[dict[str, Any]]


def write_study_page(queue: TrialQueue, row: dict[str, Any], rows: Rows) -> Path:
    """Write the page of a study and return its path.

    Args:
        queue: The study.
        row: Its row of `studies`.
        rows: Latest trial of every slot as rows of `trials`.
    """
    config = queue.config
    goals = ", ".join(f"{objective.direction} {objective.metric}" for objective in config.objectives)
    parts: list[Part] = [
        text_part(
            f"{config.learner}: {goals}; {row['completed']} complete, {row['pruned']} pruned, {row['failed']} failed "
            f"of {config.trials} trials; {config.sampler}, pruner {row['pruner']}, {config.workers} workers; "
            f"{row['status']}."
        )
    ]
    best = {trial.number for trial in queue.best()}
    worth = [text_part(f"Of {selection_note(trials_compared(queue))}.")] if best else []
    parts += section("Best", [table_part(_table([one for one in rows if one["trial"] in best])), *worth])
    if len(config.objectives) > 1:
        parts += section("Front", [_front(queue, rows)])
    else:
        parts += section("History", [_history(queue, rows)])
        parts += section("Curves", [_curves(queue, rows)])
    weights = importances(queue)
    if weights:
        mattered = [{"setting": name, "importance": round(value, 3)} for name, value in weights.items()]
        parts += section("What mattered", [table_part(mattered)])
    parts += section("Settings and values", _slices(queue, rows))
    parts += section("Trials", [table_part(_table(rows))])
    ended = [{name: one[name] for name in ("slot", "trial", "outcome", "reason")} for one in rows if one["reason"]]
    parts += section("Trials that did not end well", [table_part(ended)] if ended else [])
    parts.append(f"<details><summary>Settings</summary><pre>{escape(config.model_dump_json(indent=1))}</pre></details>")
    return write_page(reports_folder() / f"study-{config.name}.html", f"Study {config.name}", parts)


def importances(queue: TrialQueue) -> dict[str, float]:
    """Return how much each setting decided, by PED-ANOVA (Watanabe et al. 2023); empty where trials are too few."""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    done = [trial for trial in queue.trials() if trial.state.name == "COMPLETE"]
    if len(queue.config.objectives) > 1 or len(done) < 4:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return dict(get_param_importances(queue.study, evaluator=PedAnovaImportanceEvaluator()))
        except (ValueError, RuntimeError, optuna.exceptions.OptunaError):
            return {}  # trials of equal value have no importances


def history_chart(queue: TrialQueue, rows: Rows) -> str:
    """Draw value by trial, or the first two objectives against each other."""
    if len(queue.config.objectives) > 1:
        return _front(queue, rows)
    groups = {
        state: [(one["slot"], one["value"]) for one in rows if one["state"] == state and one["value"] is not None]
        for state in ("complete", "pruned")
    }
    return scatter_chart(groups, x="trial", y=_metric(queue))


def _history(queue: TrialQueue, rows: Rows) -> Part:
    better = max if queue.config.objectives[0].direction == "maximize" else min
    values: list[tuple[float, float]] = []
    record: list[tuple[float, float]] = []
    for one in rows:
        if one["value"] is None or one["state"] != "complete":
            continue
        values.append((one["slot"], one["value"]))
        if one["feasible"]:
            record.append((one["slot"], better(one["value"], record[-1][1] if record else one["value"])))
    curves = {"trial": values, "best so far": record}
    return line_chart(
        {name: ([x for x, _ in points], [y for _, y in points]) for name, points in curves.items()},
        x="trial",
        y=_metric(queue),
    )


def _curves(queue: TrialQueue, rows: Rows) -> Part:
    """Draw what was reported while the trials ran: the best by value, and some that were pruned."""
    sign = -1.0 if queue.config.objectives[0].direction == "maximize" else 1.0
    ranked = sorted(rows, key=lambda one: math.inf if one["value"] is None else sign * one["value"])
    trials, curves = queue.trials(), {}
    for one in ranked[:_CURVES]:
        points = sorted(trials[one["trial"]].intermediate_values.items())
        if points:
            curves[f"{one['slot']} ({one['state']})"] = ([float(s) for s, _ in points], [v for _, v in points])
    return line_chart(curves, x="decisions", y=_metric(queue))


def _slices(queue: TrialQueue, rows: Rows) -> list[Part]:
    parts = []
    done = [one for one in rows if one["state"] == "complete" and one["value"] is not None]
    for name in sorted({name for one in done for name in one["params"]})[:_SCATTERS]:
        points = [(one["params"][name], one["value"]) for one in done if name in one["params"]]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value, _ in points):
            parts.append(scatter_chart({name: points}, x=name, y=_metric(queue)))
    return parts


def _front(queue: TrialQueue, rows: Rows) -> str:
    first, second = queue.config.objectives[:2]
    best = {trial.number for trial in queue.best()}
    groups: dict[str, list[tuple[float, float]]] = {"trials": [], "front": []}
    for one in rows:
        if one["objective_values"]:
            pair = (float(one["objective_values"][0]), float(one["objective_values"][1]))
            groups["front" if one["trial"] in best else "trials"].append(pair)
    return scatter_chart(groups, x=first.metric, y=second.metric)


def _table(rows: Rows) -> Rows:
    return [{name: one[name] for name in _SHOWN} | {"params": json.dumps(one["params"])} for one in rows]


def _metric(queue: TrialQueue) -> str:
    return queue.config.objectives[0].metric
