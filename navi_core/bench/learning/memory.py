"""Benchmark of recurrent memory: reference tasks that cannot be solved without memory.

Three ways to handle the recurrent state are compared. `carried` is Navi's: the state is stored at the start of every
training sequence and reset where an episode begins. `memoryless` resets it at every decision. `zero_state` acts with
memory but starts every training sequence from zeros, a common mistake: the updated policy then differs from the acting
one, which the ratio before the first gradient step shows.
"""

import copy
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from navi_core.bench.report import Log, Option, Report, Row, figure, known_names, report
from navi_core.bench.task_runs import first_returns
from navi_core.config import TrainConfig, parse_config
from navi_core.config.registry import CORE_NAMES
from navi_core.learn import Collector, PPOLearner, Rollout
from navi_core.learn.run.process import torch_threads
from navi_core.policy import RewardShaper, build_policy
from navi_core.policy.navigation_policy import ActOutput, EvaluateOutput, NavigationPolicy, seeded
from navi_core.tasks import reference_task

Handling = Literal["carried", "memoryless", "zero_state"]

_WINDOW = 10
_JUDGED = 128
_OTHER_STARTS = 1_000_003


@dataclass(frozen=True)
class MemoryCase:
    """Run configuration of the memory benchmark: task, temporal (recurrent) core, handling of its state, settings.

    Attributes:
        task: Reference task.
        core: Temporal core.
        steps: Decisions summed over rows.
        target: Return that counts as solved.
        handling: Handling of the recurrent state: carried, memoryless or zero_state.
        options: Options of the task.
        ppo: Settings that differ from the common ones.
        policy: Settings of the network that differ from the common ones.
        rows: Number of environment rows.
    """

    task: str
    core: str
    steps: int
    target: float
    handling: Handling = "carried"
    options: tuple[tuple[str, Any], ...] = ()
    ppo: tuple[tuple[str, Any], ...] = ()
    policy: tuple[tuple[str, Any], ...] = ()
    rows: int = 64

    @property
    def name(self) -> str:
        """Name of the case: task, options, core, handling of the state."""
        options = "".join(f",{key}={value}" for key, value in self.options)
        return f"{self.task}{options}/{self.core}/{self.handling}"


_REPEAT = 0.9
_CART_POLE = (
    ("gamma", 0.98),
    ("gae_lambda", 0.8),
    ("entropy_coefficient", 0.0),
    ("rollout", 32),
    ("minibatch", 16),
    ("epochs", 8),
    ("target_kl", 0.03),
    ("schedules", {"learning_rate": {"end": 1e-4}}),
)
_PENDULUM = (
    ("gamma", 0.95),
    ("entropy_coefficient", 0.0),
    ("rollout", 100),
    ("bptt", 25),
    ("epochs", 8),
    ("target_kl", 0.03),
    ("schedules", {"learning_rate": {"end": 5e-5}}),
)

# What a card is worth is known at once and no action changes what comes: nothing is to be discounted. Sequences
# are at least twice as long as the lag; where the first card is asked for, one is the whole episode.
_NOW = (("gamma", 0.0), ("gae_lambda", 0.0), ("minibatch", 16))


def _deep(task: str, chunk: int, width: int, **options: int) -> tuple[MemoryCase, ...]:
    """Build the run configurations of a task with two-layer recurrent cores, Mamba-2 and GRU."""
    ppo = (*_NOW, ("rollout", chunk), ("bptt", chunk))
    policy = (("core_layers", 2), ("width", width))
    return tuple(
        MemoryCase(task, core, 3_000_000, 0.8, options=tuple(options.items()), ppo=ppo, policy=policy)
        for core in ("mamba2", "gru")
    )


MEMORY_CASES: dict[str, tuple[MemoryCase, ...]] = {
    "repeat_previous": (
        MemoryCase("repeat_previous", "mamba2", 300_000, _REPEAT),
        MemoryCase("repeat_previous", "gru", 1_000_000, _REPEAT),
        MemoryCase("repeat_previous", "mamba2", 300_000, _REPEAT, "memoryless"),
        MemoryCase("repeat_previous", "mamba2", 300_000, _REPEAT, "zero_state"),
    ),
    "lag_7": _deep("repeat_previous", 32, 128, k=8),
    "lag_15": _deep("repeat_previous", 51, 128, k=16),
    "repeat_first": _deep("repeat_first", 51, 64),
    "cart_pole": (MemoryCase("cart_pole", "gru", 200_000, 475.0, ppo=_CART_POLE),),
    "pendulum": (MemoryCase("pendulum", "gru", 600_000, -250.0, ppo=_PENDULUM),),
}
"""Groups of memory cases by name."""


