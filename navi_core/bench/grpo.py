"""GRPO on a reference task by the ordinary run loop, seed by seed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from navi_core.bench.cartpole import learning_table
from navi_core.bench.report import Option, Progress, Report, Row
from navi_core.bench.task_runs import solve
from navi_core.bench.tasks import task_config
from navi_core.presets import parse_assignments


def run_grpo(
    task: str,
    seeds: Sequence[int],
    changes: Mapping[str, Any],
    target: float,
    progress: Callable[[str, int, int], None] | None = None,
) -> Iterator[Row]:
    """Learn a task with every seed.

    Args:
        task: Reference task.
        seeds: Seeds.
        changes: Settings of the training run that differ from the benchmark's.
        target: Mean return of 100 training episodes that counts as solved.
        progress: Called after every seed with its name, how many are done and of how many.

    Raises:
        ConfigError: A setting is unknown or impossible.
    """
    for done, seed in enumerate(seeds, 1):
        yield solve(task_config("grpo", task, seed, changes), "grpo", target)
        if progress is not None:
            progress(f"grpo seed {seed}", done, len(seeds))


def grpo(
    task: Annotated[str, Option(help="What is learned, such as acrobot.")] = "cart_pole",
    seeds: Annotated[int, Option(min=1, help="So many seeds learn.")] = 5,
    first_seed: Annotated[int, Option(min=0, help="The first of them.")] = 0,
    target: Annotated[float, Option(help="Mean return of 100 episodes that counts as solved.")] = 450.0,
    assign: Annotated[
        list[str] | None, Option(flag="--set", help="A setting of learning, such as grpo.clip=0.1; may be repeated.")
    ] = None,
    *,
    progress: Progress,
) -> Report:
    """Learn a task by GRPO with several seeds."""
    wanted = range(first_seed, first_seed + seeds)
    rows = list(run_grpo(task, wanted, parse_assignments(assign or ()), target, progress))
    return Report({"learning": rows}, [learning_table(rows, target)])
