"""Benchmark of drift smoothing and early stopping: training runs with and without, compared on the same seeds.

A cell (task, variant, seed) is a complete run. Its curve is cached in a file named by the hash of its settings. Early
stopping does not end a run: the controller is replayed on the curve, so savings and losses of a stop are read from the
same run, its own counterfactual.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from navi_core.bench.report import Option, Progress, Report, Row, Table, known_names
from navi_core.bench.task_runs import DQN_TARGETS, TaskRun, run_task, task_config
from navi_core.config import EarlyStopConfig, TrainConfig, config_hash
from navi_core.evaluate.statistics import student_interval
from navi_core.learn.run.early_stopping import EarlyStopController
from navi_core.learn.run.monitor import sign_changes
from navi_core.presets import merge
from navi_core.record import navi_home
from navi_core.record.durable import write_durably

NOISE = {"cart_pole": 1.0, "acrobot": 1.0, "lunar_lander": 5.0}
"""Standard deviation of the reward noise in a task's noisy variant, equal to that of its rewards."""
_EPISODES = 20
"""Number of greedy episodes per evaluation."""
_ALPHAS, _DIMS = (0.05, 0.15, 0.5), (16, 64, 256)
_UNBOUND = (4.0, 64, 100.0)
"""Unbounded case (alpha_step, d, τ): half the way to the neighbours' mean (α_step · d^−½ = ½), τ never binds."""
_HORIZON = {"cart_pole": (100_000, 2500), "acrobot": (60_000, 2500), "lunar_lander": (32_000, 2000)}
"""Task → decisions of a run, decisions between evaluations; LunarLander is not solved in that time."""
_ABLATION = 25_000
"""Length of an ablation run [decisions]: cart-pole's first quarter, in which α_step has hardly decayed."""
TARGETS = DQN_TARGETS | {"lunar_lander": -50.0}
"""Target mean return of an evaluation; on LunarLander, that of hovering near the pad."""


