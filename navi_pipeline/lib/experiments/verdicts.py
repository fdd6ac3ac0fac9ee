"""Summaries of experiments: figures by level, checklist of temporal cores, verdicts of an ablation by Holm's rule."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from navi_pipeline.lib.experiments.cells import Outcome, failure_reasons
from navi_pipeline.lib.experiments.variants import BASE
from navi_pipeline.lib.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from navi_core.evaluate import EvalResult, SeedComparison

_METRIC = "c_vis_auc"
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
    figures = {name: by_level(outcomes, name) for name in shown}
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
    from navi_core.evaluate.statistics import student_interval

    pairs = {str(seed): [a[seed] - b[seed]] for seed in a.keys() & b.keys()}
    if len(pairs) < 2:
        return None
    found = student_interval(pairs)
    return Difference(found.mean, found.low, found.high, len(pairs))


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
    rewards = by_level(outcomes, "reward_ema")
    rates = by_level(outcomes, "steps_per_2_cpu_seconds")
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


def by_level(outcomes: Sequence[Outcome], name: str) -> dict[str, dict[int, float]]:
    """Return level → seed → finite value of a figure, over the cells that were measured."""
    found: dict[str, dict[int, float]] = {}
    for outcome in outcomes:
        value = outcome.metrics.get(name)
        if outcome.status == "ok" and value is not None and math.isfinite(value):
            found.setdefault(outcome.level, {})[outcome.seed] = value
    return found


def _ratio(a: dict[int, float], b: dict[int, float]) -> float | None:
    """Return the geometric mean over seeds of the ratio a / b; None without a pair."""
    logs = [math.log(a[seed] / b[seed]) for seed in a.keys() & b.keys() if a[seed] > 0 and b[seed] > 0]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _tick(value: bool) -> str:
    return "yes" if value else "no"


@dataclass(frozen=True)
class Summary:
    """Summary of an experiment's outcomes.

    Attributes:
        rows: One table row per level.
        sentences: Verdicts in words.
        verdicts: Promotion checklist, for temporal cores alone.
        differences: Label, mean, low and high of the difference to the baseline by level.
        label: Quantity and unit of the differences.
    """

    rows: list[dict[str, Any]]
    sentences: list[str] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    differences: list[tuple[str, Any, Any, Any]] = field(default_factory=list)
    label: str = ""


def sweep_summary(name: str, shown: Sequence[str], outcomes: Sequence[Outcome]) -> Summary:
    """Summarise a sweep; the one of temporal cores ends in the promotion checklist.

    Args:
        name: Name of the sweep.
        shown: Figures, in the order of the columns.
        outcomes: Outcomes of its cells.
    """
    verdicts = core_verdicts(outcomes) if name == "temporal_core_sweep" else []
    return Summary(
        level_rows(outcomes, shown),
        [verdict.sentence for verdict in verdicts],
        verdicts,
        [(v.core, v.reward.mean, v.reward.low, v.reward.high) for v in verdicts if v.reward is not None],
        f"final reward_ema less that of {INCUMBENT}, 95 % interval over seeds",
    )


def ablation_summary(variants: Sequence[str], outcomes: Sequence[Outcome], *, whole: bool) -> Summary:
    """Summarise an ablation: figures and difference to the base by variant; record the comparisons in the warehouse.

    Args:
        variants: Names of the variants, the base among them.
        outcomes: Outcomes of the finished cells.
        whole: Whether all cells are measured; before there is no verdict.
    """
    from navi_core.evaluate import EvalResult, interquartile_mean, seed_matrix

    flown: dict[str, dict[int, EvalResult]] = {}
    for outcome in outcomes:
        if outcome.status == "ok":
            flown.setdefault(outcome.level, {})[outcome.seed] = EvalResult.load(outcome.result)
    verdicts = _verdicts([name for name in variants if name != BASE], flown, whole=whole)
    rows, sentences = [], []
    for name in variants:
        mine = [outcome for outcome in outcomes if outcome.level == name]
        good = [outcome for outcome in mine if outcome.status == "ok"]
        failed = len(mine) - len(good)
        results, verdict = list(flown.get(name, {}).values()), verdicts.get(name)
        rows.append(
            {
                "variant": name,
                "seeds": len(good),
                "failed": failed,
                "c_vis_auc": _mean(good, "c_vis_auc"),
                "iqm": interquartile_mean(seed_matrix(results, _METRIC)) if results else None,
                "collisions_per_minute": _mean(good, "collisions_per_minute"),
                "cpu_minutes": _mean(good, "cpu_minutes"),
                "difference": None if verdict is None else verdict.mean_difference,
                "low": None if verdict is None else verdict.low,
                "high": None if verdict is None else verdict.high,
            }
            | ({"reason": failure_reasons(mine)} if failure_reasons(outcomes) else {})
        )
        if verdict is not None:
            sentences.append(verdict.sentence + (f" {failed} of {len(mine)} seeds failed." if failed else ""))
    differences = [(str(row["variant"]), row["difference"], row["low"], row["high"]) for row in rows]
    return Summary(rows, sentences, differences=differences, label=f"difference to {BASE} in {_METRIC} [%]")


def _verdicts(names: Sequence[str], flown: dict[str, dict[int, Any]], *, whole: bool) -> dict[str, SeedComparison]:
    """Compare variants with the base over the seeds that both have; a comparison needs at least two.

    Better and worse follow Holm's rule, to correct for multiple comparisons among variants. There is no verdict before
    all cells are measured, because stopping early at a favourable result would bias it. The p-value of a comparison
    with added seeds is multiplied by the number of looks.
    """
    from navi_core.evaluate import compare_seeds, holm, record_comparison

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


def _mean(outcomes: Sequence[Outcome], figure: str) -> float | None:
    return sum(outcome.metrics[figure] for outcome in outcomes) / len(outcomes) if outcomes else None