def memory_cases(names: Sequence[str] = (), cores: Sequence[str] = ()) -> list[MemoryCase]:
    """Return the run configurations of the named groups (default: all), restricted to the named cores, if any.

    A user-defined core runs the GRU's cases.

    Raises:
        ConfigError: There is no core of that name.
    """
    chosen = [case for name in (names or MEMORY_CASES) for case in MEMORY_CASES[name]]
    custom = [core for core in cores if CORE_NAMES.checked(core) not in CORE_NAMES.built_in]
    built_in = [case for case in chosen if not cores or case.core in cores]
    return built_in + [replace(case, core=core) for core in custom for case in chosen if case.core == "gru"]


def run_memory(
    cases: Sequence[MemoryCase],
    seeds: Sequence[int],
    progress: Callable[[str], None] = lambda _: None,
    *,
    until_solved: bool = True,
) -> Iterator[Row]:
    """Run the recurrent-memory benchmark: train a policy on each task and seed; yield one row per run.

    Args:
        cases: Cases to train.
        seeds: Seeds.
        progress: Called with a line about every tenth update.
        until_solved: End a run where it first reaches the target, not with its last decision.

    Yields:
        Rows with the keys:
        case: Name of the case.
        seed: Training seed.
        steps: Decisions made; a run may end when the target is reached.
        solved_at: Decisions after which the mean return of 10 updates first reached the target; None if never.
        best: Highest mean return of 10 updates.
        final: Mean return of the last 10 updates in which episodes ended.
        episodes: Episodes that ended in these.
        kept: Mean return of 128 episodes from other starts, the final policy's most probable action taken.
        first_ratio: Largest |ratio − 1| before the first gradient step, the largest over all updates.
        exact_ratio: |ratio − 1| of the final policy in double precision, step by step against in sequences, the
            largest of the last rollout: what there is besides rounding. None where the state is not carried.
        cpu_seconds: Process CPU time.
    """
    for case, seed in itertools.product(cases, seeds):
        yield _learn(case, seed, progress, until_solved)


def case_config(case: MemoryCase, seed: int) -> TrainConfig:
    """Build a benchmark run's training configuration: no shaping, no auxiliary input, sequences of 16 decisions."""
    return parse_config(
        TrainConfig,
        {
            "seed": seed,
            "actors": case.rows,
            "threads": 1,
            "device": "cpu",
            "total_steps": case.steps,
            "policy": {"core": case.core, "aux": "off"} | dict(case.policy),
            "shaper": {"existential_tax": 0.0, "rnd_start": 0.0, "rnd_end": 0.0, "loop_coefficient": 0.0},
            "ppo": {
                "learning_rate": 1e-3,
                "rollout": 64,
                "bptt": 16,
                "minibatch": 32,
                "epochs": 4,
                "target_kl": None,
            }
            | dict(case.ppo),
        },
    )


class _Memoryless(NavigationPolicy):
    """Policy whose recurrent state is reset at every decision, when acting and in updates."""

    def act(
        self, obs: Tensor, aux: Tensor, state: tuple[Tensor, ...], reset: Tensor, noise: Tensor | None
    ) -> ActOutput:
        return super().act(obs, aux, state, torch.ones_like(reset), noise)

    def value(self, obs: Tensor, aux: Tensor, state: tuple[Tensor, ...]) -> Tensor:
        return super().value(obs, aux, tuple(torch.zeros_like(x) for x in state))

    def evaluate(
        self, obs: Tensor, aux: Tensor, state0: tuple[Tensor, ...], reset: Tensor, actions: Tensor
    ) -> EvaluateOutput:
        return super().evaluate(obs, aux, state0, torch.ones_like(reset), actions)


