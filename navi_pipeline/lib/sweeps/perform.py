"""Runner of a parameter sweep: pending cells, report, and the promotion checklist of temporal (recurrent) cores."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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
from navi_pipeline.lib.sweeps.catalogue import Scenery, find_sweep
from navi_pipeline.lib.sweeps.cells import ALL_FAILED, Outcome, failure_reasons, outcome_path, run_cells
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import SweepConfig

INCUMBENT = "mamba2"
"""Default temporal core, which the others are compared with."""
CLAIM_SEEDS = 5
"""Minimum number of training seeds for a claim; with fewer the result is "ahead" or "behind", not "better"."""
LEAST_THROUGHPUT = 0.9
"""Minimum throughput of a challenger, as a fraction of the incumbent's decisions per second."""
_NEEDS_BUILD = ("mamba-ssm",)
"""Cores that need a package compiled for the device."""


def level_rows(outcomes: Sequence[Outcome], shown: Sequence[str]) -> list[dict[str, Any]]:
    """Aggregate outcomes into one table row per swept value: status counts, and the mean of each metric over seeds.

    Args:
        outcomes: Outcomes of a sweep's cells.
        shown: Figures, in the order of the columns.
    """
    rows = []
    figures = {name: _by_level(outcomes, name) for name in shown}
    for level in dict.fromkeys(outcome.level for outcome in outcomes):
        ended = [outcome.status for outcome in outcomes if outcome.level == level]
        row: dict[str, Any] = {
            "cell": level,
            "outcome": ", ".join(f"{ended.count(status)} {status}" for status in dict.fromkeys(ended)),
        }
        for name, levels in figures.items():
            values = levels.get(level, {}).values()
            mean = sum(values) / len(values) if values else None
            # Large counts are read as numbers, not as powers of ten.
            row[name] = round(mean) if mean is not None and abs(mean) >= 1000 else mean
        if failure_reasons(outcomes):
            row["reason"] = failure_reasons(outcome for outcome in outcomes if outcome.level == level)
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Difference:
    """Mean paired difference over seeds with its 95 % confidence interval (Student's t)."""

    mean: float
    low: float
    high: float
    seeds: int


def paired_difference(a: dict[int, float], b: dict[int, float]) -> Difference | None:
    """Compute the paired difference a − b over the seeds that both have; None with fewer than two.

    Args:
        a: Value by seed.
        b: Value by seed of the other side.
    """
    from scipy.stats import t

    seeds = sorted(a.keys() & b.keys())
    if len(seeds) < 2:
        return None
    values = [a[seed] - b[seed] for seed in seeds]
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = float(t.ppf(0.975, len(values) - 1)) * spread / math.sqrt(len(values))
    return Difference(mean, mean - half, mean + half, len(values))


@dataclass(frozen=True)
class Verdict:
    """Result of the promotion checklist for one temporal (recurrent) core: reward, throughput, build needs, verdict.

    Attributes:
        core: Name of the challenger.
        reward: Its final reward_ema less the incumbent's, paired by seed; None with fewer than two pairs.
        better: The interval lies above 0, over enough seeds for a claim.
        throughput: Its decisions per processor second over the incumbent's; None without a pair.
        fast_enough: Whether the throughput is sufficient.
        no_extra_build: Whether it needs no package compiled for a device.
        promote: Whether all three conditions hold.
        sentence: The verdict in words.
    """

    core: str
    reward: Difference | None
    better: bool
    throughput: float | None
    fast_enough: bool
    no_extra_build: bool
    promote: bool
    sentence: str

    def as_row(self) -> dict[str, Any]:
        """Format the checklist as a table row."""
        reward = self.reward
        return {
            "core": self.core,
            "reward_ema, difference": "–" if reward is None else f"{reward.mean:+.4f}",
            "95 % interval": "–" if reward is None else f"[{reward.low:+.4f}, {reward.high:+.4f}]",
            "seeds": 0 if reward is None else reward.seeds,
            "better by interval": _tick(self.better),
            "throughput ratio": "–" if self.throughput is None else f"{self.throughput:.2f}",
            f"at least {LEAST_THROUGHPUT}": _tick(self.fast_enough),
            "no extra build": _tick(self.no_extra_build),
            "verdict": "promote" if self.promote else "keep the incumbent",
        }


