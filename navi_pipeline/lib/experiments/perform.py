"""Experiments as users start them: a sweep or an ablation, its pending cells, its summary and its page."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from navi_core.config.base import Config
from navi_core.errors import RunError
from navi_core.machine.file_lock import wait_for_lock
from navi_pipeline.lib.corpus.scenes import read_corpus
from navi_pipeline.lib.experiments.ablations import ablation_cell, differing_variants
from navi_pipeline.lib.experiments.cells import Cell, Outcome, failure_reasons, known_outcome, run_cells
from navi_pipeline.lib.experiments.sweeps import Scenery, find_sweep, sweep_cells
from navi_pipeline.lib.experiments.variants import find_variants
from navi_pipeline.lib.experiments.verdicts import Summary, ablation_summary, by_level, checklist, sweep_summary
from navi_pipeline.lib.records import pipeline_folder, read_document, write_document
from navi_pipeline.lib.reports.pages import (
    interval_chart,
    line_chart,
    reports_folder,
    table_part,
    text_part,
    write_page,
)
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import AblationConfig, SweepConfig

TRAINING_SCENES = 4
"""Number of the corpus' training scenes that the cells of a sweep use."""


@dataclass(frozen=True)
class Experiment:
    """Experiment of variants × seeds: a sweep or an ablation.

    Attributes:
        name: Name in progress lines and of its cells' partitions.
        title: Title of its page.
        question: Question that it answers.
        shown: Figures that are drawn by level.
        cells: Its cells, in the order of their measurement.
        config: Its settings.
        timeout: Wall time of a cell's command [s].
        page: Name of its HTML page.
        document: File of its result.
        summarise: Function of outcomes and whether all cells are measured; returns the summary.
        skipped: Variant that equals the base → reason.
    """

    name: str
    title: str
    question: str
    shown: tuple[str, ...]
    cells: Sequence[Cell]
    config: Config
    timeout: float
    page: str
    document: Path
    summarise: Callable[[Sequence[Outcome], bool], Summary]
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExperimentResult:
    """Result of an experiment.

    Attributes:
        outcomes: Outcomes of the finished cells.
        waiting: Number of open cells.
        summary: Table rows and verdicts.
        charts: Figures by level and reward curves, SVG.
        verdict_chart: Differences with their intervals, SVG; empty without verdicts.
        document: JSON document of the result.
        report: HTML file with all of this.
    """

    outcomes: list[Outcome]
    waiting: int
    summary: Summary
    charts: list[str]
    verdict_chart: str
    document: dict[str, Any]
    report: Path

    @property
    def reused(self) -> bool:
        """Return whether all outcomes were loaded, none measured."""
        return all(outcome.reused for outcome in self.outcomes)


def sweep_experiment(name: str, config: SweepConfig) -> Experiment:
    """Return a sweep of the catalogue over the corpus' training scenes.

    Raises:
        ConfigError: No such sweep.
        RecordError: The corpus has not been materialized.
        RunError: The corpus has no training scene.
    """
    sweep = find_sweep(name)
    return Experiment(
        name=name,
        title=f"{name}, {config.profile}",
        question=sweep.question,
        shown=sweep.shown[:2],
        cells=sweep_cells(name, config, training_scenery()),
        config=config,
        timeout=config.timeout,
        page=f"{name}-{config.profile}",
        document=_sweep_document(name, config.profile),
        summarise=lambda outcomes, _: sweep_summary(name, sweep.shown, outcomes),
    )


def ablation_experiment(names: Sequence[str], config: AblationConfig, name: str = "ablation") -> Experiment:
    """Return an ablation of variants, the base first.

    Args:
        names: Names of variants; if empty, the user-defined ones, or all built-in ones if there are none.
        config: Settings shared by all cells.
        name: Name of the ablation, in its rows and its page.

    Raises:
        ConfigError: An unknown variant, or settings that cannot be.
    """
    variants, skipped = differing_variants(find_variants(names, config.variants), config)
    return Experiment(
        name=name,
        title=f"Ablation {name}",
        question="What does each variant change against the base?",
        shown=("c_vis_auc",),
        # Seed by seed: every variant is known a little before one is known well.
        cells=[ablation_cell(name, variant, config, seed) for seed in range(config.seeds) for variant in variants],
        config=config,
        timeout=config.timeout,
        page=f"ablation-{name}",
        document=pipeline_folder() / "ablations" / f"{name}.result.json",
        summarise=lambda outcomes, whole: ablation_summary([v.name for v in variants], outcomes, whole=whole),
        skipped=skipped,
    )


