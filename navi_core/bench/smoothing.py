"""Runs with and without drift smoothing: cells of (task, variant, seed), which `smoothing_table.py` compares.

A cell is a whole run; its curve is kept in a file named by the hash of its settings, so that what is done is not done
again.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from navi_core.bench.task_runs import TaskRun, run_task
from navi_core.bench.tasks import DQN_TARGETS, task_config
from navi_core.config import EarlyStopConfig, TrainConfig, config_hash
from navi_core.learn.run.early_stopping import EarlyStopController
from navi_core.presets import merge
from navi_core.record.durable import write_durably

NOISE = {"cart_pole": 1.0, "acrobot": 1.0, "lunar_lander": 5.0}
"""Deviation of the reward noise of a task's noisy variant, that of its rewards: ±1 a decision in the first two."""
_EPISODES = 20
"""Greedy episodes of an evaluation."""
_ALPHAS, _DIMS = (0.05, 0.15, 0.5), (16, 64, 256)
_UNBOUND = (4.0, 64, 100.0)
"""alpha_step, d and τ of half the way to the neighbours' mean: α_step · d^−½ = ½, and no bound that is ever met."""
_HORIZON = {"cart_pole": (100_000, 2500), "acrobot": (60_000, 2500), "lunar_lander": (32_000, 2000)}
"""Decisions of a run, and between its evaluations: cart-pole and acrobot are solved by then, LunarLander is begun."""
_ABLATION = 25_000
"""Decisions of a run of the ablation: cart-pole's first quarter, in which α_step has hardly fallen."""
TARGETS = DQN_TARGETS | {"lunar_lander": -50.0}
"""Mean return of an evaluation that counts as reached: on LunarLander, to stay in the air near the pad."""


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
        tau: Bound of a target's step.
        steps: Decisions; None is the task's horizon.
    """

    task: str
    noisy: bool
    variant: str
    seed: int
    alpha_step: float = 0.0
    latent_dim: int = 64
    tau: float = 0.1
    steps: int | None = None

    @property
    def name(self) -> str:
        """The task as tables call it."""
        return self.task + (", noisy" if self.noisy else "")


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
    """Return alpha_step × d, each d with a baseline of its own, for it sets the network's width; and one unbounded."""
    alpha, dim, tau = _UNBOUND
    return [
        cell
        for seed in seeds
        for cell in (
            *(
                SmoothingCell(task, noisy, f"alpha_step {alpha:g}, d {dim}", seed, alpha, dim, steps=_ABLATION)
                for dim in _DIMS
                for alpha in (0.0, *_ALPHAS)
            ),
            SmoothingCell(task, noisy, f"alpha_step {alpha:g}, d {dim}, τ {tau:g}", seed, alpha, dim, tau, _ABLATION),
        )
    ]


def cell_config(cell: SmoothingCell, changes: dict[str, Any] | None = None) -> TrainConfig:
    """Return the settings of a cell."""
    smoothing: dict[str, Any] = {"latent_dim": cell.latent_dim}
    if cell.alpha_step:
        smoothing |= {"enabled": True, "alpha_step_init": cell.alpha_step, "trust_region_tau": cell.tau}
    steps, interval = _HORIZON[cell.task]
    values: dict[str, Any] = {
        "total_steps": steps if cell.steps is None else cell.steps,
        "policy": {"q_hidden": cell.latent_dim},
        "kernel_smoothing": smoothing,
        "early_stopping": {"eval_interval": interval},
    }
    return task_config("dqn", cell.task, cell.seed, merge(values, changes or {}))


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
    folder.mkdir(parents=True, exist_ok=True)
    until, curves = time.monotonic() + 60.0 * minutes, {}
    for cell in cells:
        config = cell_config(cell, changes)
        noise = NOISE[cell.task] if cell.noisy else 0.0
        path = folder / f"{config_hash(config)}-{noise:g}.json"
        found = _kept(path)
        if found is None and time.monotonic() < until:
            found = curve_of(run_task(config, curve=True, episodes=_EPISODES, reward_noise=noise))
            write_durably(path, json.dumps({"cell": asdict(cell), "curve": found}).encode())
        if found is not None:
            curves[cell] = found
        if progress is not None:
            progress(f"{cell.name}, {cell.variant}, seed {cell.seed}", len(curves), len(cells))
    return curves


def curve_of(run: TaskRun) -> dict[str, Any]:
    """Return the evaluations of a run as plain data: decisions, returns and diagnostics of each, and the smoother's."""

    def values(name: str) -> list[float]:
        return [signs.get(name, math.nan) for signs in run.signs]

    def mean(name: str) -> float:
        known = [value for value in values(name) if value == value]
        return sum(known) / len(known) if known else 0.0

    return {
        "steps": run.evaluated,
        "returns": run.returns,
        "td_mean": values("td_mean"),
        "td_variance": values("td_var"),
        "local_structure": values("local_structure"),
        "total_steps": run.steps,
        "smoothed_share": mean("smoothed_share"),
        "mean_step": mean("smoothing_step"),
        "clipped_share": mean("smoothing_clipped"),
    }


def stop_step(curve: Mapping[str, Any], config: EarlyStopConfig) -> int | None:
    """Return the decisions at which early stopping would have ended a run; None if never."""
    controller = EarlyStopController(config)
    names = ("td_mean", "td_variance", "local_structure", "returns")
    for steps, *seen in zip(curve["steps"], *(curve[name] for name in names)):
        if not any(map(math.isnan, seen)) and controller.update(*seen).should_stop:
            return int(steps)
    return None


def _kept(path: Path) -> dict[str, Any] | None:
    """Return the curve of a finished cell; a file that holds none is written anew."""
    try:
        data = json.loads(path.read_text())
        return data["curve"] if isinstance(data["curve"]["returns"], list) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
