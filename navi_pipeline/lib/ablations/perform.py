"""Runner of an ablation study: runs pending cells (variant × seed), compares with the base, writes a report."""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from navi_core.errors import RunError
from navi_core.evaluate import (
    EvalResult,
    SeedComparison,
    compare_seeds,
    holm,
    interquartile_mean,
    record_comparison,
    seed_matrix,
)
from navi_pipeline.lib.ablations.catalogue import BASE, Variant, find_variants
from navi_pipeline.lib.ablations.cell import CellOutcome, known_outcome, outcome_path, resolved, run_cell_in_child
from navi_pipeline.lib.reports.pages import interval_chart, reports_folder, table_part, text_part, write_page
from navi_pipeline.lib.sweeps.cells import ALL_FAILED, failure_reasons
from navi_pipeline.lib.warehouse.warehouse import Warehouse
from navi_pipeline.settings import AblationConfig

_METRIC = "c_vis_auc"


@dataclass(frozen=True)
class AblationResult:
    """Result of an ablation: outcomes of its cells, one table row per variant, comparisons with the base, report file.

    Attributes:
        outcomes: Outcomes of the finished cells.
        waiting: Number of open cells.
        rows: One table row per variant.
        sentences: Verdict on each variant against the base.
        skipped: Variant that equals the base on this preset → reason.
        report: HTML file with all of this.
    """

    outcomes: list[CellOutcome]
    waiting: int
    rows: list[dict[str, Any]]
    sentences: list[str]
    skipped: dict[str, str]
    report: Path


def perform_ablation(
    names: Sequence[str],
    config: AblationConfig,
    *,
    name: str = "ablation",
    cells: int | None = None,
    jobs: int = 1,
    on_line: Callable[[str], None],
) -> AblationResult:
    """Run the pending runs (variant × seed) of an ablation study, and summarise all finished ones.

    Args:
        names: Names of variants; if empty, the user-defined ones, or all built-in ones if there are none.
        config: Settings shared by all cells.
        name: Name of the ablation, in its rows and its page.
        cells: Cells to measure now; None means all that wait. 0 shows what is known.
        jobs: Cells at the same time, each on one core.
        on_line: Called with a line for every cell.

    Raises:
        ConfigError: An unknown variant, or settings that cannot be.
        RecordError: Rows could not be written.
        RunError: A cell ended before it had an outcome, or all failed and are measured again the next time; what is
            known is in the warehouse and on the page all the same.
    """
    variants, skipped = _different(find_variants(names, config.variants), config)
    plan = [(variant, seed) for seed in range(config.seeds) for variant in variants]
    unknown = [cell for cell in plan if known_outcome(cell[0], config, cell[1]) is None]
    failure = _measure(name, unknown if cells is None else unknown[:cells], config, jobs, on_line)
    known = [known_outcome(variant, config, seed) for variant, seed in plan]
    outcomes = [outcome for outcome in known if outcome is not None]
    waiting = len(plan) - len(outcomes)
    rows, sentences = _summary(variants, outcomes, whole=not waiting)
    Warehouse().ingest()
    parts = [text_part(f"Settings: {config.model_dump_json(exclude_defaults=True)}"), table_part(rows)]
    bars = [(row["variant"], row["difference"], row["low"], row["high"]) for row in rows]
    parts.append(interval_chart(bars, label=f"difference to {BASE} in {_METRIC} [%]"))
    parts += [text_part(sentence) for sentence in sentences]
    if waiting:
        parts.append(text_part(f"{waiting} of {len(plan)} cells are not measured yet."))
    report = write_page(reports_folder() / f"ablation-{name}.html", f"Ablation {name}", parts)
    if failure is not None:
        raise failure
    if not waiting and cells != 0 and not any(outcome.status == "ok" for outcome in outcomes):
        for variant, seed in plan:
            outcome_path(variant, config, seed).unlink(missing_ok=True)
        raise RunError(
            f"no cell of ablation {name} succeeded: {failure_reasons(outcomes)}; {ALL_FAILED}; report: {report}"
        )
    return AblationResult(outcomes, waiting, rows, sentences, skipped, report)


def _measure(
    name: str,
    cells: Sequence[tuple[Variant, int]],
    config: AblationConfig,
    jobs: int,
    on_line: Callable[[str], None],
) -> RunError | None:
    """Run cells (variant × seed) in child processes, `jobs` at a time, and report each when it is done.

    Returns:
        Why the first cell ended that has no outcome; the others were stopped then, and go on another time.
    """
    ending = threading.Event()
    failure: RunError | None = None
    with ThreadPoolExecutor(jobs) as pool:
        try:
            cells_of = {
                pool.submit(run_cell_in_child, name, variant, config, seed, stop=ending.is_set): (variant, seed)
                for variant, seed in cells
            }
            for number, done in enumerate(as_completed(cells_of), start=1):
                variant, seed = cells_of[done]
                try:
                    on_line(f"{name} {number}/{len(cells)} {variant.name}/seed{seed}: {_described(done.result())}")
                except CancelledError:
                    pass
                except RunError as error:
                    failure = failure or error
                    ending.set()
                    for waiting in cells_of:
                        waiting.cancel()
        finally:
            # Interrupted: what is under way is stopped, too.
            ending.set()
            pool.shutdown(wait=False, cancel_futures=True)
    return failure


