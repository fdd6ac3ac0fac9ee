"""The stages of a night in order, and the morning's summary in Markdown and as a page that stands alone."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from navi_core.errors import RecordError
from navi_core.machine.file_lock import hold_lock
from navi_pipeline.lib.nightly.measuring import benchmarks, evaluation, promotion
from navi_pipeline.lib.nightly.night import Gate, Night, Work, night_lock, night_name
from navi_pipeline.lib.nightly.preflight import preflight
from navi_pipeline.lib.nightly.training import bounded_training, resume_proof
from navi_pipeline.lib.records import write_text
from navi_pipeline.lib.reports.pages import (
    REWARD_PANELS,
    Part,
    curve_charts,
    markdown_table,
    reports_folder,
    section,
    table_part,
    text_part,
    write_page,
)
from navi_pipeline.lib.training.policies import curve_of
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import NightlyConfig

_WORDS = {"passed": "passed", "warned": "passed with warnings", "failed": "failed"}


def summary_paths(name: str) -> tuple[Path, Path]:
    """Return the Markdown file and the HTML file of a night."""
    return reports_folder() / f"night-{name}.md", reports_folder() / f"night-{name}.html"


def write_summary(night: Night) -> tuple[Path, Path]:
    """Write the summary of a night as far as it came; returns the Markdown file and the HTML file."""
    title = f"Night {night.name}: {_WORDS[night.verdict]}"
    lines, parts = [f"# {title}", ""], list[Part]()
    for heading, text, rows in _sections(night):
        lines += [f"## {heading}", ""]
        body = list[Part]()
        if text:
            lines += [text, ""]
            body.append(text_part(text))
        if rows:
            lines += [markdown_table(rows), ""]
            body.append(table_part(rows))
        parts += section(heading, body)
    run_id = night.data("resume_proof").get("run_id") or night.data("training").get("run_id")
    if run_id:
        parts += section("Training", curve_charts(curve_of(run_id), REWARD_PANELS))
    markdown, page = summary_paths(night.name)
    write_text(markdown, "\n".join(lines).rstrip() + "\n", "the summary ")
    write_page(page, title, parts)
    night.record("night", f"{night.verdict}: {_headline(night)}", {"summary": str(markdown)})
    Warehouse().ingest()
    _compact(night.config.compact_segments)
    return markdown, page


def _compact(most: int | None) -> None:
    """Put the rows of many small files into a few large ones; every row stays, and a failure waits for tomorrow."""
    if most is None or sum(1 for _ in Warehouse().done.glob("*.ndjson")) <= most:
        return
    try:
        Warehouse().compact()
    except RecordError as error:
        logging.getLogger("navi.nightly").warning("the warehouse was not compacted: %s", error)


def _headline(night: Night) -> str:
    if night.failed:
        return "; ".join(f"{gate.name}: {gate.detail}" for gate in night.failed)
    parts = []
    if steps := night.data("resume_proof").get("steps") or night.data("training").get("steps"):
        parts.append(f"{int(steps):,} steps")
    if promotion := night.data("promotion"):
        parts.append(_outcome(promotion))
    parts += [f"warning {gate.name}: {gate.detail}" for gate in night.warnings]
    return "; ".join(parts) or "nothing to report"


def _outcome(promotion: dict[str, Any]) -> str:
    if promotion["promoted"]:
        return f"{promotion['version']} became champion"
    return "the champion stays" if promotion["champion"] else "there is no champion yet"


def _sections(night: Night) -> list[tuple[str, str, list[dict[str, Any]]]]:
    about = night.data("preflight")
    where = f"Begun {night.began_at} on {about.get('hardware', 'unknown hardware')}, code {about.get('revision')}."
    stages = [{"stage": s.name, "status": s.status, "seconds": round(s.seconds, 1)} for s in night.stages.values()]
    sections: list[tuple[str, str, list[dict[str, Any]]]] = [
        ("Verdict", f"{_headline(night).rstrip('.')}. {where}", []),
        ("Gates", "", night.gate_rows()),
        ("Stages", "", stages),
    ]
    flown = night.data("evaluation")
    if flown:
        text = " ".join(row["sentence"] for row in flown["comparisons"].values())
        sections.append(("Evaluation", text, flown["table"]))
    measured = night.data("benchmarks")
    if measured:
        speeds = [{"scene": name, "steps/s": round(value, 1)} for name, value in measured["steps_per_second"].items()]
        sections.append(("Benchmarks", f"{night.config.bench_repeats} turns each, medians.", speeds))
        kept = ("cell", "name", "value", "baseline", "unit", "slowdown_percent", "earlier_runs", "drifts")
        drift = [{name: row[name] for name in kept} for row in measured["drift"]]
        sections.append(("Drift", "Against the median of the last seven nights on this hardware.", drift))
    if promotion := night.data("promotion"):
        sections.append(("Promotion", str(promotion["reason"]), []))
    if night.failed:
        how = "Mend what the failed gate names; the same night given again goes on behind the stages that passed."
        sections.append(("What to do", how, []))
    return sections


def stages_of(config: NightlyConfig) -> dict[str, Work]:
    """Return the stages of a night by name; a validation night trains and promotes nothing."""
    if not config.train:
        return {"preflight": preflight, "evaluation": evaluation, "benchmarks": benchmarks}
    return {
        "preflight": preflight,
        "training": bounded_training,
        "resume_proof": resume_proof,
        "evaluation": evaluation,
        "benchmarks": benchmarks,
        "promotion": promotion,
    }


def run_night(
    config: NightlyConfig, name: str | None = None, *, report: Callable[[str], None]
) -> tuple[Night, tuple[Path, Path]]:
    """Run a night from preflight to summary, or what is left of it.

    Args:
        config: Its settings.
        name: Its name; by default date, time and kind.
        report: Called with progress, a line at a time.

    Returns:
        The night, and its summary as Markdown and HTML.

    Raises:
        RunError: The name cannot name a file, another process works on this night, or it was begun with other
            settings.
    """
    name = night_name(config, name)
    report(f"night {name}")
    with hold_lock(night_lock(name), f"night {name}"):
        night = Night(config, name, report=report)
        with summed_up_if_broken(night):
            run_stages(night)
        return night, write_summary(night)


def run_stages(night: Night) -> None:
    """Run the stages that are left of a night; once a hard gate has failed, they are skipped."""
    for stage, work in stages_of(night.config).items():
        night.run(stage, work)


@contextmanager
def summed_up_if_broken(night: Night) -> Iterator[None]:
    """Write the summary of a night that an error or a signal ends; what ended it is raised on."""
    try:
        yield
    except BaseException as error:
        night.note("run", Gate("the run ends", True, False, f"{type(error).__name__}: {error}".rstrip(": ")))
        try:
            write_summary(night)
        except Exception as fault:
            # The night's own error is the one to report.
            logging.getLogger("navi.nightly").warning("the summary of night %s is not written: %s", night.name, fault)
        raise
