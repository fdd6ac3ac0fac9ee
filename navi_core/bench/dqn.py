"""Benchmark of Double DQN on reference tasks, optionally against Stable-Baselines3, and of Ape-X on cart-pole.

The Ape-X part measures learning with separate actors and replay shards, the rate of each stage, and the effect of
killed processes.
"""

import importlib.util
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Annotated, Any

from navi_core.bench.report import Log, Option, Report, Row, comma_names, figure, known_names, report
from navi_core.bench.task_runs import DQN_TARGETS, run_task, task_config, temporary_run
from navi_core.config import TrainConfig
from navi_core.errors import ConfigError
from navi_core.learn.run.process import torch_threads
from navi_core.presets import merge, parse_assignments
from navi_core.record.events import EventBus, UpdateMade
from navi_core.scale.launch import RayCluster

_EPISODES = 20
"""Number of greedy episodes per evaluation."""


# More than 60 lines: one measurement, its arguments and its row.
def run_dqn(
    task: str,
    seeds: Sequence[int],
    *,
    against: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    until_solved: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Train Double DQN on a task with every seed; yield one row per run.

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
        task: Reference task.
        seed: Training seed.
        steps: Decisions.
        solved_at: Decisions at which the last 100 training episodes first reached the target; None if they never did.
        evaluated_at: Decisions at which an evaluation first reached it; None if none did.
        recent: Mean return of the last 100 training episodes, exploration included.
        best: Highest value of this mean; NaN for a peer.
        final: Mean return of the last evaluation; NaN for a peer.
        network: Hidden widths.
        batch: Decisions of a minibatch.
        gradient_steps: Gradient steps.
        steps_per_cpu_second: Decisions per second of processor time.
        cpu_seconds: Processor time.

    Raises:
        ConfigError: A peer is unknown, not installed, or does not know the task.
    """
    if known_names("peer", against, ("sb3",)) and (
        importlib.util.find_spec("stable_baselines3") is None or task not in _GYM
    ):
        raise ConfigError(f"sb3 is not installed (pip install stable-baselines3), or does not know {task}")
    target = DQN_TARGETS.get(task, math.inf)
    for seed in seeds:
        config = task_config("dqn", task, seed, changes)

        def show(at: UpdateMade, seed: int = seed, interval: int = config.early_stopping.eval_interval) -> None:
            """Log the episode return, once every `interval` decisions."""
            if at.step % interval < at.step // at.updates:
                earned = at.metrics.get("episode_return", math.nan)
                progress(f"{task}, seed {seed}: {at.step:,} steps, return {earned:.1f}")

        events = EventBus({UpdateMade: show}, strict=True)
        run = run_task(config, target=target, until_solved=until_solved, episodes=_EPISODES, curve=True, events=events)
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


_GYM = {"cart_pole": "CartPole-v1", "acrobot": "Acrobot-v1"}


def _sb3(task: str, seed: int, config: TrainConfig) -> Row:
    """Train Stable-Baselines3's DQN with the published hyperparameters for cart-pole."""
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
    recent = _mean([episode["r"] for episode in model.ep_info_buffer or ()])
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
    seeds: Annotated[int, Option(min=1, help="Number of seeds.")] = 5,
    first_seed: Annotated[int, Option(min=0, help="First seed.")] = 0,
    until_solved: Annotated[bool, Option(flag="--until-solved", help="End a run once it is solved.")] = False,
    against: Annotated[str, Option(help="Peers in the same run: sb3.", metavar="NAMES")] = "",
    assign: Annotated[
        list[str] | None, Option(flag="--set", help="A setting, such as dqn.n_step=1; may be repeated.")
    ] = None,
    *,
    log: Log,
) -> Report:
    """Benchmark Double DQN on a reference task with several seeds."""
    runs = run_dqn(
        task, range(first_seed, first_seed + seeds), against=comma_names(against),
        changes=parse_assignments(assign or ()), until_solved=until_solved, progress=log,
    )  # fmt: skip
    rows = list(runs)
    caption = None
    if task in DQN_TARGETS:
        navi = [row for row in rows if row["trainer"] == "navi"]
        solved, seen = (sum(row[name] is not None for row in navi) for name in ("solved_at", "evaluated_at"))
        caption = f"{DQN_TARGETS[task]:g} reached by the last 100 training episodes in {solved} of {len(navi)} seeds"
        caption += f", by an evaluation in {seen}"
    return report(
        f"Double DQN, {task}",
        rows,
        {
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
        },
        words=2,
        caption=caption,
    )


_RATES = ("actor_steps_per_s", "shard_adds_per_s", "shard_samples_per_s", "learner_updates_per_s", "sync_age_s")


