"""Runner of an Optuna study: runs its workers, follows their trials, writes the HTML page.

Charts are the reports' own: Optuna's need plotly, or know nothing of slots and lost attempts.
"""

import json
import math
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from html import escape
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState

from navi_core.errors import NaviError, RunError
from navi_core.machine import thread_variables
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
from navi_pipeline.lib.studies.results import record_study, record_trials, selection_note, trial_row, trials_compared
from navi_pipeline.lib.studies.trial_queue import TrialQueue
from navi_pipeline.lib.studies.worker import work
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import StudyConfig

_CURVES = 8
_SCATTERS = 8
_SHOWN = ("slot", "trial", "state", "value", "reward_ema", "sps", "memory_gib", "feasible", "step", "wall_time_seconds")

Rows = list[dict[str, Any]]


def write_study_page(queue: TrialQueue, row: dict[str, Any], rows: Rows, chart: str) -> Path:
    """Write the HTML page of a study and return its path.

    Args:
        queue: Trial queue of the study.
        row: Row of the table `studies`.
        rows: Latest trial of every slot as rows of `trials`.
        chart: Result of `history_chart`.
    """
    config = queue.config
    goals = ", ".join(f"{objective.direction} {objective.metric}" for objective in config.objectives)
    about = (
        f"{config.learner}: {goals}; {row['completed']} complete, {row['pruned']} pruned, {row['failed']} failed "
        f"of {config.trials} trials; {config.sampler}, pruner {row['pruner']}, {config.workers} workers; "
        f"{row['status']}."
    )
    best = {trial.number for trial in queue.best()}
    note = [text_part(f"Of {selection_note(trials_compared(queue))}.")] if best else []
    mattered = [{"setting": name, "importance": round(value, 3)} for name, value in importances(queue).items()]
    ended = [{name: one[name] for name in ("slot", "trial", "outcome", "reason")} for one in rows if one["reason"]]
    sections = {
        "Best": [table_part(_table([one for one in rows if one["trial"] in best])), *note],
        "History" if len(config.objectives) == 1 else "Front": [chart],
        "Curves": [_curves(queue, rows)],
        "What mattered": [table_part(mattered)] if mattered else [],
        "Settings and values": _slices(queue, rows),
        "Trials": [table_part(_table(rows))],
        "Trials that did not end well": [table_part(ended)] if ended else [],
    }
    parts = [text_part(about), *chain.from_iterable(section(title, inner) for title, inner in sections.items())]
    parts.append(f"<details><summary>Settings</summary><pre>{escape(config.model_dump_json(indent=1))}</pre></details>")
    return write_page(reports_folder() / f"study-{config.name}.html", f"Study {config.name}", parts)


def importances(queue: TrialQueue) -> dict[str, float]:
    """Return the hyperparameter importances by PED-ANOVA (Watanabe et al. 2023); empty with fewer than four trials."""
    if len(queue.config.objectives) > 1 or len(queue.trials(TrialState.COMPLETE)) < 4:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return dict(get_param_importances(queue.study, evaluator=PedAnovaImportanceEvaluator()))
        except (ValueError, RuntimeError, optuna.exceptions.OptunaError):
            return {}  # trials of equal value have no importances


def history_chart(queue: TrialQueue, rows: Rows) -> str:
    """Draw the optimisation history with the best value so far, or the Pareto front of the first two objectives."""
    objectives = queue.config.objectives
    if len(objectives) > 1:
        best = {trial.number for trial in queue.best()}
        pairs = {one["trial"]: one["objective_values"][:2] for one in rows if one["objective_values"]}
        front = {
            "trials": [pair for trial, pair in pairs.items() if trial not in best],
            "front": [pair for trial, pair in pairs.items() if trial in best],
        }
        return scatter_chart(front, x=objectives[0].metric, y=objectives[1].metric)
    valued = [one for one in rows if one["value"] is not None]
    groups = {
        state: [(one["slot"], one["value"]) for one in valued if one["state"] == state]
        for state in ("complete", "pruned")
    }
    feasible = [one for one in valued if one["state"] == "complete" and one["feasible"]]
    record = accumulate((one["value"] for one in feasible), max if objectives[0].direction == "maximize" else min)
    groups["best so far"] = list(zip((one["slot"] for one in feasible), record, strict=True))
    return scatter_chart(groups, x="trial", y=objectives[0].metric)


def _curves(queue: TrialQueue, rows: Rows) -> Part:
    """Draw the intermediate values of the best trials, pruned ones among them, as learning curves."""
    sign = -1.0 if queue.config.objectives[0].direction == "maximize" else 1.0
    ranked = sorted(rows, key=lambda one: math.inf if one["value"] is None else sign * one["value"])
    trials, curves = queue.trials(), {}
    for one in ranked[:_CURVES]:
        points = sorted(trials[one["trial"]].intermediate_values.items())
        if points:
            curves[f"{one['slot']} ({one['state']})"] = ([float(s) for s, _ in points], [v for _, v in points])
    return line_chart(curves, x="decisions", y=queue.config.objectives[0].metric)


