"""Does drift smoothing help, and does stopping early save anything? Cells of (task, variant, seed), compared in pairs.

A cell is a whole run; its curve is kept in a file named by the hash of its settings, so that what is done is not done
again. No controller ends a run: it is asked afterwards, evaluation by evaluation, and what its stop would have saved
and cost is read from the same run, which is therefore its own counterfactual.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from navi_core.bench.cases import Row
from navi_core.bench.dqn import DQN_TARGETS, dqn_config
from navi_core.bench.timing import torch_threads
from navi_core.config import EarlyStopConfig, config_hash
from navi_core.config.fast_dqn import FastDQNConfig
from navi_core.learn.run_watch import sign_changes
from navi_core.record.durable import write_durably

__all__ = [
    "SmoothingCell",
    "SmoothingRow",
    "ablation_cells",
    "cell_config",
    "measures",
    "run_cells",
    "smoothing_cells",
    "smoothing_table",
    "verdict",
]

NOISE = {"cart_pole": 1.0, "acrobot": 1.0}
"""Deviation of the reward noise of a task's noisy variant; its rewards are ±1 a decision."""
_RANDOM = {"cart_pole": 22.0, "acrobot": -500.0}
"""Mean return of random actions."""
_SMOOTHED = {"enabled": True}
_ALPHAS, _DIMS = (0.05, 0.15, 0.5), (16, 64, 256)
_INTERVAL = 2500
STOPPING = EarlyStopConfig(eval_interval=_INTERVAL, patience=8, window=8, trend=True, slump=0.05, reward_ema_beta=0.3)
"""Settings of the controller that the runs are judged by."""
MEASURES = ("time_to_target", "auc", "final", "td_variance", "oscillation")
"""What variants are compared by."""
_LOWER_IS_BETTER = {"time_to_target", "td_variance", "oscillation"}


@dataclass(frozen=True)
class SmoothingCell:
    """One run.

    Attributes:
        task: Reference task.
        noisy: Whether its rewards are noisy.
        variant: `baseline`, `smoothing`, or an ablation's name.
        seed: Seed.
        alpha_step: Step size at the start; 0 is the baseline.
        latent_dim: d, the width of the last hidden layer.
    """

    task: str
    noisy: bool
    variant: str
    seed: int
    alpha_step: float = 0.0
    latent_dim: int = 64

    @property
    def name(self) -> str:
        """The task as tables call it."""
        return self.task + (", noisy" if self.noisy else "")


@dataclass(frozen=True)
class SmoothingRow(Row):
    """A variant of a task over its seeds; pairs of numbers are the ends of 95 % intervals.

    Attributes:
        task: Task.
        variant: Variant.
        seeds: Runs.
        means: Mean of every measure.
        intervals: Its interval over seeds.
        paired: Mean difference to the baseline of the same seeds, and its interval; empty for the baseline.
        smoothed_share: Share of updates that were smoothed.
        mean_step: Mean ‖Δh‖.
        clipped_share: Share of rows clipped by the trust region.
        stopped: Share of runs that the controller would have ended.
        saved: Mean share of steps that this would have saved, 0 for runs that it lets end.
        kept: Least share of the final return, above that of a random policy, that was there at the stop; both are means
            of four evaluations.
    """

    task: str
    variant: str
    seeds: int
    means: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    paired: dict[str, tuple[float, float, float]]
    smoothed_share: float
    mean_step: float
    clipped_share: float
    stopped: float
    saved: float
    kept: float


def smoothing_cells(tasks: Sequence[str], seeds: Sequence[int]) -> list[SmoothingCell]:
    """Return baseline and smoothing of every task, with and without noise; seed by seed, so that pairs end together."""
    return [
        SmoothingCell(task, noisy, variant, seed, alpha)
        for seed in seeds
        for task in tasks
        for noisy in (False, True)
        for variant, alpha in (("baseline", 0.0), ("smoothing", 0.15))
    ]


def ablation_cells(task: str, seeds: Sequence[int], *, noisy: bool = True) -> list[SmoothingCell]:
    """Return alpha_step × d, each d with a baseline of its own, for it sets the network's width."""
    return [
        SmoothingCell(task, noisy, f"alpha_step {alpha:g}, d {dim}", seed, alpha, dim)
        for seed in seeds
        for dim in _DIMS
        for alpha in (0.0, *_ALPHAS)
    ]


def cell_config(cell: SmoothingCell, changes: dict[str, Any] | None = None) -> FastDQNConfig:
    """Return the settings of a cell."""
    smoothing: dict[str, Any] = {"latent_dim": cell.latent_dim}
    if cell.alpha_step:
        smoothing |= _SMOOTHED | {"alpha_step_init": cell.alpha_step}
    values: dict[str, Any] = {
        "hidden": [64, cell.latent_dim],
        "reward_noise": NOISE[cell.task] if cell.noisy else 0.0,
        "kernel_smoothing": smoothing,
        "early_stopping": {"eval_interval": _INTERVAL},
    }
    return dqn_config(cell.task, cell.seed, values | (changes or {}))


