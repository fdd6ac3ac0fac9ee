"""Sweep run, from its settings to its report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navi_core.errors import RunError
from navi_pipeline.lib.corpus.scenes import read_corpus
from navi_pipeline.lib.records import pipeline_folder, read_document, write_document
from navi_pipeline.lib.reports.pages import (
    interval_chart,
    line_chart,
    reports_folder,
    table_part,
    text_part,
    write_page,
)
from navi_pipeline.lib.sweeps.catalogue import Scenery, Sweep, find_sweep
from navi_pipeline.lib.sweeps.cells import Outcome, run_cells
from navi_pipeline.lib.sweeps.summary import INCUMBENT, Verdict, core_verdicts, level_rows
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings.sweeps import SweepConfig

TRAINING_SCENES = 4
"""Training scenes of the corpus that the cells fly in."""


@dataclass(frozen=True)
class SweepResult:
    """What a sweep showed.

    Attributes:
        sweep: The sweep.
        config: Its settings.
        outcomes: Of every cell.
        rows: One line per level.
        verdicts: The promotion checklist, for temporal cores alone.
        charts: Figures by level and reward curves, SVG.
        verdict_chart: Differences with their intervals, SVG; empty without verdicts.
        report: HTML file with all of this.
    """

    sweep: Sweep
    config: SweepConfig
    outcomes: list[Outcome]
    rows: list[dict[str, Any]]
    verdicts: list[Verdict]
    charts: list[str]
    verdict_chart: str
    report: Path

    @property
    def reused(self) -> bool:
        """Whether nothing was measured now."""
        return all(outcome.reused for outcome in self.outcomes)


def perform_sweep(
    name: str, config: SweepConfig, *, on_line: Callable[[str], None], again: bool = False
) -> SweepResult:
    """Measure what has not been measured, fold its rows in, and write the report.

    Args:
        name: The sweep.
        config: Its settings.
        on_line: Called with a line for every cell measured.
        again: Measure every cell anew.

    Raises:
        ConfigError: No such sweep.
        RecordError: The corpus has not been materialized, or rows could not be written.
        RunError: The corpus has no training scene, or something kept a cell from an outcome of its own.
    """
    sweep = find_sweep(name)
    outcomes = run_cells(name, sweep.cells(config, training_scenery()), config, on_line=on_line, again=again)
    Warehouse().ingest()
    rows = level_rows(outcomes, sweep.shown)
    verdicts = core_verdicts(outcomes) if name == "temporal_core_sweep" else []
    charts = _charts(outcomes, sweep.shown)
    differences = [(v.core, v.reward.mean, v.reward.low, v.reward.high) for v in verdicts if v.reward is not None]
    judged = interval_chart(differences, label=f"final reward_ema less that of {INCUMBENT}, 95 % interval over seeds")
    parts = [text_part(sweep.question), table_part(rows), *charts]
    if verdicts:
        parts += [text_part(verdict.sentence) for verdict in verdicts]
        parts += [table_part([verdict.as_row() for verdict in verdicts]), judged]
    parts.append(text_part(f"Settings: {config.model_dump_json(exclude_defaults=True)}"))
    report = write_page(reports_folder() / f"{name}-{config.profile}.html", f"{name}, {config.profile}", parts)
    document = {
        "sweep": name,
        "profile": config.profile,
        "rows": rows,
        "outcomes": {outcome.cell: outcome.status for outcome in outcomes},
        "verdicts": [verdict.as_dict() for verdict in verdicts],
        "report": str(report),
    }
    write_document(_path(name, config.profile), document)
    return SweepResult(sweep, config, outcomes, rows, verdicts, charts, judged, report)


def _charts(outcomes: Sequence[Outcome], shown: Sequence[str]) -> list[str]:
    """Draw the first two figures by level, mean and range over the cells, and the reward curves."""
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in shown[:2]}
    for outcome in outcomes:
        for name, levels in figures.items():
            if outcome.status == "ok" and name in outcome.metrics:
                levels.setdefault(outcome.level, []).append(outcome.metrics[name])
    charts = [
        interval_chart(
            [(level, sum(values) / len(values), min(values), max(values)) for level, values in levels.items()],
            label=f"{name}: mean and range over seeds",
        )
        for name, levels in figures.items()
    ]
    curves = {o.cell: ([step for step, _ in o.curve], [reward for _, reward in o.curve]) for o in outcomes}
    charts.append(line_chart(curves, x="decisions", y="reward_ema"))
    return [chart for chart in charts if chart]


def read_sweep(name: str, profile: str) -> dict[str, Any]:
    """Return what the latest sweep of a profile showed.

    Raises:
        RecordError: It has not been made.
    """
    return read_document(_path(name, profile), made_by=f"{name}, partition {profile},")


def training_scenery() -> Scenery:
    """Return the first training scenes of the corpus with their content hashes.

    Raises:
        RecordError: The corpus has not been materialized.
        RunError: It has no training scene.
    """
    rows = [row for row in read_corpus() if row["split"] == "train"][:TRAINING_SCENES]
    if not rows:
        raise RunError("the corpus has no training scene; materialize scene_sources with train above 0")
    return [(Path(row["gmdag"]), str(row["content_hash"])) for row in rows]


def _path(name: str, profile: str) -> Path:
    return pipeline_folder() / "sweeps" / f"{name}-{profile}.json"
