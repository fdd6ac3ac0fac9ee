"""Double DQN on reference tasks by the fast path, seed by seed; and beside another trainer where it is importable."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from navi_core.bench.report import Column, Log, Option, Report, Row, figure, report
from navi_core.bench.tasks import task_name
from navi_core.config import parse_config
from navi_core.config.fast_dqn import FastDQNConfig
from navi_core.errors import ConfigError
from navi_core.learn.run.threads import torch_threads
from navi_core.presets import merge, parse_assignments

__all__ = ["DQN_TARGETS", "DQNRow", "dqn_config", "run_dqn"]

DQN_TARGETS = {"cart_pole": 475.0, "acrobot": -90.0, "snake": 5.0, "lunar_lander": 200.0}
"""Mean return of the last 100 training episodes that counts as solved; of snake, mean food."""

_COMMON: dict[str, Any] = {
    "rows": 16,
    "dqn": {
        "rollout": 16,
        "bptt": 16,
        "replay_ratio": 16.0,
        "learning_rate": 2e-3,
        "schedules": {"learning_rate": {"end": 2e-4}},
        "exploration": "shared",
        "epsilon_end": 0.01,
        "epsilon_decay_steps": 10_000,
        "polyak": 0.01,
        "n_step": 3,
        "huber": 20.0,
    },
    "replay": {"batch_size": 128},
}
_TASKS: dict[str, dict[str, Any]] = {
    # Ten rewards before the bootstrap and few random actions: the last 100 episodes of 500 decisions take half the run.
    "cart_pole": {
        "rows": 8,
        "dqn": {"n_step": 10, "epsilon_end": 0.001, "epsilon_decay_steps": 3000, "learning_starts": 500},
    },
    # Speeds in units of their limits make states so alike that nothing new is tried before the first success.
    "acrobot": {"scale_observations": False, "dqn": {"epsilon_end": 0.02, "epsilon_decay_steps": 20_000, "huber": 5.0}},
    "snake": {
        "total_steps": 1_000_000,
        "rows": 64,
        "dqn": {"replay_ratio": 2.0, "epsilon_decay_steps": 100_000, "huber": 1.0},
        "replay": {"batch_size": 256},
    },
    # A crash is worth -100 and comes at once: unless the loss is linear there, falling is all that is learned from.
    "lunar_lander": {
        "total_steps": 120_000,
        "hidden": (128, 64),
        "dqn": {"replay_ratio": 32.0, "epsilon_end": 0.1, "huber": 1.0},
        "early_stopping": {"eval_interval": 4000},
        "evaluation_episodes": 8,
    },
}


@dataclass(frozen=True)
class DQNRow(Row):
    """How a run went.

    Attributes:
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
    """

    trainer: str
    task: str
    seed: int
    steps: int
    solved_at: int | None
    evaluated_at: int | None
    recent: float
    best: float
    final: float
    network: str
    batch: int
    gradient_steps: int
    steps_per_cpu_second: float
    cpu_seconds: float


def dqn_config(task: str, seed: int = 0, changes: Mapping[str, Any] | None = None) -> FastDQNConfig:
    """Return the benchmark's settings of a task.

    Args:
        task: `cart_pole`, `acrobot`, `snake` or `lunar_lander`; another reference task gets those of cart-pole.
        seed: Seed.
        changes: Nested values that win.

    Raises:
        ConfigError: A setting is unknown or impossible.
    """
    values = merge(_COMMON, _TASKS.get(task, {}))
    return parse_config(FastDQNConfig, merge(values, dict(changes or {})) | {"task": task_name(task), "seed": seed})


def run_dqn(
    task: str,
    seeds: Sequence[int],
    *,
    against: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    until_solved: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Iterator[DQNRow]:
    """Learn a task with every seed.

    Args:
        task: Reference task.
        seeds: Seeds.
        against: `sb3`, on cart-pole and acrobot.
        changes: Settings that differ from the benchmark's.
        until_solved: End a run where the last 100 training episodes reach the target.
        progress: Called with a line after every evaluation.

    Raises:
        ConfigError: A peer is unknown, not installed, or does not know the task.
    """
    from navi_core.learn.fast.dqn import FastDQN

    for peer in against:
        if peer != "sb3":
            raise ConfigError(f"no peer {peer!r}; allowed: sb3")
        if importlib.util.find_spec("stable_baselines3") is None or task not in _GYM:
            raise ConfigError(f"sb3 is not installed (pip install stable-baselines3), or does not know {task}")
    for seed in seeds:
        config = dqn_config(task, seed, changes)
        target = DQN_TARGETS.get(task, math.inf)

        def tell(steps: int, mean: float, seed: int = seed) -> None:
            if progress is not None:
                progress(f"{task}, seed {seed}: {steps:,} steps, evaluation {mean:.1f}")

        with torch_threads(1):
            curve = FastDQN(config).train(tell, target=target, until_solved=until_solved)
        evaluated = next((s for s, r in zip(curve.steps, curve.returns) if r >= target), None)
        yield DQNRow(
            "navi", task, seed, curve.total_steps, curve.solved_step, evaluated, curve.last_recent, curve.best_recent,
            curve.returns[-1] if curve.returns else math.nan,
            "x".join(map(str, config.hidden)) + " tanh", config.replay.batch_size, curve.gradient_steps,
            curve.total_steps / curve.cpu_seconds, curve.cpu_seconds,
        )  # fmt: skip
        if against:
            yield _sb3(task, seed, config)


_GYM = {"cart_pole": "CartPole-v1", "acrobot": "Acrobot-v1"}


def _sb3(task: str, seed: int, config: FastDQNConfig) -> DQNRow:
    """Learn with Stable-Baselines3's DQN and the settings that its users publish for cart-pole."""
    import gymnasium
    from stable_baselines3 import DQN

    with torch_threads(1):
        model = DQN(
            "MlpPolicy", gymnasium.make(_GYM[task]), learning_rate=2.3e-3, batch_size=64, buffer_size=100_000,
            learning_starts=1000, gamma=0.99, target_update_interval=10, train_freq=256, gradient_steps=128,
            exploration_fraction=0.16, exploration_final_eps=0.04, policy_kwargs={"net_arch": [256, 256]}, seed=seed,
            device="cpu", stats_window_size=100,
        )  # fmt: skip
        start = time.process_time()
        model.learn(config.total_steps)
    seconds = time.process_time() - start
    ended = [episode["r"] for episode in model.ep_info_buffer or ()]
    recent = sum(ended) / len(ended) if ended else math.nan
    return DQNRow(
        "sb3", task, seed, config.total_steps, None, None, recent, math.nan, math.nan, "256x256 relu", 64,
        model._n_updates, config.total_steps / seconds, seconds,
    )  # fmt: skip


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
    rows = [row.as_dict() for row in runs]
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
