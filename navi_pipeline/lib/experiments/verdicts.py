"""Summaries of experiments: figures by level, checklist of temporal cores, verdicts of an ablation by Holm's rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from navi_pipeline.lib.experiments.cells import Outcome, failure_reasons
from navi_pipeline.lib.experiments.variants import BASE
from navi_pipeline.lib.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from navi_core.evaluate import EvalResult, SeedComparison
    from navi_core.evaluate.statistics import Interval

_METRIC = "c_vis_auc"
INCUMBENT = "mamba2"
"""Default temporal core, which the others are compared with."""
CLAIM_SEEDS = 5
"""Minimum number of training seeds for a claim; with fewer the result is "ahead" or "behind", not "better"."""
LEAST_THROUGHPUT = 0.9
"""Minimum throughput of a challenger, as a fraction of the incumbent's decisions per second."""
_TICK = {True: "yes", False: "no"}
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
        mine = [outcome for outcome in outcomes if outcome.level == level]
        ended = Counter(outcome.status for outcome in mine)
        row: dict[str, Any] = {
            "cell": level,
            "outcome": ", ".join(f"{count} {status}" for status, count in ended.items()),
            **{name: _mean(levels.get(level, {})) for name, levels in figures.items()},
        }
        rows.append(row | _reasons(mine, outcomes))
    return rows


def _mean(values: Mapping[int, float]) -> float | None:
    """Return the mean over seeds, in thousands as a whole number: large counts are read as numbers, not as powers."""
    if not values:
        return None
    mean = sum(values.values()) / len(values)
    return round(mean) if abs(mean) >= 1000 else mean