def run_cells(
    cells: Sequence[SmoothingCell],
    folder: Path,
    *,
    minutes: float = math.inf,
    progress: Callable[[str, int, int], None] | None = None,
    changes: dict[str, Any] | None = None,
) -> dict[SmoothingCell, dict[str, Any]]:
    """Run what is not done yet and return every curve that there is.

    Args:
        cells: What is wanted.
        folder: Where curves are kept.
        minutes: No cell is begun after so many; the same call goes on later.
        progress: Called with a line, cells done and cells in all.
        changes: Settings that differ in all cells.
    """
    from navi_core.learn.fast.dqn import FastDQN

    folder.mkdir(parents=True, exist_ok=True)
    until, curves = time.monotonic() + 60.0 * minutes, {}
    for cell in cells:
        config = cell_config(cell, changes)
        path = folder / f"{config_hash(config)}.json"
        found = _kept(path)
        if found is None and time.monotonic() < until:
            with torch_threads(1):
                found = asdict(FastDQN(config).train())
            write_durably(path, json.dumps({"cell": asdict(cell), "curve": found}).encode())
        if found is not None:
            curves[cell] = found
        if progress is not None:
            progress(f"{cell.name}, {cell.variant}, seed {cell.seed}", len(curves), len(cells))
    return curves


def _kept(path: Path) -> dict[str, Any] | None:
    """Return the curve of a finished cell; a file that holds none is written anew."""
    try:
        data = json.loads(path.read_text())
        return data["curve"] if isinstance(data["curve"]["returns"], list) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def measures(curve: dict[str, Any], task: str, total_steps: int) -> dict[str, float]:
    """Return what a curve is compared by.

    `time_to_target` is the first evaluation at the target, and the run's length where there was none; `auc` the mean
    return of all evaluations; `td_variance` the mean variance since learning began; `oscillation` the share of
    evaluations at which the slope of the smoothed return changes its sign, changes below 1 % of its range left out.
    """
    steps, returns = curve["steps"], curve["returns"]
    solved = next((s for s, r in zip(steps, returns) if r >= DQN_TARGETS[task]), total_steps)
    smoothed, average = [], returns[0]
    for value in returns:
        average = 0.6 * average + 0.4 * value
        smoothed.append(average)
    variances = [v for v in curve["td_variance"] if v == v]
    return {
        "time_to_target": float(solved),
        "auc": float(np.mean(returns)),
        "final": float(np.mean(returns[-4:])),
        "td_variance": float(np.mean(variances)) if variances else math.nan,
        "oscillation": sign_changes(smoothed),
    }


def smoothing_table(
    curves: dict[SmoothingCell, dict[str, Any]],
    total_steps: int = 100_000,
    stopping: EarlyStopConfig = STOPPING,
) -> list[SmoothingRow]:
    """Return a row for every task and variant, with differences to the baseline of the same seeds and width.

    Args:
        curves: Of the cells that are done.
        total_steps: Decisions of a run.
        stopping: The controller that is asked.
    """
    from navi_core.learn.fast.dqn import DQNCurve

    groups: dict[tuple[str, str], list[SmoothingCell]] = {}
    for cell in curves:
        groups.setdefault((cell.name, cell.variant), []).append(cell)
    scored = {cell: measures(curve, cell.task, total_steps) for cell, curve in curves.items()}
    bases = {(c.name, c.latent_dim, c.seed): scored[c] for c in curves if c.alpha_step == 0.0}
    rows = []
    for (task, variant), cells in groups.items():
        kept = [curves[cell] for cell in cells]
        paired: dict[str, tuple[float, float, float]] = {}
        pairs = [(scored[c], bases.get((c.name, c.latent_dim, c.seed))) for c in cells if c.alpha_step]
        for name in MEASURES:
            off = [mine[name] - base[name] for mine, base in pairs if base is not None]
            if off:
                paired[name] = (float(np.mean(off)), *_interval(off))
        stops = [
            _stop(curve, cell.task, total_steps, DQNCurve(**curve).stop_step(stopping))
            for cell, curve in zip(cells, kept)
        ]
        share, step, clipped = (
            float(np.mean([curve[name] for curve in kept])) for name in ("smoothed_share", "mean_step", "clipped_share")
        )
        saved = [part for part, _ in stops]
        rows.append(
            SmoothingRow(
                task=task,
                variant=variant,
                seeds=len(cells),
                means={name: float(np.mean([scored[c][name] for c in cells])) for name in MEASURES},
                intervals={name: _interval([scored[c][name] for c in cells]) for name in MEASURES},
                paired=paired,
                smoothed_share=share,
                mean_step=step,
                clipped_share=clipped,
                stopped=float(np.mean([part > 0 for part in saved])),
                saved=float(np.mean(saved)),
                kept=min(gain for _, gain in stops),
            )
        )
    return rows


def verdict(row: SmoothingRow) -> str:
    """Say in words what a variant changed: a measure is better or worse where the paired interval excludes 0."""
    if not row.paired:
        return ""
    if row.seeds < 5:
        return f"{row.seeds} seeds: no claim"
    said = []
    for name, (_, low, high) in row.paired.items():
        if low > 0 or high < 0:
            good = (high < 0) == (name in _LOWER_IS_BETTER)
            said.append(f"{name} {'better' if good else 'worse'}")
    return ", ".join(said) or "no difference shown"


def _stop(curve: dict[str, Any], task: str, total_steps: int, at: int | None) -> tuple[float, float]:
    """Return the share of steps that a stop saves, and of the final gain that was there at the stop."""
    if at is None:
        return 0.0, 1.0
    returns, seen, floor = curve["returns"], curve["steps"].index(at) + 1, _RANDOM[task]
    here, final = (float(np.mean(part[-4:])) - floor for part in (returns[:seen], returns))
    return 1.0 - at / total_steps, 1.0 if final <= 0 else here / final


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95 % interval of a mean; the mean twice where there is one value."""
    from scipy import stats

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, mean
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean - half, mean + half