def _slices(queue: TrialQueue, rows: Rows) -> list[Part]:
    parts = []
    done = [one for one in rows if one["state"] == "complete" and one["value"] is not None]
    for name in sorted({name for one in done for name in one["params"]})[:_SCATTERS]:
        points = [(one["params"][name], one["value"]) for one in done if name in one["params"]]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value, _ in points):
            parts.append(scatter_chart({name: points}, x=name, y=queue.config.objectives[0].metric))
    return parts


def _table(rows: Rows) -> Rows:
    return [{name: one[name] for name in _SHOWN} | {"params": json.dumps(one["params"])} for one in rows]


@dataclass(frozen=True)
class StudyResult:
    """Result of a hyperparameter study: its row, the latest trial of every slot, a chart, the HTML page.

    Attributes:
        row: Row of the table `studies`.
        trials: Latest trial of every slot as rows of `trials`, by slot.
        chart: Value by trial, or the front, SVG.
        report: HTML page.
        reused: Whether all trials were done before.
    """

    row: dict[str, Any]
    trials: list[dict[str, Any]]
    chart: str
    report: Path
    reused: bool


def perform_study(
    config: StudyConfig,
    *,
    on_line: Callable[[str], None],
    on_trial: Callable[[dict[str, Any]], None] = lambda _: None,
) -> StudyResult:
    """Run a study to its end, from the start or from an interruption.

    Args:
        config: Settings of the study.
        on_line: Called with every line of the workers and their trainers.
        on_trial: Called in this thread with the row of every slot that is done, also those of earlier sittings.

    Raises:
        ConfigError: A study of this name has other settings, or one of its settings does not exist, or a preset differs
            from when it began.
        RecordError: Its storage cannot be opened.
        RunError: A trial has no outcome, or every trial failed; these are tried again when the study is resumed.
    """
    with TrialQueue(config) as queue:
        reported: set[int] = set()
        queue.retry_failed()
        begun, differing = queue.left(), queue.differing()
        if begun > 0:
            queue.require_same_settings()
            record_study(queue, "running")

        def report() -> None:
            for slot, trial in sorted(queue.latest().items()):
                if slot not in reported and trial.state.is_finished():
                    reported.add(slot)
                    on_trial(trial_row(queue, trial))

        status = "stopped"  # what is cancelled from outside goes on another time
        try:
            report()
            _work_to_end(queue, on_line, report)
            require_success(queue)
            status = "finished"
        except NaviError:
            status = "failed"
            raise
        finally:
            # Rows hold configurations, which are made again from the preset: from another they would be others.
            if not differing:
                record_trials(queue, queue.trials())
            record_study(queue, status)
        return study_result(queue, status, reused=begun <= 0)


def require_success(queue: TrialQueue) -> None:
    """Raise if every trial of a finished study failed.

    Raises:
        RunError: None is complete or pruned; the message counts the reasons.
    """
    name, done = queue.config.name, queue.latest().values()
    if all(trial.state is TrialState.FAIL for trial in done):
        reasons = Counter(str(trial.user_attrs.get("reason")) for trial in done).most_common()
        raise RunError(
            f"every trial of study {name} failed: {'; '.join(f'{count} × {why}' for why, count in reasons)}; "
            f"mend that, then `navi study resume {name}` tries them again"
        )


def study_result(queue: TrialQueue, status: str, *, reused: bool) -> StudyResult:
    """Write a study's rows and page, and return its result."""
    row = record_study(queue, status)
    Warehouse().ingest()
    rows = [trial_row(queue, trial) for _, trial in sorted(queue.latest().items())]
    chart = history_chart(queue, rows)
    return StudyResult(row, rows, chart, write_study_page(queue, row, rows, chart), reused)


def _work_to_end(queue: TrialQueue, on_line: Callable[[str], None], each_second: Callable[[], None]) -> None:
    """Run workers until every slot has an outcome; those of another command are waited for, or taken up if it dies."""
    announced = 0
    while (left := queue.left()) > 0:
        if _sitting(queue, on_line, each_second):
            continue
        living = queue.in_living_hands()
        if queue.left() > living:
            raise RunError(f"{left} trials of study {queue.config.name} have no outcome; `navi study resume` goes on")
        if left != announced:
            on_line(f"study {queue.config.name}: waiting for {left} trials that another command of it trains")
            announced = left
        time.sleep(1.0)


def _sitting(queue: TrialQueue, on_line: Callable[[str], None], each_second: Callable[[], None]) -> int:
    """Run workers in parallel until none finds a trial; return the number of trials that they took."""
    ending = threading.Event()
    with ThreadPoolExecutor(queue.config.workers, initializer=thread_variables()) as pool:
        workers = [pool.submit(work, queue, on_line=on_line, ending=ending.is_set) for _ in range(queue.config.workers)]
        try:
            while wait(workers, timeout=1.0).not_done:
                each_second()
        finally:
            # Cancelled from outside: each trainer writes a checkpoint, and its trial is given back.
            ending.set()
    each_second()
    return sum(worker.result() for worker in workers)