def _reasons(mine: Sequence[Outcome], outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the column of a level's failures; there is none if no cell of the experiment failed."""
    return {"reason": failure_reasons(mine)} if failure_reasons(outcomes) else {}


def paired_difference(a: dict[int, float], b: dict[int, float]) -> Interval | None:
    """Compute the paired difference a − b with its 95 % interval over the seeds that both have (Student's t).

    Args:
        a: Value by seed.
        b: Value by seed of the other side.

    Returns:
        The interval, whose `episodes` are the pairs; None with fewer than two.
    """
    from navi_core.evaluate.statistics import student_interval

    pairs = {str(seed): [a[seed] - b[seed]] for seed in a.keys() & b.keys()}
    return student_interval(pairs) if len(pairs) >= 2 else None


def core_verdicts(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Apply the promotion checklist to every temporal (recurrent) core, against the incumbent core.

    Args:
        outcomes: Outcomes of the temporal core sweep.

    Returns:
        For each challenger: core; reward, its final reward_ema less the incumbent's, paired by seed; better, whether
        that interval lies above 0, over enough seeds for a claim; throughput, its decisions per processor second over
        the incumbent's; fast_enough; no_extra_build, whether it needs no package compiled for a device; promote,
        whether all three hold; sentence, the verdict in words. Without two pairs reward is None, and so throughput.
    """
    verdicts = []
    for core, reward, throughput in _compared(outcomes, INCUMBENT):
        checks = {
            "better": reward is not None and reward.low > 0 and reward.episodes >= CLAIM_SEEDS,
            "fast_enough": throughput is not None and throughput >= LEAST_THROUGHPUT,
            "no_extra_build": core not in _NEEDS_BUILD,
        }
        promote = all(checks.values())
        known = reward is not None and throughput is not None
        advice = (f" Promote {core}." if promote else f" Keep {INCUMBENT}.") if known else ""
        difference = reward and {"mean": reward.mean, "low": reward.low, "high": reward.high, "seeds": reward.episodes}
        verdicts.append(
            {"core": core, "reward": difference, "throughput": throughput, **checks, "promote": promote}
            | {"sentence": _judged(core, INCUMBENT, reward, throughput) + advice}
        )
    return verdicts


def checklist(verdicts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Format the verdicts on temporal cores as rows of a table."""
    rows = []
    for verdict in verdicts:
        reward, throughput = verdict["reward"], verdict["throughput"]
        rows.append(
            {
                "core": verdict["core"],
                "reward_ema, difference": f"{reward['mean']:+.4f}" if reward else "–",
                "95 % interval": f"[{reward['low']:+.4f}, {reward['high']:+.4f}]" if reward else "–",
                "seeds": reward["seeds"] if reward else 0,
                "better by interval": _TICK[verdict["better"]],
                "throughput ratio": "–" if throughput is None else f"{throughput:.2f}",
                f"at least {LEAST_THROUGHPUT}": _TICK[verdict["fast_enough"]],
                "no extra build": _TICK[verdict["no_extra_build"]],
                "verdict": "promote" if verdict["promote"] else "keep the incumbent",
            }
        )
    return rows


def _compared(outcomes: Sequence[Outcome], base: str) -> Iterator[tuple[str, Interval | None, float | None]]:
    """Yield each other level with its difference in reward_ema to the base and its throughput over the base's."""
    rewards = by_level(outcomes, "reward_ema")
    rates = by_level(outcomes, "steps_per_2_cpu_seconds")
    for level in dict.fromkeys(outcome.level for outcome in outcomes if outcome.level != base):
        reward = paired_difference(rewards.get(level, {}), rewards.get(base, {}))
        yield level, reward, _ratio(rates.get(level, {}), rates.get(base, {}))


def _judged(level: str, base: str, reward: Interval | None, throughput: float | None) -> str:
    if reward is None or throughput is None:
        return f"{level} against {base}: fewer than two pairs were measured, so there is no verdict."
    few = reward.episodes < CLAIM_SEEDS
    claim = f", but {reward.episodes} seeds are no claim ({CLAIM_SEEDS} are)" if few else ""
    if reward.low > 0:
        judgement = f"{'ahead of' if few else 'better than'} {base}{claim}"
    elif reward.high < 0:
        judgement = f"{'behind' if few else 'worse than'} {base}{claim}"
    else:
        judgement = f"not shown to differ from {base}"
    return (
        f"{level} is {judgement} in reward_ema: {reward.mean:+.4f} [{reward.low:+.4f}, {reward.high:+.4f}] over "
        f"{reward.episodes} seeds, at {throughput:.2f} times its throughput."
    )


def _paced(level: str, base: str, throughput: float | None) -> str:
    if throughput is None:
        return f"{level} against {base}: no pair was measured, so there is no verdict."
    return f"{level} trains {throughput:.3g} times as fast as {base}, in decisions per CPU-second."


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


@dataclass(frozen=True)
class Summary:
    """Summary of an experiment's outcomes.

    Attributes:
        rows: One table row per level.
        sentences: Verdicts in words.
        verdicts: Result of `core_verdicts`, for temporal cores alone.
        differences: Label, mean, low and high of the difference to the baseline by level.
        label: Quantity and unit of the differences.
    """

    rows: list[dict[str, Any]]
    sentences: list[str] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    differences: list[tuple[str, Any, Any, Any]] = field(default_factory=list)
    label: str = ""


def sweep_summary(name: str, shown: Sequence[str], outcomes: Sequence[Outcome]) -> Summary:
    """Summarise a sweep: each level against the first one, in reward and throughput, or in throughput alone.

    The sweep of temporal cores ends in the promotion checklist.

    Args:
        name: Name of the sweep.
        shown: Figures, in the order of the columns.
        outcomes: Outcomes of its cells.
    """
    verdicts = core_verdicts(outcomes) if name == "temporal_core_sweep" else []
    base, learnt = next((outcome.level for outcome in outcomes), ""), "reward_ema" in shown
    trained = by_level(outcomes, "steps_per_2_cpu_seconds")
    compared = list(_compared(outcomes, base)) if trained else []
    judged = [
        _judged(level, base, reward, pace) if learnt else _paced(level, base, pace) for level, reward, pace in compared
    ]
    return Summary(
        level_rows(outcomes, shown),
        [verdict["sentence"] for verdict in verdicts] or judged,
        verdicts,
        [(level, reward.mean, reward.low, reward.high) for level, reward, _ in compared if learnt and reward],
        f"final reward_ema less that of {base}, 95 % interval over seeds",
    )


def ablation_summary(variants: Sequence[str], outcomes: Sequence[Outcome], *, whole: bool) -> Summary:
    """Summarise an ablation: figures and difference to the base by variant; record the comparisons in the warehouse.

    Args:
        variants: Names of the variants, the base among them.
        outcomes: Outcomes of the finished cells.
        whole: Whether all cells are measured; before there is no verdict.
    """
    from navi_core.evaluate import EvalResult, interquartile_mean, seed_matrix

    flown: dict[str, dict[int, EvalResult]] = {name: {} for name in variants}
    for outcome in outcomes:
        if outcome.status == "ok":
            flown[outcome.level][outcome.seed] = EvalResult.load(outcome.result)
    verdicts = _verdicts([name for name in variants if name != BASE], flown, whole=whole)
    figures = {name: by_level(outcomes, name) for name in ("c_vis_auc", "collisions_per_minute", "cpu_minutes")}
    rows, sentences = [], []
    for name, results in flown.items():
        mine = [outcome for outcome in outcomes if outcome.level == name]
        failed, verdict = len(mine) - len(results), verdicts.get(name)
        means = {figure: _mean(levels.get(name, {})) for figure, levels in figures.items()}
        row = {
            "variant": name,
            "seeds": len(results),
            "failed": failed,
            "c_vis_auc": means["c_vis_auc"],
            "iqm": interquartile_mean(seed_matrix(list(results.values()), _METRIC)) if results else None,
            "collisions_per_minute": means["collisions_per_minute"],
            "cpu_minutes": means["cpu_minutes"],
            "difference": None if verdict is None else verdict.mean_difference,
            "low": None if verdict is None else verdict.low,
            "high": None if verdict is None else verdict.high,
        }
        rows.append(row | _reasons(mine, outcomes))
        if verdict is not None:
            sentences.append(verdict.sentence + (f" {failed} of {len(mine)} seeds failed." if failed else ""))
    differences = [(name, row["difference"], row["low"], row["high"]) for name, row in zip(flown, rows, strict=True)]
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
    Warehouse().ingest()
    looks = {name: _earlier_looks(*both) for name, both in sides.items()}
    p_values = [min(1.0, verdict.p_value * (1 + len(looks[name]))) for name, verdict in made.items()]
    for (name, verdict), shown, before in zip(made.items(), holm(p_values), looks.values(), strict=True):
        looked = f", looked at {1 + len(before)} times," if before else ""
        if (verdict.better or verdict.worse) and not shown:
            made[name] = verdict.withheld(f"among {len(made)} variants{looked} it may be chance (Holm)")
        if before:
            added = f" Looked at before with {', '.join(map(str, before))} seeds."
            made[name] = replace(made[name], sentence=made[name].sentence + added)
        record_comparison(made[name], *sides[name])
    return made


def _earlier_looks(a: Sequence[EvalResult], b: Sequence[EvalResult]) -> list[int]:
    """Query interim analyses: seed counts of earlier comparisons on a proper subset of the evaluations of two sides."""
    mine = [result.evaluation_id for result in (*a, *b)]
    known = Warehouse().query(
        "select seeds, json_extract_string(evaluations, '$.*[*]') as flown from comparisons "
        "where metric = ? and \"over\" = 'seeds and scenes' and seeds >= 5 "
        "and list_has_all(?, flown) and len(flown) < ? order by seeds",
        [_METRIC, mine, len(mine)],
    )
    return [int(seeds) for seeds in known["seeds"]]