def _different(variants: Sequence[Variant], config: AblationConfig) -> tuple[list[Variant], dict[str, str]]:
    """Split variants into those that differ from the base on this preset, and skipped ones with the reason."""
    base = resolved(variants[0], config)
    kept, skipped = [variants[0]], {}
    for variant in variants[1:]:
        if not variant.cloned and resolved(variant, config) == base:
            skipped[variant.name] = f"is the {BASE} of {config.preset}"
        else:
            kept.append(variant)
    return kept, skipped


def _summary(
    variants: Sequence[Variant], outcomes: Sequence[CellOutcome], *, whole: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a table row per variant and the comparison sentences; record the comparisons in the warehouse."""
    flown: dict[str, dict[int, EvalResult]] = {}
    for outcome in outcomes:
        if outcome.status == "ok":
            flown.setdefault(outcome.variant, {})[outcome.seed] = EvalResult.load(outcome.result)
    rows, sentences = [], []
    verdicts = _verdicts([variant.name for variant in variants if variant.name != BASE], flown, whole=whole)
    for variant in variants:
        mine = [outcome for outcome in outcomes if outcome.variant == variant.name]
        good = [outcome for outcome in mine if outcome.status == "ok"]
        results = [flown[variant.name][outcome.seed] for outcome in good]
        row: dict[str, Any] = {
            "variant": variant.name,
            "seeds": len(good),
            "failed": len(mine) - len(good),
            "c_vis_auc": _mean(good, "c_vis_auc"),
            "iqm": interquartile_mean(seed_matrix(results, _METRIC)) if results else None,
            "collisions_per_minute": _mean(good, "collisions_per_minute"),
            "cpu_minutes": sum(sum(o.cpu_minutes.values()) for o in good) / len(good) if good else None,
            "difference": None,
            "low": None,
            "high": None,
        }
        verdict = verdicts.get(variant.name)
        if verdict is not None:
            row |= {"difference": verdict.mean_difference, "low": verdict.low, "high": verdict.high}
            failed = f" {row['failed']} of {len(mine)} seeds failed." if row["failed"] else ""
            sentences.append(verdict.sentence + failed)
        if failure_reasons(outcomes):
            row["reason"] = failure_reasons(mine)
        rows.append(row)
    return rows, sentences


def _verdicts(names: Sequence[str], flown: dict[str, dict[int, Any]], *, whole: bool) -> dict[str, SeedComparison]:
    """Compare variants with the base over the seeds that both have; a comparison needs at least two.

    Better and worse follow Holm's rule, to correct for multiple comparisons among variants. There is no verdict before
    all cells are measured, because stopping early at a favourable result would bias it. The p-value of a comparison
    with added seeds is multiplied by the number of looks.
    """
    made: dict[str, SeedComparison] = {}
    sides: dict[str, tuple[list[Any], list[Any]]] = {}
    for name in names:
        seeds = sorted(flown.get(name, {}).keys() & flown.get(BASE, {}).keys())
        if len(seeds) >= 2:
            sides[name] = [flown[name][seed] for seed in seeds], [flown[BASE][seed] for seed in seeds]
            made[name] = compare_seeds(*sides[name], _METRIC, names=(name, BASE))
    if not whole:
        return {name: verdict.withheld("before all cells are measured") for name, verdict in made.items()}
    before = _earlier_looks(sides)
    p_values = [min(1.0, verdict.p_value * (1 + len(before[name]))) for name, verdict in made.items()]
    for (name, verdict), shown in zip(made.items(), holm(p_values), strict=True):
        looked = f", looked at {1 + len(before[name])} times," if before[name] else ""
        if (verdict.better or verdict.worse) and not shown:
            made[name] = verdict.withheld(f"among {len(made)} variants{looked} it may be chance (Holm)")
        if before[name]:
            looks = ", ".join(map(str, before[name]))
            made[name] = replace(made[name], sentence=f"{made[name].sentence} Looked at before with {looks} seeds.")
    for name, verdict in made.items():
        record_comparison(verdict, *sides[name])
    return made


def _earlier_looks(sides: dict[str, tuple[list[Any], list[Any]]]) -> dict[str, list[int]]:
    """Query interim analyses: seed counts of earlier comparisons on a subset of these evaluations, by variant."""
    Warehouse().ingest()
    known = Warehouse().query(
        "select seeds, evaluations from comparisons where metric = ? and \"over\" = 'seeds and scenes' and seeds >= 5",
        [_METRIC],
    )
    looks: dict[str, list[int]] = {}
    for name, (a, b) in sides.items():
        mine = {result.evaluation_id for result in (*a, *b)}
        looks[name] = sorted(
            int(seeds)
            for seeds, evaluations in known.itertuples(index=False)
            if {*json.loads(evaluations)["a"], *json.loads(evaluations)["b"]} < mine
        )
    return looks


def _mean(outcomes: Sequence[CellOutcome], figure: str) -> float | None:
    return sum(outcome.metrics[figure] for outcome in outcomes) / len(outcomes) if outcomes else None


def _described(outcome: CellOutcome) -> str:
    minutes = sum(outcome.cpu_minutes.values())
    if outcome.status != "ok":
        return f"{outcome.status} after {minutes:.1f} CPU minutes ({outcome.detail})"
    auc, hits = outcome.metrics["c_vis_auc"], outcome.metrics["collisions_per_minute"]
    return f"C_vis AUC {auc:.1f} %, {hits:.2f} collisions a minute, {minutes:.1f} CPU minutes"
