"""Warehouse report: one self-contained HTML page with rankings, curves, comparisons and drift."""

import json
import logging
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from html import escape
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from navi_core.config import EvalConfig
from navi_core.errors import EvaluationError
from navi_core.evaluate import EvalResult
from navi_core.evaluate.comparison import compare
from navi_core.record import navi_home
from navi_pipeline.lib.evaluation.scoring import headline
from navi_pipeline.lib.records import read_document
from navi_pipeline.lib.reports.pages import (
    Part,
    interval_chart,
    line_chart,
    reports_folder,
    section,
    table_part,
    text_part,
    write_page,
)
from navi_pipeline.lib.reports.view3d import flights_in_3d
from navi_pipeline.lib.warehouse.reader import records
from navi_pipeline.lib.warehouse.warehouse import Warehouse

_RUNS, _SUBJECTS, _MAPS, _POINTS = 6, 12, 6, 300
_BEST_TRIALS = "Best trials: of one seed each, chosen from many; expect less of them"
_PICTURE = re.compile(r"!\[([^\]]*)\]\(data:image/png;base64,([A-Za-z0-9+/=]+)\)")

_LISTED, _IN_FULL = 24, 4
"""Number of comparisons in the table, and of those shown with performance profiles."""
_METRICS = ("c_vis_auc", "spl", "success")
"""Metrics whose differences are drawn as interval charts."""

Rows = list[dict[str, Any]]
Ask = Callable[..., Rows]
"""Callable that runs SQL (and a list of parameters) and returns rows as dictionaries."""


def run_report(*, out: Path | None = None, home: Path | None = None, course: str | None = None) -> Path:
    """Ingest new rows, write the report page, and return its path.

    Args:
        out: The file; by default `reports/report.html` of the Navi home.
        home: Navi home; by default `navi_home()`.
        course: Course of the rankings, by name or hash; by default the pinned one.

    Raises:
        RecordError: The warehouse cannot answer, or the file cannot be written.
    """
    warehouse = Warehouse(home)
    if reason := warehouse.refresh().not_folded:
        logging.getLogger(__name__).warning("nothing is folded in: %s", reason)
    file = out or (reports_folder() if home is None else home / "reports") / "report.html"
    with warehouse.reader({} if course is None else {"course": course}) as read:
        parts = _parts(lambda sql, given=None: records(read(sql, given)), home or navi_home())
    return write_page(file, "Navi report", parts)


def _parts(ask: Ask, home: Path) -> list[Part]:
    sections = {
        "Leaderboard": _leaderboard(ask),
        "Coverage over a flight": _coverage(ask),
        "Other courses": _other_courses(ask),
        "Who is better": _comparisons(ask),
        "Goals": _tables(ask, ("", "goals")),
        "Surface, sensor, medians": _tables(ask, ("", "surface_and_sensor")),
        "Training": _training(ask),
        "Flights in 3-D": flights_in_3d(home),
        "Flights seen from above": _maps(home),
        "Champion after champion": _progress(ask),
        "Champion": _tables(ask, ("", "lineage_of_champion"), ("Decisions", "promotion_history"),
                            ("Quality against speed", "select * exclude (run_id) from pareto_quality_speed limit 15")),
        "Sweeps": _tables(ask, ("Best cells", "select * exclude (hardware) from sweep_best"),
                          ("Temporal cores", "select * exclude (hardware) from core_comparison"),
                          ("Resolutions", "select * exclude (hardware) from resolution_scaling"),
                          ("Cells that did not end well", "how_sweeps_ended")),
        "Studies": _tables(ask, ("Studies", "select * from study_progress"),
                           (_BEST_TRIALS, "select study, place, trial, objective, direction, value, feasible, params, "
                            "run_id from ranked_trials where place <= 5 order by study, place limit 30")),
        "Benchmarks and drift": _benchmarks(ask),
        "Worst flights": _tables(ask, ("", "worst_episodes")),
        "What happened": _tables(ask, ("", "what_happened")),
    }  # fmt: skip
    kept = {title: parts for title, parts in sections.items() if parts}
    index = " · ".join(f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title in kept)
    runs = ask("select count(*) as n from runs")[0]["n"]
    flights = ask("select count(*) as n from episodes")[0]["n"]
    about = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {runs:,} run{'s' * (runs != 1)}, {flights:,} evaluation flights."
    body: list[Part] = [*_verdict(ask), text_part(about), f"<nav>{index}</nav>"]
    for title, parts in kept.items():
        body += section(title, parts, anchor=_anchor(title))
    if not kept:
        body.append(text_part("Nothing is recorded yet. next: navi train ppo, or navi demo"))
    return body


