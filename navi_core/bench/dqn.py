"""Double DQN on reference tasks by the ordinary run loop, seed by seed, beside Stable-Baselines3 on request."""

import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from navi_core.bench.report import Column, Log, Option, Report, Row, figure, report
from navi_core.bench.task_runs import run_task
from navi_core.bench.tasks import DQN_TARGETS, task_config
from navi_core.config import TrainConfig
from navi_core.errors import ConfigError
from navi_core.learn.run.records import Progress
from navi_core.learn.run.threads import torch_threads
from navi_core.presets import parse_assignments

_EPISODES = 20
"""Greedy episodes of an evaluation."""


def run_dqn(
    task: str,
    seeds: Sequence[int],
    *,
    against: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    until_solved: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Row]:
    """Learn a task with every seed.

    Args:
        task: Reference task.
        seeds: Seeds.
        against: `sb3`, on cart-pole and acrobot.
        changes: Settings that differ from the benchmark's.
        until_solved: End a run where the last 100 training episodes reach the target.
        progress: Called with a line about every `early_stopping.eval_interval` decisions.

    Yields:
        Rows with the keys:
        trainer: `navi`, or a peer.
        task: What was learned.
        seed: Its seed.
        steps: Decisions.
        solved_at: Decisions at which the last 100 training episodes first reached the target; None if they never did.
        evaluated_at: Decisions at which an evaluation first reached it; None if none did.
        recent: Mean return of the last 100 training episodes, exploration included.
        best: The highest value that this mean ever had; NaN for a peer.
        final: Mean return of the last evaluation; NaN for a peer.
        network: Hidden widths.
        batch: Decisions of a minibatch.
        gradient_steps: Gradient steps.
        steps_per_cpu_second: Decisions per second of processor time.
        cpu_seconds: Processor time.

    Raises:
        ConfigError: A peer is unknown, not installed, or does not know the task.
    """
    for peer in against:
        if peer != "sb3":
            raise ConfigError(f"no peer {peer!r}; allowed: sb3")
        if importlib.util.find_spec("stable_baselines3") is None or task not in _GYM:
            raise ConfigError(f"sb3 is not installed (pip install stable-baselines3), or does not know {task}")
    target = DQN_TARGETS.get(task, math.inf)
    for seed in seeds:
        config = task_config("dqn", task, seed, changes)
        show = partial(_show, f"{task}, seed {seed}", config.early_stopping.eval_interval, progress)
        run = run_task(config, target=target, until_solved=until_solved, episodes=_EPISODES, curve=True, progress=show)
        yield {
            "trainer": "navi",
            "task": task,
            "seed": seed,
            "steps": run.steps,
            "solved_at": run.solved_at,
            "evaluated_at": next((s for s, r in zip(run.evaluated, run.returns) if r >= target), None),
            "recent": run.recent,
            "best": run.best,
            "final": run.returns[-1] if run.returns else math.nan,
            "network": run.network,
            "batch": config.replay.batch_size,
            "gradient_steps": int(run.metrics["gradient_steps"]),
            "steps_per_cpu_second": run.steps / run.cpu_seconds,
            "cpu_seconds": run.cpu_seconds,
        }
        if against:
            yield _sb3(task, seed, config)


def _show(name: str, interval: int, log: Callable[[str], None] | None, at: Progress) -> None:
    """Log the return of an update, once every `interval` decisions."""
    if log is not None and at.steps % interval < at.steps // at.updates:
        log(f"{name}: {at.steps:,} steps, return {at.metrics.get('episode_return', math.nan):.1f}")


_GYM = {"cart_pole": "CartPole-v1", "acrobot": "Acrobot-v1"}


def _sb3(task: str, seed: int, config: TrainConfig) -> Row:
    """Learn with Stable-Baselines3's DQN and the settings that its users publish for cart-pole."""
    import gymnasium
    from stable_baselines3 import DQN

    steps = config.total_steps or 0
    with torch_threads(1):
        model = DQN(
            "MlpPolicy", gymnasium.make(_GYM[task]), learning_rate=2.3e-3, batch_size=64, buffer_size=100_000,
            learning_starts=1000, gamma=0.99, target_update_interval=10, train_freq=256, gradient_steps=128,
            exploration_fraction=0.16, exploration_final_eps=0.04, policy_kwargs={"net_arch": [256, 256]}, seed=seed,
            device="cpu", stats_window_size=100,
        )  # fmt: skip
        start = time.process_time()
        model.learn(steps)
    seconds = time.process_time() - start
    ended = [episode["r"] for episode in model.ep_info_buffer or ()]
    recent = sum(ended) / len(ended) if ended else math.nan
    return {
        "trainer": "sb3",
        "task": task,
        "seed": seed,
        "steps": steps,
        "solved_at": None,
        "evaluated_at": None,
        "recent": recent,
        "best": math.nan,
        "final": math.nan,
        "network": "256x256 relu",
        "batch": 64,
        "gradient_steps": model._n_updates,
        "steps_per_cpu_second": steps / seconds,
        "cpu_seconds": seconds,
    }


def dqn(
    task: Annotated[str, Option(help="cart_pole, acrobot, snake or lunar_lander.")] = "cart_pole",
    seeds: Annotated[int, Option(min=1, help="So many seeds learn.")] = 5,
    first_seed: Annotated[int, Option(min=0, help="The first of them.")] = 0,
    until_solved: Annotated[bool, Option(flag="--until-solved", help="End a run where it is solved.")] = False,
    against: Annotated[str, Option(help="Peers in the same run: sb3.", metavar="NAMES")] = "",
    assign: Annotated[
        list[str] | None, Option(flag="--set", help="A setting, such as dqn.n_step=1; may be repeated.")
    ] = None,
    *,
    log: Log,
) -> Report:
    """Learn a task by Double DQN with several seeds."""
    peers = tuple(filter(None, (name.strip() for name in against.split(","))))
    runs = run_dqn(
        task, range(first_seed, first_seed + seeds), against=peers, changes=parse_assignments(assign or ()),
        until_solved=until_solved, progress=log,
    )  # fmt: skip
    rows = list(runs)
    columns: dict[str, Column] = {
        "trainer": figure("trainer"),
        "network": figure("network"),
        "seed": figure("seed"),
        "steps": figure("steps"),
        "solved at": figure("solved_at"),
        "last 100": figure("recent", ".1f"),
        "best 100": figure("best", ".1f"),
        "evaluated at": figure("evaluated_at"),
        "evaluation": figure("final", ".1f"),
        "batch": figure("batch"),
        "gradients": figure("gradient_steps"),
        "steps/CPU-s": figure("steps_per_cpu_second", ",.0f"),
        "CPU [s]": figure("cpu_seconds", ".1f"),
    }
    caption = None
    if task in DQN_TARGETS:
        navi = [row for row in rows if row["trainer"] == "navi"]
        solved, seen = (sum(row[name] is not None for row in navi) for name in ("solved_at", "evaluated_at"))
        caption = f"{DQN_TARGETS[task]:g} reached by the last 100 training episodes in {solved} of {len(navi)} seeds"
        caption += f", by an evaluation in {seen}"
    return report(f"Double DQN, {task}", rows, columns, words=2, caption=caption)
