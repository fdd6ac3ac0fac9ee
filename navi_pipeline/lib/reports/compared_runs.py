"""Facts of training runs and registered versions, read from the warehouse for their comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from navi_core.config import EvalConfig
from navi_core.errors import RegistryError, RunError, as_argument, did_you_mean
from navi_core.evaluate import EvalResult
from navi_core.evaluate.run_comparison import CURVES, ComparedRun, compare_runs
from navi_core.models import Registry
from navi_core.record import navi_home
from navi_core.record.thinned_curve import ThinnedCurve
from navi_pipeline.lib.records import write_text
from navi_pipeline.lib.reports.pages import html_page, interval_chart, line_chart, section, table_part, text_part
from navi_pipeline.lib.warehouse.reader import records
from navi_pipeline.lib.warehouse.warehouse import Warehouse

_POINTS = 400
"""Most points of a curve."""
_EPISODES = """
select course, (select max_by(name, recorded_at) from named_courses where named_courses.course = courses.course)
    as course_name, evaluations.evaluation_id, coalesce(evaluations.task, 'explore') as task,
    courses.scenes_trained_on, json_extract_string(evaluations.extra, '$.flight_code') as flight_code,
    scene, start, episodes.c_seen_auc_percent as c_seen_auc, 100 * episodes.c_vis_auc as c_vis_auc,
    episodes.collisions_per_minute,
    episodes.success::int as success, episodes.spl
from evaluations join courses using (evaluation_id) join episodes using (evaluation_id)
where evaluations.weights_hash = ? or (? is null and json_extract_string(evaluations.extra, '$.training_run_id') = ?)
order by evaluations.recorded_at, scene, start
"""

Ask = Callable[..., list[dict[str, Any]]]


def compared_runs(names: Sequence[str], home: Path | None = None) -> dict[str, Any]:
    """Compare runs, registered versions or aliases of a home by what they recorded; see `compare_runs`.

    Args:
        names: Two or more; the first is the baseline. A run may be given by a unique beginning or ending of its name.
        home: Navi home; by default `navi_home()`.

    Raises:
        RunError: There is no such run or version, or the name is ambiguous.
        EvaluationError: Fewer than two are named, or one twice.
        RecordError: The warehouse cannot be read.
    """
    warehouse = Warehouse(home)
    warehouse.refresh()
    registry = Registry((home or navi_home()) / "models")
    with warehouse.reader() as read:
        runs = [_read_run(name, registry, lambda sql, given=None: records(read(sql, given))) for name in names]
    return compare_runs(runs)


def write_comparison(file: Path, found: Mapping[str, Any]) -> Path:
    """Write the page of a comparison to a file and return its path.

    Raises:
        RecordError: The file cannot be written.
    """
    write_text(file, comparison_page(found), "the comparison ")
    return file


def comparison_page(found: Mapping[str, Any]) -> str:
    """Render a comparison of runs as one self-contained HTML page: verdicts, curves overlaid, figures, settings, cost.

    Args:
        found: Result of `compared_runs`.
    """
    names = [run["name"] for run in found["runs"]]

    def table(rows: Sequence[Mapping[str, Any]], label: str, title: str) -> list[str]:
        lines = [{title: row[label]} | dict(zip(names, map(_short, row["values"]), strict=True)) for row in rows]
        return [table_part(lines)] if lines else []

    verdicts = [f"{row['course_name'] or row['course']}: {row['sentence']}" for row in found["intervals"]]
    none = f"No course was flown by both. next: navi compare {' '.join(map(as_argument, names[:2]))}"
    intervals = [
        (
            f"{row['a']} − {row['b']}, {row['course_name'] or row['course']}",
            row["mean_difference"],
            row["low"],
            row["high"],
        )
        for row in found["intervals"]
        if row["metric"] in ("c_seen_auc", "c_vis_auc", "success")
    ]
    charts = [
        "<figure>"
        + line_chart({each["name"]: (each["steps"], each["values"]) for each in curve["lines"]}, x="decisions", y=label)
        + "</figure>"
        for curve in found["curves"].values()
        if (label := curve["meaning"])
    ]
    parts = [
        *(f'<p class="verdict">{escape(verdict)}</p>' for verdict in verdicts[:1] or [none]),
        *section("On the same starts", [interval_chart(intervals, label="difference in coverage or success [points]"),
                                        *map(text_part, verdicts[1:])] if verdicts else []),
        *section("Curves", charts),
        *section("Last values", table(found["figures"], "meaning", "metric")),
        *section("Settings that differ", table(found["settings"], "setting", "setting")
                 or [text_part("None: the runs have the same settings.")]),
        *section("Cost", table(found["cost"], "label", "cost")),
    ]  # fmt: skip
    return html_page(f"{' and '.join(names)} compared", parts)


def _short(value: object) -> object:
    """Shorten a list to its number of values."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) if len(value) < 4 else f"{len(value)} values, {value[0]} …"
    return value