def apex_config(seed: int = 0, actors: int = 2, changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """Build the Ape-X configuration: the settings of `navi bench dqn` on cart-pole, with actors and two replay shards.

    Args:
        seed: Seed.
        actors: Actors; the eight rows are shared out over them.
        changes: Nested values that win.

    Raises:
        ConfigError: A setting is unknown or impossible.
    """
    shares = {"actors_per_gpu": actors, "replay_shards": 2, "param_sync_interval": 16, "ahead": 512}
    return task_config("dqn", "cart_pole", seed, merge({"distributed": shares}, dict(changes or {})))


# More than 60 lines: one measurement, its arguments and its row.
def run_apex_bench(
    seeds: Sequence[int],
    *,
    actors: int = 2,
    in_process: bool = False,
    kill: bool = False,
    changes: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Train Ape-X on cart-pole with every seed; yield one row per run.

    Args:
        seeds: Seeds.
        actors: Number of actor processes.
        in_process: Run without Ray, in one process.
        kill: SIGKILL an actor after a third of the run, and kill a shard after two thirds; on Ray alone.
        changes: Settings that differ.
        progress: Called with a line about every second.

    Yields:
        Rows with the keys:
        place: `ray`, or `in process`.
        seed: Training seed.
        actors: Number of actor processes.
        shards: Number of replay shards.
        steps: Decisions learned from.
        solved_at: Decisions at which the last 100 training episodes were first seen at 475; None if they never were.
        recent: Their mean return at the end.
        best: Its highest value, as of a row a second.
        gradient_steps: Gradient steps.
        actor_steps_per_s: Decisions counted [1/s].
        shard_adds_per_s: Items taken by the shards [1/s].
        shard_samples_per_s: Items given by them [1/s].
        learner_updates_per_s: Gradient steps [1/s].
        sync_age_s: Age of the weights that a counted rollout was flown with [s].
        actors_replaced: Actors that died.
        shards_replaced: Shards that died.
        seconds: Wall time.
        learner_cpu_seconds: Processor time of the learner's process.

    Raises:
        ConfigError: A setting is impossible, or Ray is not installed.
        RunError: Actors or shards died too often.
    """
    from navi_core.scale.launch import launch_apex

    for seed in seeds:
        config = apex_config(seed, actors, changes)
        seen: list[UpdateMade] = []
        places: list[Any] = []

        def observe(at: UpdateMade, seed: int = seed, seen: list[Any] = seen, places: list[Any] = places) -> None:
            seen.append(at)
            if kill and not in_process:
                _kill_parts(at, places[0])
            progress(f"seed {seed}: {at.line()}  last 100 {at.metrics.get('return_100', math.nan):.1f}")

        events = EventBus({UpdateMade: observe}, strict=True)
        start, used = time.perf_counter(), time.process_time()
        with temporary_run(config, f"apex-{seed}") as (run, log):
            result = launch_apex(config, run, in_process=in_process, events=events, log=log, made=places.append)
        later = [at.metrics for at in seen[len(seen) // 2 :]] or [result.metrics]
        hundreds = [(at.step, at.metrics["return_100"]) for at in seen if "return_100" in at.metrics]
        target = DQN_TARGETS["cart_pole"]
        recent = result.metrics.get("return_100", math.nan)
        yield {
            "place": "in process" if in_process else "ray",
            "seed": seed,
            "actors": actors,
            "shards": config.distributed.replay_shards,
            "steps": result.steps,
            "solved_at": next((steps for steps, value in hundreds if value >= target), None),
            "recent": recent,
            "best": max([value for _, value in hundreds] or [recent]),
            "gradient_steps": int(result.metrics["gradient_steps"]),
            **{name: _mean([m[name] for m in later if name in m]) for name in _RATES},
            "actors_replaced": places[0].replaced.actors,
            "shards_replaced": places[0].replaced.shards,
            "seconds": time.perf_counter() - start,
            "learner_cpu_seconds": time.process_time() - used,
        }


def _kill_parts(at: UpdateMade, here: RayCluster) -> None:
    """Inject faults: kill an actor in the second third of a run, and a replay shard in the last, once each."""
    share = at.step / (at.total_steps or at.step)
    if share > 1 / 3 and not here.replaced.actors:
        os.kill(here.pids()[0], signal.SIGKILL)
    if share > 2 / 3 and not here.replaced.shards:
        here.kill_shard(here.ports[-1].number)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def apex(
    seeds: Annotated[int, Option(min=1, help="Number of seeds.")] = 1,
    first_seed: Annotated[int, Option(min=0, help="First seed.")] = 0,
    actors: Annotated[int, Option(min=1, help="Actor processes.")] = 2,
    in_process: Annotated[bool, Option(flag="--in-process", help="Run in one process, without Ray.")] = False,
    kill: Annotated[bool, Option(flag="--kill", help="Kill an actor and a shard during the run.")] = False,
    assign: Annotated[
        list[str] | None, Option(flag="--set", help="A setting, such as total_steps=50000; may be repeated.")
    ] = None,
    *,
    log: Log,
) -> Report:
    """Benchmark Ape-X on cart-pole with several seeds."""
    runs = run_apex_bench(
        range(first_seed, first_seed + seeds), actors=actors, in_process=in_process, kill=kill,
        changes=parse_assignments(assign or ()), progress=log,
    )  # fmt: skip
    # Ray reports a dead process on standard output, which belongs to the result.
    with redirect_stdout(sys.stderr):
        rows = list(runs)
    caption = f"{actors} actors, {rows[0]['shards']} shards; rates of the run's second half on a shared machine"
    return report(
        "Ape-X, cart_pole",
        rows,
        {
            "place": figure("place"),
            "seed": figure("seed"),
            "steps": figure("steps"),
            "solved at": figure("solved_at"),
            "last 100": figure("recent", ".1f"),
            "best 100": figure("best", ".1f"),
            "actors [steps/s]": figure("actor_steps_per_s", ",.0f"),
            "added/s": figure("shard_adds_per_s", ",.0f"),
            "drawn/s": figure("shard_samples_per_s", ",.0f"),
            "gradients/s": figure("learner_updates_per_s", ",.1f"),
            "sync age [s]": figure("sync_age_s", ".2f"),
            "actors died": figure("actors_replaced"),
            "shards died": figure("shards_replaced"),
            "wall [s]": figure("seconds", ".0f"),
            "learner CPU [s]": figure("learner_cpu_seconds", ".0f"),
        },
        words=1,
        caption=caption,
    )