def _verdict(ask: Ask) -> list[Part]:
    """Render the verdict: the champion, or the best subject, on the chosen course, and its lead over the best pilot."""
    rows = ask("select * from leaderboard where chosen")
    if not rows:
        return []
    champion = ask("select version from aliases where alias = 'champion'")
    version = champion[0]["version"] if champion else None
    first = next((row for row in rows if version is not None and row["model"] == version), rows[0])
    name = (
        f"Champion {version} ({first['subject']})" if first["model"] == version and version else str(first["subject"])
    )
    course = ask("select * from course_list where course = (select course from chosen_course)")[0]
    sentence = (
        f"{name} sees {headline(first):.1f} %{_interval(first)} of the floor, on average over a flight, on "
        f"{course['name']} ({course['scenes']} scenes, {first['episodes']} flights)"
    )
    pilots = [row for row in rows if row["kind"] == "pilot" and row is not first]
    if pilots and (lead := _lead(ask, first, pilots[0])):
        sentence += f": {lead} over {pilots[0]['subject']}, the best pilot there"
    return [
        f'<p class="verdict">{escape(sentence)}; {first["collisions_per_minute"] or 0:.2f} collisions a minute.</p>'
    ]


def _lead(ask: Ask, a: dict[str, Any], b: dict[str, Any]) -> str | None:
    """Return the paired difference in coverage of two rows of the leaderboard, with its 95 % interval over scenes."""
    sides: list[EvalResult] = []
    for row in (a, b):
        flights = ask(
            "select scene, start, coalesce(c_seen_auc_percent, 100 * c_vis_auc) as coverage from episodes "
            "where evaluation_id = ? order by all",
            [row["evaluation_id"]],
        )
        sides.append(EvalResult(str(row["subject"]), EvalConfig(), flights, {}))
    try:
        found = compare(sides[0], sides[1], "coverage")
    except EvaluationError:
        return None
    between = "" if found.low is None or math.isnan(found.low) else f" [{found.low:+.1f}, {found.high:+.1f}]"
    return f"{found.mean_difference:+.1f}{between} points"


def _interval(row: dict[str, Any]) -> str:
    return "" if row["low"] is None else f" [{row['low']:.1f}, {row['high']:.1f}]"


_RANKED = ("rank", "subject", "model", "c_vis_auc_percent", "c_seen_auc_percent", "interval", "c_vis_percent",
           "collisions_per_minute", "path_length_m", "episodes", "scenes_trained_on")  # fmt: skip


def _leaderboard(ask: Ask) -> list[Part]:
    rows = ask(f"select * from leaderboard where chosen limit {_SUBJECTS}")
    text = (
        "Coverage in percent, the mean over scenes with its 95 % interval. All flew one course, the same starts by the "
        "same protocol: that of the champion, unless --course names another. A policy that was trained on some of the "
        "scenes has no rank."
    )
    bars = [(str(row["subject"]), headline(row), row["low"], row["high"]) for row in rows]
    chart = interval_chart(bars, label="coverage, mean of the flight [%]")
    return [text_part(text), chart, _ranking(rows)] * bool(rows)


def _other_courses(ask: Ask) -> list[Part]:
    """Render the ranking of each course that was not chosen."""
    names = {row["course"]: str(row["name"]) for row in ask("select course, name from course_list")}
    parts: list[Part] = []
    for course, rows in groupby(ask("select * from leaderboard where not chosen"), key=lambda row: row["course"]):
        parts += section(names.get(course, course), [_ranking(list(rows)[:_SUBJECTS])], level=3)
    return parts


