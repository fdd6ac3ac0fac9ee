"""Summary of a sweep: one row per level, and the promotion checklist of temporal cores."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from navi_pipeline.lib.sweeps.cells import Outcome

INCUMBENT = "mamba2"
"""The default core, which the others challenge."""
CLAIM_SEEDS = 5
"""Training seeds that a claim needs; with fewer the result is only "ahead" or "behind", never "better" or "worse"."""
LEAST_THROUGHPUT = 0.9
"""Share of the incumbent's decisions per second that a challenger must reach."""
_NEEDS_BUILD = ("mamba-ssm",)
"""Cores whose package is compiled for a device."""


def level_rows(outcomes: Sequence[Outcome], shown: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per level: how its cells ended, and the mean of each figure over those that were measured.

    Args:
        outcomes: Of a sweep.
        shown: Figures, in the order of the columns.
    """
    rows = []
    for level in dict.fromkeys(outcome.level for outcome in outcomes):
        cells = [outcome for outcome in outcomes if outcome.level == level]
        ended = [outcome.status for outcome in cells]
        row: dict[str, Any] = {
            "cell": level,
            "outcome": ", ".join(f"{ended.count(status)} {status}" for status in dict.fromkeys(ended)),
        }
        good = [outcome for outcome in cells if outcome.status == "ok"]
        for name in shown:
            values = [o.metrics[name] for o in good if name in o.metrics and math.isfinite(o.metrics[name])]
            mean = sum(values) / len(values) if values else None
            # Large counts are read as numbers, not as powers of ten.
            row[name] = round(mean) if mean is not None and abs(mean) >= 1000 else mean
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Difference:
    """A paired difference over seeds with its 95 % interval (Student's t)."""

    mean: float
    low: float
    high: float
    seeds: int


def paired_difference(a: dict[int, float], b: dict[int, float]) -> Difference | None:
    """Return a − b over the seeds that both have; None with fewer than two.

    Args:
        a: Value by seed.
        b: The same of the other.
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
    """Whether a temporal core should become the default.

    Attributes:
        core: The challenger.
        reward: Its final reward_ema less the incumbent's, paired by seed; None with fewer than two pairs.
        better: The interval lies above 0, over enough seeds for a claim.
        throughput: Its decisions per processor second over the incumbent's; None without a pair.
        fast_enough: Whether that is enough.
        no_extra_build: Whether it needs no package compiled for a device.
        promote: All three.
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
        """Return the checklist as a line of a table."""
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

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def core_verdicts(outcomes: Sequence[Outcome], incumbent: str = INCUMBENT) -> list[Verdict]:
    """Judge every core against the incumbent by the promotion checklist.

    Args:
        outcomes: Of the temporal core sweep.
        incumbent: The core that holds the place.
    """
    rewards = _by_level(outcomes, "reward_ema")
    rates = _by_level(outcomes, "steps_per_2_cpu_seconds")
    verdicts = []
    for core in dict.fromkeys(str(outcome.level) for outcome in outcomes):
        if core == incumbent:
            continue
        reward = paired_difference(rewards.get(core, {}), rewards.get(incumbent, {}))
        better = reward is not None and reward.low > 0 and reward.seeds >= CLAIM_SEEDS
        throughput = _ratio(rates.get(core, {}), rates.get(incumbent, {}))
        fast, plain = throughput is not None and throughput >= LEAST_THROUGHPUT, core not in _NEEDS_BUILD
        promote = better and fast and plain
        judgement = _sentence(core, incumbent, reward, throughput, promote)
        verdicts.append(Verdict(core, reward, better, throughput, fast, plain, promote, judgement))
    return verdicts


def _sentence(core: str, incumbent: str, reward: Difference | None, throughput: float | None, promote: bool) -> str:
    if reward is None or throughput is None:
        return f"{core} against {incumbent}: fewer than two pairs were measured, so nothing can be judgement."
    if reward.low > 0 and reward.seeds < CLAIM_SEEDS:
        judgement = f"ahead of {incumbent}, but {reward.seeds} seeds are no claim ({CLAIM_SEEDS} are)"
    elif reward.low > 0:
        judgement = f"better than {incumbent}"
    elif reward.high < 0 and reward.seeds < CLAIM_SEEDS:
        judgement = f"behind {incumbent}, but {reward.seeds} seeds are no claim ({CLAIM_SEEDS} are)"
    elif reward.high < 0:
        judgement = f"worse than {incumbent}"
    else:
        judgement = f"not shown to differ from {incumbent}"
    return (
        f"{core} is {judgement} in reward_ema: {reward.mean:+.4f} [{reward.low:+.4f}, {reward.high:+.4f}] over "
        f"{reward.seeds} seeds, at {throughput:.2f} times its throughput. "
        + (f"Promote {core}." if promote else f"Keep {incumbent}.")
    )


def _by_level(outcomes: Sequence[Outcome], name: str) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for outcome in outcomes:
        value = outcome.metrics.get(name)
        if outcome.status == "ok" and value is not None and math.isfinite(value):
            found.setdefault(outcome.level, {})[int(outcome.factors.get("seed", 0))] = value
    return found


def _ratio(a: dict[int, float], b: dict[int, float]) -> float | None:
    """Return the geometric mean over seeds of a / b; None without a pair."""
    logs = [math.log(a[seed] / b[seed]) for seed in a.keys() & b.keys() if a[seed] > 0 and b[seed] > 0]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _tick(value: bool) -> str:
    return "yes" if value else "no"
