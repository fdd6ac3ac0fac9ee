"""Ape-X on cart-pole: whether it learns with actors and shards of their own, how fast each stage is, what deaths do."""

import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

from navi_core.bench.report import Column, Log, Option, Report, Row, figure, report
from navi_core.bench.tasks import DQN_TARGETS, task_config
from navi_core.config import TrainConfig
from navi_core.learn.run.records import Progress
from navi_core.presets import merge, parse_assignments
from navi_core.record import RunDirectory
from navi_core.scale.ray_cluster import RayCluster

_RATES = ("actor_steps_per_s", "shard_adds_per_s", "shard_samples_per_s", "learner_updates_per_s", "sync_age_s")


def apex_config(seed: int = 0, actors: int = 2, changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """Return the settings of `navi bench dqn` on cart-pole, for actors and two shards.

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
    progress: Callable[[str], None] | None = None,
) -> Iterator[Row]:
    """Learn cart-pole with every seed.

    Args:
        seeds: Seeds.
        actors: Actors.
        in_process: Without Ray.
        kill: SIGKILL an actor after a third of the run, and kill a shard after two thirds; on Ray alone.
        changes: Settings that differ.
        progress: Called with a line about every second.

    Yields:
        Rows with the keys:
        place: `ray`, or `in process`.
        seed: Its seed.
        actors: Actors.
        shards: Shards.
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
        seen: list[Progress] = []
        places: list[Any] = []

        def observe(at: Progress, seed: int = seed, seen: list[Progress] = seen, places: list[Any] = places) -> None:
            seen.append(at)
            if kill and not in_process:
                _kill_parts(at, places[0])
            if progress is not None:
                progress(f"seed {seed}: {at.line()}  last 100 {at.metrics.get('return_100', math.nan):.1f}")

        start, used = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            with RunDirectory.open(root / "runs", asset="bench", partition=f"apex-{seed}", config=config) as run:
                log = run.metric_log(root / "outbox")
                result = launch_apex(config, run, in_process=in_process, progress=observe, log=log, made=places.append)
        later = [at.metrics for at in seen[len(seen) // 2 :]] or [result.metrics]
        hundreds = [(at.steps, at.metrics["return_100"]) for at in seen if "return_100" in at.metrics]
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


def _kill_parts(at: Progress, here: RayCluster) -> None:
    """Kill an actor in the second third of a run, and a shard in the last, once each."""
    share = at.steps / (at.total_steps or at.steps)
    if share > 1 / 3 and not here.replaced.actors:
        os.kill(here.pids()[0], signal.SIGKILL)
    if share > 2 / 3 and not here.replaced.shards:
        here.kill_shard(here.ports[-1].number)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def apex(
    seeds: Annotated[int, Option(min=1, help="So many seeds learn.")] = 1,
    first_seed: Annotated[int, Option(min=0, help="The first of them.")] = 0,
    actors: Annotated[int, Option(min=1, help="Actor processes.")] = 2,
    in_process: Annotated[bool, Option(flag="--in-process", help="Without Ray, all in one process.")] = False,
    kill: Annotated[bool, Option(flag="--kill", help="Kill an actor and a shard on the way.")] = False,
    assign: Annotated[
        list[str] | None, Option(flag="--set", help="A setting, such as total_steps=50000; may be repeated.")
    ] = None,
    *,
    log: Log,
) -> Report:
    """Learn cart-pole by Ape-X with several seeds."""
    runs = run_apex_bench(
        range(first_seed, first_seed + seeds), actors=actors, in_process=in_process, kill=kill,
        changes=parse_assignments(assign or ()), progress=log,
    )  # fmt: skip
    # Ray reports a dead process on standard output, which belongs to the result.
    with redirect_stdout(sys.stderr):
        rows = list(runs)
    columns: dict[str, Column] = {
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
    }
    caption = f"{actors} actors, {rows[0]['shards']} shards; rates of the run's second half on a shared machine"
    return report("Ape-X, cart_pole", rows, columns, words=1, caption=caption)
