"""Training runs on reference tasks through the ordinary run loop: clocks, episodes and evaluations of each."""

import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from navi_core.bench.report import Row
from navi_core.config import TrainConfig
from navi_core.learn import train
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.run.checkpoints import checkpoints_in
from navi_core.learn.run.records import Progress
from navi_core.models import load_checkpoint
from navi_core.policy import NavigationPolicy, build_policy
from navi_core.record import MetricLog, RunDirectory
from navi_core.tasks import reference_task
from navi_core.world.interface import Environment, StepBatch

_WINDOW = 100
"""Training episodes whose mean return is compared with the target; whole rollouts, so there may be more."""
_OTHER_STARTS = 1_000_003
"""Added to the seed of evaluations."""


@dataclass
class TaskRun:
    """What a training run on a task measured.

    Attributes:
        steps: Decisions.
        solved_at: Decisions at which the last 100 training episodes first reached the target; None if never.
        recent: Mean return of the last 100 training episodes; NaN before there are 100.
        best: Its highest value.
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
    """Progress callback of a run: reads clocks, episodes and metrics of every update.

    Args:
        run: Written.
        target: Mean return that counts as solved.
        evaluate: Returns the mean return of the present weights; None makes no evaluations on the way.
        interval: Decisions between evaluations.
    """

    def __init__(self, run: TaskRun, target: float, evaluate: Callable[[], float] | None, interval: int) -> None:
        self.run, self._target, self._evaluate, self._interval = run, target, evaluate, interval
        self._start = self._cpu = time.process_time()
        self._first: tuple[int, float, float] | None = None
        self._episodes: deque[tuple[float, int]] = deque()
        self._updates: list[dict[str, float]] = []

    def __call__(self, at: Progress) -> None:
        now, wall, run = time.process_time(), time.perf_counter(), self.run
        before, run.steps = run.steps, at.steps
        run.cpu_seconds = now - self._start
        if self._first is None:
            self._first = (at.steps, now, wall)
        run.timed = (at.steps - self._first[0], now - self._first[1], wall - self._first[2])
        ended = int(at.metrics["episodes"] - run.metrics.get("episodes", 0.0))
        run.metrics |= at.metrics
        self._updates.append(at.metrics)
        if ended:
            self._episodes.append((at.metrics["episode_return"], ended))
        count = sum(n for _, n in self._episodes)
        while self._episodes and count - self._episodes[0][1] >= _WINDOW:
            count -= self._episodes.popleft()[1]
        if count >= _WINDOW:
            run.recent = sum(mean * n for mean, n in self._episodes) / count
            run.best = max(run.recent, run.best) if run.best == run.best else run.recent
            if run.solved_at is None and run.recent >= self._target:
                run.solved_at, run.cpu_seconds_to_solve = at.steps, run.cpu_seconds
        if self._evaluate is not None and before // self._interval != at.steps // self._interval:
            run.evaluated.append(at.steps)
            run.returns.append(self._evaluate())
            run.signs.append(_means(self._updates))
            self._updates = []
            self._start += time.process_time() - now


@contextmanager
def temporary_run(config: TrainConfig, partition: str) -> Iterator[tuple[RunDirectory, MetricLog]]:
    """Yield a run directory and its metric log, in a folder that is removed at the end.

    Args:
        config: Of the run.
        partition: Its name.
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
    progress: Callable[[Progress], None] = lambda _: None,
) -> TaskRun:
    """Train on a reference task as `navi train` does, in a temporary home.

    Args:
        config: The run.
        target: Mean return of the last 100 training episodes that counts as solved.
        until_solved: End the run there.
        episodes: Greedy episodes of an evaluation, from starts of another seed.
        curve: Evaluate every `early_stopping.eval_interval` decisions, which are then checkpointed, too.
        reward_noise: Deviation of normal noise on the rewards that are learned from.
        workers: Processes of the run; only the first one's `TaskRun` is evaluated.
        progress: Called after every update.

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

        def evaluate() -> float:
            assert directory is not None
            latest = checkpoints_in(directory.checkpoints)[-1]
            return _mean_return(config, env, latest, episodes, len(run.evaluated))

        meter = _Meter(run, target, evaluate if curve else None, interval)

        def observe(at: Progress) -> None:
            meter(at)
            progress(at)

        stop = lambda: until_solved and run.solved_at is not None  # noqa: E731
        result = train(config, directory, env=env, log=log, stop=stop, progress=observe, workers=workers)
        if workers.first:
            run.final_return = _mean_return(config, env, result.checkpoint, episodes, 0)
    return run


def solve(config: TrainConfig, trainer: str, target: float) -> Row:
    """Learn a task; return a row of `cartpole.run_solve`.

    Args:
        config: A run of ppo or grpo.
        trainer: Its name in the row.
        target: Mean return of the last 100 training episodes that counts as solved.
    """
    run, rule = run_task(config, target=target), config.rule
    if config.algorithm == "ppo":
        epochs, minibatch = rule.epochs, rule.minibatch * rule.bptt
    else:
        epochs, minibatch = rule.update_epochs, rule.groups_per_step * rule.group_size * rule.horizon
    return {
        "trainer": trainer,
        "task": config.task,
        "network": run.network,
        "epochs": epochs,
        "batch": config.actors * rule.rollout,
        "minibatch": minibatch,
        "seed": config.seed,
        "solved_at": run.solved_at,
        "cpu_seconds_to_solve": run.cpu_seconds_to_solve,
        "steps": run.steps,
        "cpu_seconds": run.cpu_seconds,
        "training_return": run.recent,
        "final_return": run.final_return,
    }


class _NoisyRewards:
    """A task whose rewards are noisy; episode returns are not."""

    def __init__(self, env: Environment, deviation: float, seed: int) -> None:
        self._env, self._deviation = env, deviation
        self._random = torch.Generator().manual_seed(seed + 7)

    def __getattr__(self, name: str) -> object:
        return getattr(self._env, name)

    def step(self, actions: Tensor) -> StepBatch:
        """Advance every row by one decision, actions (B, axes)."""
        batch = self._env.step(actions)
        noise = torch.randn(batch.reward.shape, generator=self._random)
        return type(batch)(**(vars(batch) | {"reward": batch.reward + self._deviation * noise}))


def network_name(config: TrainConfig, policy: NavigationPolicy) -> str:
    """Return the widths of a memoryless network and the number of its weights."""
    width, count = config.policy.width, sum(p.numel() for p in policy.parameters())
    return f"{width}x{width} tanh, heads, {count:,} weights"


def _task(config: TrainConfig, rows: int, seed: int, *, first_row: int = 0) -> Environment:
    options: dict[str, Any] = dict(config.task_options)
    return reference_task(str(config.task), rows, seed, first_row=first_row, **options)


def _mean_return(config: TrainConfig, env: Environment, checkpoint: Path, episodes: int, number: int) -> float:
    """Return what the most probable actions earn in one episode of each of as many rows, the mean.

    Args:
        config: The run.
        env: Its environment.
        checkpoint: Its weights.
        episodes: How many.
        number: Of the evaluation; sets the starts, which training does not see.
    """
    policy = build_policy(config.policy, 0, env.spaces)
    policy.load_state_dict(load_checkpoint(checkpoint).policy_state)
    return float(first_returns(policy, _task(config, episodes, config.seed + _OTHER_STARTS * (number + 1))).mean())


@torch.no_grad()
def first_returns(policy: NavigationPolicy, env: Environment) -> Tensor:
    """Return what the most probable actions earn in the first episode of every row, (B,).

    One episode a row: were more flown in a fixed time, short ones would count more often than long ones.
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