@dataclass(frozen=True)
class SmoothingCell:
    """Configuration of one training run of the drift-smoothing benchmark: task, variant, seed.

    Attributes:
        task: Reference task.
        noisy: Whether rewards are noisy.
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
        """Display name of the task, with its noise."""
        return self.task + (", noisy" if self.noisy else "")


def smoothing_cells(tasks: Sequence[str], seeds: Sequence[int]) -> list[SmoothingCell]:
    """Build the run grid: baseline and drift smoothing for every task, with and without noise, ordered by seed."""
    return [
        SmoothingCell(task, noisy, variant, seed, alpha)
        for seed in seeds
        for task in tasks
        for noisy in (False, True)
        for variant, alpha in (("baseline", 0.0), ("smoothing", 0.15))
    ]


def ablation_cells(task: str, seeds: Sequence[int], *, noisy: bool = True) -> list[SmoothingCell]:
    """Build the ablation grid alpha_step × d, with a baseline for each d (the network's width), and one unbounded."""
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
    """Build the training configuration of one benchmark run (cell)."""
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
    progress: Callable[[str, int, int], None] = lambda *_: None,
    changes: dict[str, Any] | None = None,
) -> dict[SmoothingCell, dict[str, Any]]:
    """Run the pending training runs (task × variant × seed) and return all available learning curves.

    Args:
        cells: Cells to train.
        folder: Folder of the learning curves.
        minutes: Time after which no cell is started; the same call resumes later [min].
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
        progress(f"{cell.name}, {cell.variant}, seed {cell.seed}", len(curves), len(cells))
    return curves


def curve_of(run: TaskRun) -> dict[str, Any]:
    """Extract the learning curve of a run as JSON data: steps, returns, TD diagnostics, smoother statistics."""

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
    """Replay early stopping on a curve: return the step at which it would end the run; None if never."""
    controller = EarlyStopController(config)
    names = ("td_mean", "td_variance", "local_structure", "returns")
    for steps, *seen in zip(curve["steps"], *(curve[name] for name in names)):
        if not any(map(math.isnan, seen)) and controller.update(*seen).should_stop:
            return int(steps)
    return None


def _kept(path: Path) -> dict[str, Any] | None:
    """Load the learning curve of a finished run from its JSON file; None if the file is missing or invalid."""
    try:
        data = json.loads(path.read_text())
        return data["curve"] if isinstance(data["curve"]["returns"], list) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


_RANDOM = {"cart_pole": 22.0, "acrobot": -500.0, "lunar_lander": -190.0}
"""Mean return of a random policy by task."""
STOPPING = EarlyStopConfig(patience=8, window=8, trend=True, slump=0.05, rise=0.05, reward_ema_beta=0.3)
"""Early-stopping settings that are replayed on the runs."""
STOPPED = "smoothing + stopping"
"""Name of the variant: runs of `smoothing`, truncated where early stopping would end them."""
MEASURES = ("time_to_target", "auc", "final", "td_variance", "oscillation")
"""Metrics that variants are compared by."""
_LOWER_IS_BETTER = {"time_to_target", "td_variance", "oscillation"}


def measures(curve: Mapping[str, Any], task: str, stop: int | None = None) -> dict[str, float]:
    """Compute the comparison metrics of a learning curve.

    `time_to_target`: decisions at the first evaluation that reaches the target, or the run's length. `final`: mean
    return of the last four evaluations. `auc`: mean return of all, where a stopped run continues with its `final`.
    `td_variance`: mean variance of TD errors since learning began. `oscillation`: fraction of evaluations at which the
    slope of the smoothed return changes its sign, ignoring changes below 1 % of its range.

    Args:
        curve: Learning curve from `curve_of`.
        task: Reference task.
        stop: Decisions at which the run was stopped; None uses the whole curve.
    """
    steps, seen = curve["steps"], len(curve["steps"]) if stop is None else curve["steps"].index(stop) + 1
    returns = curve["returns"][:seen]
    solved = next((s for s, r in zip(steps, returns) if r >= TARGETS[task]), curve["total_steps"])
    final = float(np.mean(returns[-4:]))
    smoothed, average = [], returns[0]
    for value in returns:
        average = 0.6 * average + 0.4 * value
        smoothed.append(average)
    variances = [v for v in curve["td_variance"][:seen] if v == v]
    return {
        "time_to_target": float(solved),
        "auc": (sum(returns) + final * (len(steps) - seen)) / len(steps),
        "final": final,
        "td_variance": float(np.mean(variances)) if variances else math.nan,
        "oscillation": sign_changes(smoothed),
    }


def smoothing_table(curves: Mapping[SmoothingCell, dict[str, Any]], stopping: EarlyStopConfig = STOPPING) -> list[Row]:
    """Summarise every task and variant as a row, with paired differences to the baseline of the same seeds and width.

    Args:
        curves: Learning curves of the finished cells.
        stopping: Settings of the early-stopping controller.

    Returns:
        Rows with the keys:
        task: Task.
        variant: Variant.
        seeds: Runs.
        means: Mean of every measure.
        intervals: Its interval over seeds.
        paired: Mean difference to the baseline of the same seeds, and its interval; empty for the baseline.
        smoothed_share: Share of updates that were smoothed.
        mean_step: Mean ‖Δh‖.
        clipped_share: Share of rows clipped by the trust region.
        relative_step: Mean ‖Δh‖ in deviations of the temporal differences: near 0 nothing was done.
        stopped: Share of runs that the controller would have ended.
        saved: Mean share of steps that this would have saved, 0 for runs that it lets end.
        kept: Least share of the final return, above that of a random policy, that was there at the stop; both are
            means of four evaluations.
    """
    groups: dict[tuple[str, str], list[SmoothingCell]] = {}
    for cell in curves:
        groups.setdefault((cell.name, cell.variant), []).append(cell)
    stops = {cell: stop_step(curve, stopping) for cell, curve in curves.items()}
    whole = {cell: measures(curve, cell.task) for cell, curve in curves.items()}
    bases = {(c.name, c.latent_dim, c.seed): whole[c] for c in curves if c.alpha_step == 0.0}
    rows = []
    for (task, variant), cells in groups.items():
        rows.append(_row(task, variant, cells, curves, stops, whole, bases))
        if variant == "smoothing":
            cut = {cell: measures(curves[cell], cell.task, stops[cell]) for cell in cells}
            rows.append(_row(task, STOPPED, cells, curves, stops, cut, bases))
    return rows


def _row(
    task: str,
    variant: str,
    cells: Sequence[SmoothingCell],
    curves: Mapping[SmoothingCell, dict[str, Any]],
    stops: Mapping[SmoothingCell, int | None],
    scored: Mapping[SmoothingCell, dict[str, float]],
    bases: Mapping[tuple[str, int, int], dict[str, float]],
) -> Row:
    """Summarise some runs as a row: means, intervals, and paired differences to the baseline."""
    kept = [curves[cell] for cell in cells]
    paired: dict[str, tuple[float, float, float]] = {}
    pairs = [(scored[c], bases.get((c.name, c.latent_dim, c.seed))) for c in cells if c.alpha_step]
    for name in MEASURES:
        off = [mine[name] - base[name] for mine, base in pairs if base is not None]
        if off:
            paired[name] = (float(np.mean(off)), *_interval(off))
    ends = [_stop(curves[cell], cell.task, stops[cell]) for cell in cells]
    share, step, clipped = (
        float(np.mean([curve[name] for curve in kept])) for name in ("smoothed_share", "mean_step", "clipped_share")
    )
    deviation = float(np.mean([math.sqrt(scored[cell]["td_variance"]) for cell in cells]))
    return {
        "task": task,
        "variant": variant,
        "seeds": len(cells),
        "means": {name: float(np.mean([scored[c][name] for c in cells])) for name in MEASURES},
        "intervals": {name: _interval([scored[c][name] for c in cells]) for name in MEASURES},
        "paired": paired,
        "smoothed_share": share,
        "mean_step": step,
        "clipped_share": clipped,
        "relative_step": step / deviation if deviation > 0 else math.nan,
        "stopped": float(np.mean([part > 0 for part, _ in ends])),
        "saved": float(np.mean([part for part, _ in ends])),
        "kept": min(gain for _, gain in ends),
    }


def verdict(row: Row) -> str:
    """Return a sentence on the variant's effect: better or worse where the paired interval excludes 0."""
    if not row["paired"]:
        return ""
    if row["seeds"] < 5:
        return f"{row['seeds']} seeds: no claim"
    changes = []
    for name, (_, low, high) in row["paired"].items():
        if low > 0 or high < 0:
            good = (high < 0) == (name in _LOWER_IS_BETTER)
            changes.append(f"{name} {'better' if good else 'worse'}")
    return ", ".join(changes) or "no difference shown"