def core_verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Apply the promotion checklist to every temporal (recurrent) core, against the incumbent core.

    Args:
        outcomes: Outcomes of the temporal core sweep.
    """
    rewards = _by_level(outcomes, "reward_ema")
    rates = _by_level(outcomes, "steps_per_2_cpu_seconds")
    verdicts = []
    for core in dict.fromkeys(str(outcome.level) for outcome in outcomes):
        if core == INCUMBENT:
            continue
        reward = paired_difference(rewards.get(core, {}), rewards.get(INCUMBENT, {}))
        better = reward is not None and reward.low > 0 and reward.seeds >= CLAIM_SEEDS
        throughput = _ratio(rates.get(core, {}), rates.get(INCUMBENT, {}))
        fast, plain = throughput is not None and throughput >= LEAST_THROUGHPUT, core not in _NEEDS_BUILD
        promote = better and fast and plain
        judgement = _sentence(core, reward, throughput, promote)
        verdicts.append(Verdict(core, reward, better, throughput, fast, plain, promote, judgement))
    return verdicts


def _sentence(core: str, reward: Difference | None, throughput: float | None, promote: bool) -> str:
    if reward is None or throughput is None:
        return f"{core} against {INCUMBENT}: fewer than two pairs were measured, so there is no verdict."
    few = reward.seeds < CLAIM_SEEDS
    claim = f", but {reward.seeds} seeds are no claim ({CLAIM_SEEDS} are)" if few else ""
    if reward.low > 0:
        judgement = f"{'ahead of' if few else 'better than'} {INCUMBENT}{claim}"
    elif reward.high < 0:
        judgement = f"{'behind' if few else 'worse than'} {INCUMBENT}{claim}"
    else:
        judgement = f"not shown to differ from {INCUMBENT}"
    return (
        f"{core} is {judgement} in reward_ema: {reward.mean:+.4f} [{reward.low:+.4f}, {reward.high:+.4f}] over "
        f"{reward.seeds} seeds, at {throughput:.2f} times its throughput. "
        + (f"Promote {core}." if promote else f"Keep {INCUMBENT}.")
    )


def _by_level(outcomes: Sequence[Outcome], name: str) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for outcome in outcomes:
        value = outcome.metrics.get(name)
        if outcome.status == "ok" and value is not None and math.isfinite(value):
            found.setdefault(outcome.level, {})[int(outcome.factors.get("seed", 0))] = value
    return found


def _ratio(a: dict[int, float], b: dict[int, float]) -> float | None:
    """Return the geometric mean over seeds of the ratio a / b; None without a pair."""
    logs = [math.log(a[seed] / b[seed]) for seed in a.keys() & b.keys() if a[seed] > 0 and b[seed] > 0]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _tick(value: bool) -> str:
    return "yes" if value else "no"


TRAINING_SCENES = 4
"""Number of the corpus' training scenes that the cells use."""


@dataclass(frozen=True)
class SweepResult:
    """Result of a parameter sweep: outcomes, table rows, promotion checklist, charts, report.

    Attributes:
        document: JSON document of the sweep, as `--json` prints it.
        outcomes: Outcomes of all cells.
        rows: One line per level.
        verdicts: The promotion checklist, for temporal cores alone.
        charts: Figures by level and reward curves, SVG.
        verdict_chart: Differences with their intervals, SVG; empty without verdicts.
        report: HTML file with all of this.
    """

    document: dict[str, Any]
    outcomes: list[Outcome]
    rows: list[dict[str, Any]]
    verdicts: list[Verdict]
    charts: list[str]
    verdict_chart: str
    report: Path

    @property
    def reused(self) -> bool:
        """Return whether all outcomes were loaded, none measured."""
        return all(outcome.reused for outcome in self.outcomes)


def perform_sweep(
    name: str, config: SweepConfig, *, on_line: Callable[[str], None], again: bool = False
) -> SweepResult:
    """Run a parameter sweep: execute its pending cells, ingest their rows, and write the report.

    Args:
        name: Name of the sweep.
        config: Settings of the sweep.
        on_line: Called with a line for every cell measured.
        again: Measure every cell anew.

    Raises:
        ConfigError: No such sweep.
        RecordError: The corpus has not been materialized, or rows could not be written.
        RunError: The corpus has no training scene, something kept a cell from an outcome of its own, or all cells
            failed; these are measured again the next time.
    """
    sweep = find_sweep(name)
    cells = sweep.cells(config, training_scenery())
    outcomes = run_cells(name, cells, config, on_line=on_line, again=again)
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
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "report": str(report),
    }
    write_document(_path(name, config.profile), document)
    if not any(outcome.status == "ok" for outcome in outcomes):
        for cell in cells:
            outcome_path(name, cell).unlink(missing_ok=True)
        raise RunError(f"no cell of {name} succeeded: {failure_reasons(outcomes)}; {ALL_FAILED}; report: {report}")
    return SweepResult(document, outcomes, rows, verdicts, charts, judged, report)


def _charts(outcomes: Sequence[Outcome], shown: Sequence[str]) -> list[str]:
    """Plot the first two metrics by the swept value (mean and range over seeds), and the reward curve of each cell."""
    charts = [
        interval_chart(
            [
                (level, sum(values.values()) / len(values), min(values.values()), max(values.values()))
                for level, values in _by_level(outcomes, name).items()
            ],
            label=f"{name}: mean and range over seeds",
        )
        for name in shown[:2]
    ]
    curves = {o.cell: ([step for step, _ in o.curve], [reward for _, reward in o.curve]) for o in outcomes}
    charts.append(line_chart(curves, x="decisions", y="reward_ema"))
    return [chart for chart in charts if chart]


def read_sweep(name: str, profile: str) -> dict[str, Any]:
    """Load the JSON document of a profile's latest sweep.

    Raises:
        RecordError: The sweep has not been run.
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