def perform_experiment(
    experiment: Experiment,
    *,
    cells: int | None = None,
    jobs: int = 1,
    again: bool = False,
    on_line: Callable[[str], None],
    on_cell: Callable[[Outcome], None] = lambda _: None,
) -> ExperimentResult:
    """Run the pending cells of an experiment, ingest their rows, summarise all finished ones, write the page.

    Args:
        experiment: The experiment.
        cells: Cells to measure now; None means all that wait. 0 shows what is known.
        jobs: Cells at the same time, each on one core.
        again: Measure all cells anew; earlier rows stay in the history.
        on_line: Called with a line for every cell measured.
        on_cell: Called in this thread with every outcome when it is there, known ones first.

    Raises:
        RecordError: Rows could not be written.
        RunError: A cell ended before it had an outcome, or all measured cells failed. If no cell waits, these are
            measured again the next time. What is known is in the warehouse and on the page all the same.
    """
    plan = experiment.cells
    known = {} if again else {cell.name: found for cell in plan if (found := known_outcome(cell)) is not None}
    pending = [cell for cell in plan if cell.name not in known][:cells]
    for outcome in known.values():
        on_cell(outcome)
    measured: dict[str, Outcome] = {}

    def take(outcome: Outcome) -> None:
        measured[outcome.cell] = outcome
        on_cell(outcome)
        on_line(f"{experiment.name} {len(measured)}/{len(pending)} {outcome.cell}: {outcome.summary}")

    failure = run_cells(pending, timeout=experiment.timeout, on_outcome=take, jobs=jobs, again=again)
    known |= measured
    outcomes = [known[cell.name] for cell in plan if cell.name in known]
    result = _write(experiment, outcomes)
    if failure is not None:
        raise failure
    if outcomes and cells != 0 and all(outcome.status != "ok" for outcome in outcomes):
        for cell in () if result.waiting else plan:
            # Cells are shared: another process may have measured one anew meanwhile.
            with wait_for_lock(cell.file.with_suffix(".lock")):
                if (found := known_outcome(cell)) is None or found.status != "ok":
                    cell.file.unlink(missing_ok=True)
        goes_on = f"goes on with the {result.waiting} cells that wait" if result.waiting else "measures them anew"
        raise RunError(
            f"no cell of {experiment.title} succeeded: {failure_reasons(outcomes)}; mend that, then give the same "
            f"command again, which {goes_on}; report: {result.report}"
        )
    return result


def _write(experiment: Experiment, outcomes: list[Outcome]) -> ExperimentResult:
    """Summarise an experiment, ingest its rows, and write its page and document."""
    waiting = len(experiment.cells) - len(outcomes)
    summary = experiment.summarise(outcomes, not waiting)
    Warehouse().ingest()
    charts = _charts(outcomes, experiment.shown)
    judged = interval_chart(summary.differences, label=summary.label)
    parts = [text_part(experiment.question), table_part(summary.rows), *charts, judged]
    parts += [text_part(sentence) for sentence in summary.sentences]
    if summary.verdicts:
        parts.append(table_part(checklist(summary.verdicts)))
    if waiting:
        parts.append(text_part(f"{waiting} of {len(experiment.cells)} cells are not measured yet."))
    parts.append(text_part(f"Settings: {experiment.config.model_dump_json(exclude_defaults=True)}"))
    report = write_page(reports_folder() / f"{experiment.page}.html", experiment.title, parts)
    document = {
        "rows": summary.rows,
        "sentences": summary.sentences,
        "outcomes": {outcome.cell: outcome.status for outcome in outcomes},
        "verdicts": summary.verdicts,
        "waiting": waiting,
        "skipped": experiment.skipped,
        "report": str(report),
    }
    write_document(experiment.document, document)
    return ExperimentResult(outcomes, waiting, summary, charts, judged, document, report)


def _charts(outcomes: Sequence[Outcome], shown: Sequence[str]) -> list[str]:
    """Plot metrics by level (mean and range over seeds), and the reward curve of each cell."""
    charts = [
        interval_chart(
            [
                (level, sum(values.values()) / len(values), min(values.values()), max(values.values()))
                for level, values in by_level(outcomes, name).items()
            ],
            label=f"{name}: mean and range over seeds",
        )
        for name in shown
    ]
    curves = {o.cell: ([step for step, _ in o.curve], [reward for _, reward in o.curve]) for o in outcomes if o.curve}
    charts.append(line_chart(curves, x="decisions", y="reward_ema"))
    return [chart for chart in charts if chart]


def read_sweep(name: str, profile: str) -> dict[str, Any]:
    """Load the JSON document of a profile's latest sweep.

    Raises:
        RecordError: The sweep has not been run.
    """
    return read_document(_sweep_document(name, profile), made_by=f"{name}, partition {profile},")


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


def _sweep_document(name: str, profile: str) -> Path:
    return pipeline_folder() / "sweeps" / f"{name}-{profile}.json"
