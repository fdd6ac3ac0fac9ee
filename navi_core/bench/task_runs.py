"""Training runs on reference tasks for benchmarks: configurations, timing, episode returns, evaluations."""

import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navi_core.config import TrainConfig, parse_config
from navi_core.learn import train
from navi_core.learn.parallel import ALONE, Workers
from navi_core.models import load_checkpoint
from navi_core.policy import NavigationPolicy, build_policy
from navi_core.presets import merge
from navi_core.record import MetricLog, RunDirectory
from navi_core.record.events import CheckpointSaved, EventBus, UpdateMade
from navi_core.tasks import reference_task
from navi_core.world.interface import Environment, StepBatch

_WINDOW = 100
"""Minimum number of training episodes whose mean return is compared with the target."""
_OTHER_STARTS = 1_000_003
"""Offset of the evaluation's seed from the training seed."""


@dataclass
class TaskRun:
    """Measurements of one training run on a reference task: timing, learning curve, evaluations.

    Attributes:
        steps: Decisions.
        solved_at: Decisions at which the last 100 training episodes first reached the target; None if never.
        recent: Mean return of the last 100 training episodes; NaN before there are 100.
        best: Highest value of `recent`.
        cpu_seconds: Process CPU time of the training, evaluations excluded.
        cpu_seconds_to_solve: The same until `solved_at`.
        timed: Decisions, CPU seconds and wall seconds from the first update's end to the last's; compilation and the
            reading of caches lie before.
        evaluated: Decisions at each evaluation.
        returns: Mean return of its greedy episodes.
        signs: Metrics of the updates since the evaluation before, averaged, for each evaluation.
        metrics: Last value of every metric.
        final_return: Mean return of greedy episodes of the final weights.
        network: Widths and number of weights.
    """

    steps: int = 0
    solved_at: int | None = None
    recent: float = math.nan
    best: float = math.nan
    cpu_seconds: float = 0.0
    cpu_seconds_to_solve: float | None = None
    timed: tuple[int, float, float] = (0, 0.0, 0.0)
    evaluated: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    signs: list[dict[str, float]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    final_return: float = math.nan
    network: str = ""


class _Meter:
    """Subscriber to the updates of a training run: records timing, episode returns and metrics of every update.

    Args:
        run: Measurements, updated in place.
        target: Mean return that counts as solved.
        evaluate: Returns the mean return of a checkpoint; None disables evaluations during training.
        interval: Decisions between evaluations.
    """

    def __init__(self, run: TaskRun, target: float, evaluate: Callable[[Path], float] | None, interval: int) -> None:
        self.run, self._target, self._evaluate, self._interval = run, target, evaluate, interval
        self._start = self._cpu = time.process_time()
        self._first: tuple[int, float, float] | None = None
        self._episodes: deque[tuple[float, int]] = deque()
        self._updates: list[dict[str, float]] = []
        self._due = False

    def __call__(self, at: UpdateMade) -> None:
        now, wall, run = time.process_time(), time.perf_counter(), self.run
        before, run.steps = run.steps, at.step
        run.cpu_seconds = now - self._start
        if self._first is None:
            self._first = (at.step, now, wall)
        run.timed = (at.step - self._first[0], now - self._first[1], wall - self._first[2])
        ended = int(at.metrics["episodes"] - run.metrics.get("episodes", 0.0))
        run.metrics |= at.metrics
        self._updates.append(dict(at.metrics))
        if ended:
            self._episodes.append((at.metrics["episode_return"], ended))
        count = sum(n for _, n in self._episodes)
        while self._episodes and count - self._episodes[0][1] >= _WINDOW:
            count -= self._episodes.popleft()[1]
        if count >= _WINDOW:
            run.recent = sum(mean * n for mean, n in self._episodes) / count
            run.best = max(run.recent, run.best) if run.best == run.best else run.recent
            if run.solved_at is None and run.recent >= self._target:
                run.solved_at, run.cpu_seconds_to_solve = at.step, run.cpu_seconds
        self._due = before // self._interval != at.step // self._interval

    def judge(self, saved: CheckpointSaved) -> None:
        """Evaluate the checkpoint of an update that is due."""
        if self._evaluate is not None and self._due:
            run, self._due, began = self.run, False, time.process_time()
            run.evaluated.append(saved.step)
            run.returns.append(self._evaluate(Path(saved.path)))
            run.signs.append(_means(self._updates))
            self._updates = []
            self._start += time.process_time() - began


@contextmanager
def temporary_run(config: TrainConfig, partition: str) -> Iterator[tuple[RunDirectory, MetricLog]]:
    """Context manager for a run directory and its metric log in a temporary folder.

    Args:
        config: Configuration of the run.
        partition: Partition name of the run.
    """
    with tempfile.TemporaryDirectory(prefix="navi-bench-") as name:
        root = Path(name)
        with (
            RunDirectory.open(root / "runs", asset="bench", partition=partition, config=config) as run,
            run.metric_log(root / "outbox") as log,
        ):
            yield run, log


def run_task(
    config: TrainConfig,
    *,
    target: float = math.inf,
    until_solved: bool = False,
    episodes: int = 100,
    curve: bool = False,
    reward_noise: float = 0.0,
    workers: Workers = ALONE,
    events: EventBus | None = None,
) -> TaskRun:
    """Train on a reference task in a temporary home, through the loop of `navi train`; return the measurements.

    Args:
        config: Configuration of the run.
        target: Mean return of the last 100 training episodes that counts as solved.
        until_solved: Stop the run at the target.
        episodes: Greedy episodes of an evaluation, from starts of another seed.
        curve: Evaluate every `early_stopping.eval_interval` decisions, which are then checkpointed, too.
        reward_noise: Deviation of normal noise on the rewards that are learned from.
        workers: Processes of the run; only the first one's `TaskRun` is evaluated.
        events: Event bus, to which the run publishes.

    Raises:
        NaviError: As `navi_core.learn.train` does.
    """
    interval = config.early_stopping.eval_interval
    if curve:
        config = config.model_copy(update={"checkpoint_every": interval})
    first, rows = workers.rows(config.actors)
    env: Any = _task(config, rows, config.seed, first_row=first)
    if reward_noise:
        env = _NoisyRewards(env, reward_noise, config.seed)
    run = TaskRun(network=network_name(config, build_policy(config.policy, 0, env.spaces)))
    with ExitStack() as stack:
        directory = log = None
        if workers.first:
            directory, log = stack.enter_context(temporary_run(config, config.algorithm))

        def evaluate(file: Path) -> float:
            return _mean_return(config, env, file, episodes, len(run.evaluated))

        events = EventBus(strict=True) if events is None else events
        meter = _Meter(run, target, evaluate if curve else None, interval)
        events.subscribe(UpdateMade, meter)
        events.subscribe(CheckpointSaved, meter.judge)
        stop = lambda: until_solved and run.solved_at is not None  # noqa: E731
        result = train(config, directory, env=env, log=log, stop=stop, events=events, workers=workers)
        if workers.first:
            run.final_return = _mean_return(config, env, result.checkpoint, episodes, 0)
    return run


class _NoisyRewards:
    """Environment wrapper that adds Gaussian noise to rewards, but not to episode returns."""

    def __init__(self, env: Environment, deviation: float, seed: int) -> None:
        self._env, self._deviation = env, deviation
        self._random = torch.Generator().manual_seed(seed + 7)

    def __getattr__(self, name: str) -> object:
        return getattr(self._env, name)

    def step(self, actions: Tensor) -> StepBatch:
        """Step the environment with actions (B, axes), and add noise to the rewards."""
        batch = self._env.step(actions)
        noise = torch.randn(batch.reward.shape, generator=self._random)
        return type(batch)(**(vars(batch) | {"reward": batch.reward + self._deviation * noise}))


def network_name(config: TrainConfig, policy: NavigationPolicy) -> str:
    """Describe a network by its widths, core and number of weights."""
    width, count = config.policy.width, sum(p.numel() for p in policy.parameters())
    core = "" if config.policy.core == "none" else f"{config.policy.core}, "
    return f"{width}x{width} tanh, {core}heads, {count:,} weights"


def _task(config: TrainConfig, rows: int, seed: int, *, first_row: int = 0) -> Environment:
    options: dict[str, Any] = dict(config.task_options)
    return reference_task(str(config.task), rows, seed, first_row=first_row, **options)


def _mean_return(config: TrainConfig, env: Environment, checkpoint: Path, episodes: int, number: int) -> float:
    """Return the mean greedy return of a checkpoint, over one episode from each of `episodes` starts.

    Args:
        config: Configuration of the run.
        env: Environment that defines the spaces.
        checkpoint: Checkpoint of the weights.
        episodes: Number of episodes.
        number: Number of the evaluation; determines the starts, which training does not use.
    """
    policy = build_policy(config.policy, 0, env.spaces)
    policy.load_state_dict(load_checkpoint(checkpoint).policy_state)
    return float(first_returns(policy, _task(config, episodes, config.seed + _OTHER_STARTS * (number + 1))).mean())


@torch.no_grad()
def first_returns(policy: NavigationPolicy, env: Environment) -> Tensor:
    """Return the greedy policy's return in the first episode of every row, (B,).

    One episode per row: in a fixed time, short episodes would be over-represented.
    """
    rows = env.num_envs
    obs, state = env.reset(), policy.initial_state(rows)
    aux, reset = torch.zeros(rows, 3), torch.ones(rows, dtype=torch.bool)
    returns, over = torch.zeros(rows), torch.zeros(rows, dtype=torch.bool)
    while not over.all():
        decision = policy.act(obs, aux, state, reset, None)
        step = env.step(decision.action)
        obs, state, reset = step.obs, decision.state, step.terminated | step.truncated
        returns = torch.where(reset & ~over, step.info["episode_return"], returns)
        over |= reset
    return returns


def _means(updates: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for metrics in updates for name in metrics)
    found = {name: [m[name] for m in updates if name in m] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}


_NAMES = {"lunar_lander": "gymnasium:LunarLander-v3", "cart_pole_masked": "cart_pole"}
PPO_TARGETS = {"cart_pole": 475.0, "cart_pole_masked": 475.0, "acrobot": -85.0, "lunar_lander": 220.0}
"""Target mean return of 100 episodes at which PPO counts as having solved the task."""
DQN_TARGETS = {"cart_pole": 475.0, "acrobot": -90.0, "snake": 5.0, "lunar_lander": 200.0}
"""Target mean return of the last 100 training episodes at which DQN counts as having solved the task; snake: food."""

_COMMON: dict[str, Any] = {
    "threads": 1,
    "device": "cpu",
    "checkpoint_every": 100_000,
    "policy": {"core": "none", "aux": "off", "width": 64},
    "shaper": {"existential_tax": 0.0, "rnd_start": 0.0, "rnd_end": 0.0, "loop_coefficient": 0.0},
}
_ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {
        "actors": 64,
        "total_steps": 200_000,
        "ppo": {
            "rollout": 32,
            "bptt": 1,
            "minibatch": 256,
            "epochs": 10,
            "learning_rate": 1e-3,
            "schedules": {"learning_rate": {"end": 1e-4}},
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "entropy_coefficient": 0.0,
            "target_kl": None,
        },
    },
    "grpo": {
        "actors": 64,
        "total_steps": 400_000,
        "grpo": {
            "rollout": 128,
            "bptt": 1,
            "horizon": 64,
            "group_size": 64,
            "normalize_group": "mean_std",
            "learning_rate": 3e-3,
            "ent_coef": 0.0,
        },
    },
    "dqn": {
        "actors": 16,
        "total_steps": 100_000,
        "early_stopping": {"eval_interval": 2500},
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
    },
}
_TASKS: dict[tuple[str, str], dict[str, Any]] = {
    # Velocities are hidden, so a memory has to find them.
    ("ppo", "cart_pole_masked"): {
        "total_steps": 600_000,
        "policy": {"core": "mingru"},
        "ppo": {"bptt": 32, "minibatch": 8, "epochs": 2},
    },
    ("ppo", "acrobot"): {
        "total_steps": 995_328,
        "actors": 32,
        "ppo": {
            "rollout": 128,
            "epochs": 4,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "schedules": {"learning_rate": {"end": 1e-5}},
            "entropy_coefficient": 0.001,
        },
    },
    # Discount, λ and the entropy's order as rl-baselines3-zoo has them; its batches are four times as large.
    ("ppo", "lunar_lander"): {
        "total_steps": 499_712,
        "actors": 16,
        "ppo": {
            "rollout": 256,
            "epochs": 6,
            "minibatch": 128,
            "schedules": {"learning_rate": {"end": 5e-5}},
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "entropy_coefficient": 0.005,
        },
    },
    # Ten rewards before the bootstrap and few random actions: the last 100 episodes of 500 decisions take half the run.
    ("dqn", "cart_pole"): {
        "actors": 8,
        "dqn": {"n_step": 10, "epsilon_end": 0.001, "epsilon_decay_steps": 3000, "learning_starts": 500},
    },
    ("dqn", "acrobot"): {"dqn": {"epsilon_end": 0.02, "epsilon_decay_steps": 20_000, "huber": 5.0}},
    ("dqn", "snake"): {
        "total_steps": 1_000_000,
        "actors": 64,
        "dqn": {"replay_ratio": 2.0, "epsilon_decay_steps": 100_000, "huber": 1.0},
        "replay": {"batch_size": 256},
    },
    # A crash is worth -100 and comes at once: unless the loss is linear there, falling is all that is learned from.
    ("dqn", "lunar_lander"): {
        "total_steps": 120_000,
        "early_stopping": {"eval_interval": 4000},
        "dqn": {"replay_ratio": 32.0, "epsilon_end": 0.1, "huber": 1.0},
    },
}


def task_config(algorithm: str, task: str, seed: int = 0, changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """Build the training configuration of a reference task; a task without settings of its own gets cart-pole's.

    Args:
        algorithm: `ppo`, `grpo` or `dqn`.
        task: Reference task, or `lunar_lander` for Gymnasium's.
        seed: Seed.
        changes: Nested settings that win.

    Raises:
        ConfigError: A setting is unknown or impossible.
    """
    fixed: dict[str, Any] = {"algorithm": algorithm, "task": _NAMES.get(task, task), "seed": seed}
    if task == "cart_pole":
        fixed["task_options"] = {"masked": False}
    values = merge(merge(_COMMON, _ALGORITHMS[algorithm]), merge(_TASKS.get((algorithm, task), {}), fixed))
    return parse_config(TrainConfig, merge(values, dict(changes or {})))