def _ranking(rows: Rows) -> Part:
    return table_part([{name: (row | {"interval": _interval(row).strip()})[name] for name in _RANKED} for row in rows])


def _progress(ask: Ask) -> list[Part]:
    """Render champion after champion on the chosen course."""
    rows = ask("champions_on_course")
    bars = [(f"{r['number']} {r['version']}", r["c_vis_auc_percent"], r["low"], r["high"]) for r in rows]
    text = "Each champion on the course of the leaderboard; gains are over the champion before, on the same starts."
    return [text_part(text), interval_chart(bars, label="coverage, mean of the flight [%]"), table_part(rows)] * bool(
        rows
    )


def _coverage(ask: Ask) -> list[Part]:
    chart = _curves(
        ask,
        "select subject as curve, from_json(coverage_curve->'$.step', '[\"double\"]') as xs, "
        "from_json(coverage_curve->'$.c_vis_percent', '[\"double\"]') as ys "
        "from evaluations join (select evaluation_id, rank from leaderboard where course = "
        "(select course from chosen_course)) using (evaluation_id) "
        f"where coverage_curve is not null order by rank nulls last limit {_SUBJECTS}",
        x="decisions",
        y="coverage [%]",
    )
    return [text_part("Share of the reachable floor that was seen, on the same course."), chart] * bool(chart)


def _curves(ask: Ask, sql: str, given: list[Any] | None = None, *, x: str, y: str) -> Part:
    """Draw a line chart of a query's rows: the name of a curve, and the lists `xs` and `ys` of its points."""
    return line_chart({str(row["curve"]): (row["xs"], row["ys"]) for row in ask(sql, given)}, x=x, y=y)


def _comparisons(ask: Ask) -> list[Part]:
    """Render the latest comparisons: differences with intervals, performance profiles, seeds × scenes."""
    rows = ask(
        "select * from comparisons left join comparison_scenes using (comparison_id) "
        f"order by recorded_at desc, metric limit {_LISTED}"
    )
    if not rows:
        return []
    parts: list[Part] = [
        text_part(
            "Paired differences a − b with their 95 % intervals. Over seeds and scenes they compare ways of training: "
            "both are random, and a verdict needs five seeds. Over scenes and starts they compare two "
            "subjects as they are. a_trained_on and b_trained_on count the scenes that a side was trained on: there it "
            "shows what it remembers."
        )
    ]
    for metric in _METRICS:
        bars = [
            (f"{r['a']} − {r['b']}", r["mean_difference"], r["low"], r["high"]) for r in rows if r["metric"] == metric
        ]
        if chart := interval_chart(bars, label=f"difference in {metric}"):
            parts += section(metric, [chart], level=3)
    shown = ("metric", "a", "b", "mean_a", "mean_b", "iqm_a", "iqm_b", "mean_difference", "low", "high", "seeds",
            "scenes", "a_trained_on", "b_trained_on", "sentence")  # fmt: skip
    parts.append(table_part([{name: row[name] for name in shown} for row in rows]))
    full = [row for row in rows if row["metric"] in _METRICS and row["profiles"] is not None][:_IN_FULL]
    return [*parts, *chain.from_iterable(map(_profiles, full))]


def _profiles(row: dict[str, Any]) -> list[Part]:
    """Render performance profiles and the seeds × scenes matrix of one comparison."""
    profiles, matrices = (json.loads(row[name]) for name in ("profiles", "matrices"))
    a, b, metric = str(row["a"]), str(row["b"]), str(row["metric"])
    curves = {a: (profiles["thresholds"], profiles["profile_a"]), b: (profiles["thresholds"], profiles["profile_b"])}
    chart = line_chart(curves, x=metric, y="share of seeds × scenes above")
    lines = [
        {"seed": f"{name} {seed}", "mean": round(sum(values) / len(values), 1)}
        | {scene: round(float(value), 1) for scene, value in zip(matrices["scenes"], values, strict=True)}
        for side, name in (("a", a), ("b", b))
        for seed, values in enumerate(matrices[side])
    ]
    return section(f"{a} against {b}, {metric}", [chart, table_part(lines)], level=3)