def _stop(curve: Mapping[str, Any], task: str, at: int | None) -> tuple[float, float]:
    """Return the fraction of steps that early stopping saves, and the fraction of the final gain reached by then."""
    if at is None:
        return 0.0, 1.0
    floor = _RANDOM[task]
    here, final = (measures(curve, task, stop)["final"] - floor for stop in (at, None))
    return 1.0 - at / curve["total_steps"], 1.0 if final <= 0 else here / final


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95 % confidence interval of a mean; the mean twice for a single value."""
    interval = student_interval({"": values})
    return (interval.low, interval.high) if len(values) > 1 else (interval.mean, interval.mean)


def smoothing_report(rows: Sequence[Row], done: str) -> list[Table]:
    """Build the report's tables: returns, and the statistics of smoothing and early stopping."""

    def interval(row: Row, name: str) -> str:
        low, high = row["intervals"][name]
        return f"{row['means'][name]:,.4g} [{low:,.4g}, {high:,.4g}]"

    def effect(row: Row) -> list[str]:
        relative = f"{row['mean_step']:.2g} ({row['relative_step']:.1%})"
        stopping = (f"{share:.0%}" for share in (row["stopped"], row["saved"], row["kept"]))
        return [f"{row['smoothed_share']:.0%}", relative, f"{row['clipped_share']:.1%}", *stopping, verdict(row)]

    return [
        Table(
            f"Double DQN with and without drift smoothing ({done}); mean and 95 % interval over seeds",
            ("task", "variant", "seeds", *(name.replace("_", " ") for name in MEASURES)),
            [[r["task"], r["variant"], str(r["seeds"]), *(interval(r, name) for name in MEASURES)] for r in rows],
            words=2,
        ),
        Table(
            "Drift smoothing, its change against the baseline of the same seeds, and early stopping",
            ("task", "variant", "smoothed", "mean ‖Δh‖", "clipped", "stopped", "steps saved", "gain kept", "verdict"),
            [[r["task"], r["variant"], *effect(r)] for r in rows],
            words=2,
            caption="in brackets ‖Δh‖ in deviations of the temporal differences; gain kept: least share, over seeds, "
            "of the final return above random that was there at the stop",
        ),
    ]


def smoothing(
    task: Annotated[list[str] | None, Option(help="cart_pole, acrobot or lunar_lander.")] = None,
    seeds: Annotated[int, Option(min=1, help="Number of seeds.")] = 5,
    first_seed: Annotated[int, Option(min=0, help="First seed; the stopping rule was chosen on 0 … 4.")] = 10,
    ablation: Annotated[bool, Option(flag="--ablation", help="alpha_step × d on noisy cart-pole instead.")] = False,
    minutes: Annotated[float, Option(min=0, help="Begin no cell after this time (min); 0 only reports.")] = 1e9,
    out: Annotated[Path | None, Option(help="Folder of cells; by default bench/smoothing of the home.")] = None,
    *,
    progress: Progress,
) -> Report:
    """Benchmark drift smoothing: train the missing cells and report the comparison."""
    tasks = known_names("task", task or NOISE, NOISE)
    wanted = range(first_seed, first_seed + seeds)
    cells = ablation_cells("cart_pole", wanted) if ablation else smoothing_cells(tasks, wanted)
    folder = out if out is not None else navi_home() / "bench" / "smoothing"
    curves = run_cells(cells, folder, minutes=minutes, progress=progress)
    rows, done = smoothing_table(curves), f"{len(curves)} of {len(cells)} cells"
    document = {"rows": [row | {"verdict": verdict(row)} for row in rows], "done": done}
    return Report(document, smoothing_report(rows, done))