def _read_run(name: str, registry: Registry, ask: Ask) -> ComparedRun:
    run_id, version, weights = _resolve(name, registry, ask)
    rows = ask("select status, step, cpu_seconds, wall_time_seconds, config from runs where run_id = ?", [run_id])
    row: dict[str, Any] = rows[0] if rows else {}
    return ComparedRun(
        name=name,
        run_id=run_id,
        version=version,
        status=row.get("status"),
        settings=json.loads(row.get("config") or "{}"),
        curves=_curves(run_id, ask),
        cost={
            "decisions": row.get("step"),
            "cpu_seconds": row.get("cpu_seconds"),
            "wall_seconds": row.get("wall_time_seconds"),
        },
        evaluations=_evaluations(name, run_id, weights, ask),
    )


def _resolve(name: str, registry: Registry, ask: Ask) -> tuple[str, str | None, str | None]:
    """Return run, version and weights hash of a run, a version or an alias; a run stands for its latest version."""
    known = [
        row["run_id"] for row in ask("select distinct run_id from runs union select run_id from models order by 1")
    ]
    found = [name] if name in known else [run for run in known if run.startswith(name) or run.endswith(name)]
    if len(found) > 1:
        raise RunError(f"{name!r} is the beginning or the ending of {len(found)} runs: {', '.join(found)}; name one")
    try:
        entry = registry.resolve(name) if not found else None
    except RegistryError as error:
        hint = did_you_mean(name, [*known, *registry.aliases(), *(each.version for each in registry.list())])
        raise RunError(
            f"no run, version or alias {name!r} with rows in the warehouse; {hint}see them with: navi runs list, "
            f"navi models list ({error})"
        ) from None
    if entry is None:
        made = [each for each in registry.list() if each.run_id == found[0]]
        entry = made[-1] if made else None
    if entry is None:
        return found[0], None, None
    return entry.run_id, entry.version, entry.weights_hash


def _curves(run_id: str, ask: Ask) -> dict[str, tuple[list[float], list[float]]]:
    marks = ", ".join("?" for _ in CURVES)
    sql = f"select name, step, value from metrics where run_id = ? and name in ({marks}) order by name, step"
    curves: dict[str, ThinnedCurve] = {}
    for row in ask(sql, [run_id, *CURVES]):
        if row["value"] is not None:
            curves.setdefault(row["name"], ThinnedCurve(_POINTS)).take(row["step"], {"value": row["value"]})
    return {name: (curve.steps, [v for v in curve.series["value"] if v is not None]) for name, curve in curves.items()}


def _evaluations(name: str, run_id: str, weights: str | None, ask: Ask) -> dict[str, EvalResult]:
    """Return the latest evaluation on each course, of a version by its weights, else of the run's checkpoints."""
    found: dict[str, EvalResult] = {}
    for row in ask(_EPISODES, [weights, weights, run_id]):
        course = row["course"]
        if course not in found or found[course].evaluation_id != row["evaluation_id"]:
            summary = {name: row[name] for name in ("evaluation_id", "course_name", "scenes_trained_on", "flight_code")}
            found[course] = EvalResult(name, EvalConfig(task=row["task"]), [], summary)
        found[course].episodes.append({name: row[name] for name in row if name not in found[course].summary})
    return found