def _training(ask: Ask) -> list[Part]:
    runs = ask(f"select run_id, status, last_step, reward_ema, mean_sps, checkpoints, last_row_at from run_summary "
               f"limit {_RUNS}")  # fmt: skip
    panels = {
        "reward_ema": "reward (smoothed)",
        "view_gain": "area seen [m² a decision]",
        "collision": "collision term",
    }
    sql = (
        "select run_id as curve, list(step order by step) as xs, list(value order by step) as ys from ("
        "select run_id, max(step) as step, avg(value) as value from (select run_id, step, value, "
        "ntile(?) over (partition by run_id order by step) as part from metrics where run_id = any(?::varchar[]) "
        "and name = ?) group by run_id, part) group by 1 order by list_position(?::varchar[], curve)"
    )
    ids = [run["run_id"] for run in runs]
    charts = [_curves(ask, sql, [_POINTS, ids, name, ids], x="decisions", y=label) for name, label in panels.items()]
    return [*filter(None, charts), table_part(runs)] if runs else []


def _maps(home: Path) -> list[Part]:
    """Render the newest top-down flight maps of evaluations as figures."""
    files = sorted((home / "evaluations").glob("*.maps.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    pictures = [
        found
        for file in files
        for text in read_document(file, made_by="policy_evaluation").get("maps", [])
        if (found := _PICTURE.search(str(text)))
    ]
    return [
        f'<figure><img alt="{escape(found[1])}" src="data:image/png;base64,{found[2]}"></figure>'
        for found in pictures[:_MAPS]
    ]


def _benchmarks(ask: Ask) -> list[Part]:
    chart = _curves(
        ask,
        "select format('{} ({})', cell, coalesce(hardware[:24], 'unknown')) as curve, "
        "list(value order by recorded_at) as ys, range(1, 1 + len(ys)) as xs from benchmark_cells "
        "where benchmark = 'nightly' and name = 'steps_per_second' group by 1 order by min(recorded_at)",
        x="night",
        y="steps/s",
    )
    return [chart] * bool(chart) + _tables(
        ask,
        ("Drift", "drift"),
        ("Latest figures", "select benchmark, profile, cell, name, value, unit, change_percent, repeats, outcome, "
         "recorded_at from benchmark_history qualify row_number() over (partition by benchmark, profile, cell, name "
         "order by recorded_at desc) = 1 order by benchmark, profile, name, cell limit 80"),
    )  # fmt: skip


def _tables(ask: Ask, *wanted: tuple[str, str]) -> list[Part]:
    """Render queries as tables under headings; empty results are left out."""
    parts: list[Part] = []
    for heading, sql in wanted:
        if rows := ask(sql):
            table = list(chain.from_iterable(_by_course(ask, rows)))
            parts += section(heading, table, level=3) if heading else table
    return parts


def _by_course(ask: Ask, rows: Rows) -> Iterator[list[Part]]:
    """Yield a table, or one to each course that the rows are of; hashes of evaluations are left out."""
    hidden = {"course", "evaluation_id"}
    names = (
        {row["course"]: row["name"] for row in ask("select * from course_list order by pinned desc")}
        if "course" in rows[0]
        else {}
    )
    known = [*names, *(row.get("course") for row in rows)]
    for course in sorted({row.get("course") for row in rows}, key=known.index):
        of_course = [row for row in rows if row.get("course") == course]
        table = table_part([{k: _cut(v) for k, v in row.items() if k not in hidden} for row in of_course])
        yield section(str(names.get(course, course)), [table], level=4) if names else [table]


def _cut(value: object) -> object:
    """Truncate long text in a cell to 157 characters."""
    return f"{value[:157]}…" if isinstance(value, str) and len(value) > 160 else value


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z]+", "-", title.lower())