def _learn(case: MemoryCase, seed: int, progress: Callable[[str], None], until_solved: bool) -> Row:
    config, cpu, rows = case_config(case, seed), torch.device("cpu"), case.rows
    with torch_threads(1):
        env = reference_task(case.task, rows, seed, **dict(case.options))
        if case.handling == "memoryless":
            with seeded(seed):
                policy: NavigationPolicy = _Memoryless(config.policy, env.spaces)
        else:
            policy = build_policy(config.policy, seed, env.spaces)
        shaper = RewardShaper(config.shaper, rows, config.policy.width, seed)
        collector = Collector(env, policy, shaper, config, device=cpu)
        learner = PPOLearner(policy, shaper, config, cpu)
        rollout = collector.new_rollout(config.ppo.rollout, config.ppo.bptt)
        start, recent = time.process_time(), deque[tuple[float, int]](maxlen=_WINDOW)
        best, mean, ratio, index = -math.inf, -math.inf, 0.0, 0
        solved: int | None = None
        while collector.decisions * rows < case.steps and not (until_solved and solved is not None):
            began = collector.decisions * rows
            stats = collector.collect(rollout)
            assert stats is not None
            if case.handling == "zero_state":
                for slab in rollout.chunk_state:
                    slab.zero_()
            update = learner.update(rollout, index=index, steps=began)
            index += 1
            ratio = max(ratio, update.metrics["parity_ratio"])
            if stats.episodes:
                recent.append((stats.episode_return, stats.episodes))
            mean = sum(value for value, _ in recent) / len(recent) if recent else -math.inf
            if len(recent) == _WINDOW:
                best = max(best, mean)
                if solved is None and mean >= case.target:
                    solved = collector.decisions * rows
            if index % 10 == 0:
                progress(f"{case.name} seed {seed}: {collector.decisions * rows:,} steps, return {mean:.3f}")
        seconds = time.process_time() - start
        return {
            "case": case.name,
            "seed": seed,
            "steps": collector.decisions * rows,
            "solved_at": solved,
            "best": best,
            "final": mean,
            "episodes": sum(count for _, count in recent),
            "kept": float(final_returns(policy, case, seed).mean()),
            "first_ratio": ratio,
            "exact_ratio": exact_ratio(policy, rollout) if case.handling == "carried" else None,
            "cpu_seconds": seconds,
        }


@torch.no_grad()
def exact_ratio(policy: NavigationPolicy, rollout: Rollout) -> float:
    """Return the largest |importance ratio − 1| of acting and updating on a rollout's actions, in float64.

    In single precision, rounding makes both differ, more so for a confident policy. A difference that remains in double
    precision is an error: a state that was not carried, or a missed reset.

    Args:
        policy: Policy to check; it is copied, not changed.
        rollout: Rollout whose sequences are evaluated again from their initial states.
    """
    twin = copy.deepcopy(policy).double()
    batch = rollout.minibatch(slice(0, rollout.sequences))
    obs, aux, actions = batch.obs.double(), batch.aux.double(), batch.actions.double()
    state = before = tuple(part.double() for part in batch.state)
    whole = twin.evaluate(obs, aux, before, batch.reset, actions).log_prob
    furthest = 0.0
    for t in range(obs.shape[1]):
        _, features, state = twin.step(obs[:, t], aux[:, t], state, batch.reset[:, t])
        log_prob = twin.heads.distribution(features).log_prob(actions[:, t])
        furthest = max(furthest, float(torch.expm1(whole[:, t] - log_prob).abs().max()))
    return furthest


def final_returns(policy: NavigationPolicy, case: MemoryCase, seed: int) -> Tensor:
    """Return the greedy returns of 128 episodes from starts (or decks) of another seed."""
    return first_returns(policy, reference_task(case.task, _JUDGED, seed + _OTHER_STARTS, **dict(case.options)))


def memory(
    group: Annotated[
        list[str] | None, Option(flag="--group", help="Group of runs; may be repeated. By default all.")
    ] = None,
    core: Annotated[
        list[str] | None, Option(flag="--core", help="mamba2, gru or user-defined; may be repeated.")
    ] = None,
    seeds: Annotated[int, Option(min=1, help="Seeds of every run.")] = 1,
    first_seed: Annotated[int, Option(min=0, help="First seed; the others follow.")] = 0,
    steps: Annotated[int | None, Option(min=1, help="Maximum of decisions; by default that of the group.")] = None,
    go_on: Annotated[bool, Option(flag="--go-on", help="Continue after the target was reached.")] = False,
    *,
    log: Log,
) -> Report:
    """Benchmark temporal (recurrent) cores on tasks that need a memory."""
    cases = memory_cases(known_names("group", group or (), MEMORY_CASES), core or ())
    if steps is not None:
        cases = [replace(case, steps=min(steps, case.steps)) for case in cases]
    done = run_memory(cases, range(first_seed, first_seed + seeds), log, until_solved=not go_on)
    return report(
        "memory: mean return of 10 updates",
        list(done),
        {
            "run": figure("case"),
            "seed": figure("seed"),
            "steps": figure("steps"),
            "solved at": figure("solved_at"),
            "best": figure("best", ".3f"),
            "final": figure("final", ".3f"),
            "episodes": figure("episodes"),
            "kept": figure("kept", ".3f"),
            "first ratio": figure("first_ratio", ".1e"),
            "in double": figure("exact_ratio", ".1e"),
            "CPU [s]": figure("cpu_seconds", ".0f"),
        },
        words=1,
    )
