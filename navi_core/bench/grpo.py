"""GRPO on whole episodes of a reference task by the fast path, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from navi_core.bench.cartpole import SolveRow, learning_table
from navi_core.bench.report import Option, Progress, Report
from navi_core.config import parse_config
from navi_core.config.fast_grpo import FastGRPOConfig
from navi_core.learn.run.threads import torch_threads
from navi_core.presets import parse_assignments

__all__ = ["run_grpo"]


def run_grpo(
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    target: float,
    progress: Callable[[str, int, int], None] | None = None,
) -> Iterator[SolveRow]:
    """Learn a task with every seed.

    Args:
        seeds: Seeds.
        settings: Settings of `FastGRPOConfig` that differ from its defaults.
        target: Mean return of 100 training episodes that counts as solved.
        progress: Called after every update with the seed's name, decisions and decisions in all.

    Raises:
        ConfigError: A setting is unknown or impossible.
    """
    from navi_core.learn.fast.grpo import FastGRPO

    with torch_threads(1):
        _warm(settings)
    for done, seed in enumerate(seeds):
        config = parse_config(FastGRPOConfig, dict(settings) | {"seed": seed})
        total = config.total_steps

        def tell(steps: int, _: float, seed: int = seed, done: int = done, total: int = total) -> None:
            if progress is not None:
                progress(f"grpo seed {seed}", done * total + min(steps, total), len(seeds) * total)

        with torch_threads(1):
            trainer = FastGRPO(config)
            result = trainer.train(target=target, progress=tell)
            final = float(trainer.evaluate().mean())
        yield SolveRow(
            trainer="grpo",
            task=config.task,
            network=f"{'x'.join(map(str, config.hidden))} tanh, {len(trainer.params):,} weights",
            epochs=config.epochs,
            batch=config.rows * config.horizon,
            minibatch=config.minibatch,
            seed=seed,
            solved_at=result.solved_at,
            cpu_seconds_to_solve=result.solved_cpu_seconds,
            steps=result.steps,
            cpu_seconds=result.cpu_seconds,
            training_return=result.mean_return,
            final_return=final,
        )


def _warm(settings: Mapping[str, Any]) -> None:
    """Compile the loops, or read them from the cache: that is no learning."""
    from navi_core.learn.fast.grpo import FastGRPO

    few = {"rows": 2, "group_size": 2, "epochs": 1, "total_steps": 1, "horizon": 8}
    FastGRPO(parse_config(FastGRPOConfig, dict(settings) | few)).train(target=math.inf)


def grpo(
    task: Annotated[str, Option(help="What is learned, such as acrobot.")] = "cart_pole",
    seeds: Annotated[int, Option(min=1, help="So many seeds learn.")] = 5,
    first_seed: Annotated[int, Option(min=0, help="The first of them.")] = 0,
    target: Annotated[float, Option(help="Mean return of 100 episodes that counts as solved.")] = 450.0,
    assign: Annotated[
        list[str] | None, Option(flag="--set", help="A setting of learning, such as group_size=8; may be repeated.")
    ] = None,
    *,
    progress: Progress,
) -> Report:
    """Learn a task by GRPO with several seeds."""
    settings = {"task": task} | parse_assignments(assign or ())
    wanted = range(first_seed, first_seed + seeds)
    rows = [row.as_dict() for row in run_grpo(wanted, settings, target, progress)]
    return Report({"learning": rows}, [learning_table(rows, target)])
