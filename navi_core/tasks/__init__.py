"""Reference tasks: standard RL benchmarks with the environment's interface, to test learners before flight."""

from collections.abc import Callable
from functools import partial
from typing import Any

from navi_core.errors import ConfigError, did_you_mean
from navi_core.tasks.classic_control import Acrobot, CartPole, Pendulum
from navi_core.tasks.external import PREFIX, AtariTask, GymnasiumEnv, is_atari
from navi_core.tasks.games import RepeatFirst, RepeatPrevious, Snake
from navi_core.tasks.task import NormalisedTask, ReferenceTask
from navi_core.world.interface import Environment

__all__ = [
    "REFERENCE_TASKS",
    "Acrobot",
    "AtariTask",
    "CartPole",
    "GymnasiumEnv",
    "NormalisedTask",
    "Pendulum",
    "ReferenceTask",
    "RepeatFirst",
    "RepeatPrevious",
    "Snake",
    "reference_task",
]

_TASKS: dict[str, type[ReferenceTask]] = {
    "repeat_previous": RepeatPrevious,
    "repeat_first": RepeatFirst,
    "cart_pole": CartPole,
    "acrobot": Acrobot,
    "pendulum": Pendulum,
    "snake": Snake,
}
REFERENCE_TASKS: tuple[str, ...] = tuple(_TASKS)
"""Names of the built-in reference tasks."""


def reference_task(
    name: str,
    num_envs: int,
    seed: int = 0,
    *,
    normalise_observations: bool = False,
    **options: Any,  # noqa: ANN401 (keywords of the task)
) -> Environment:
    """Build a reference task (vectorised environment) by name.

    Args:
        name: One of `REFERENCE_TASKS`, or `gymnasium:` and the id of a Gymnasium environment; those of Atari
            games (`is_atari`) get the usual preprocessing.
        num_envs: Rows B.
        seed: Seed of every draw.
        normalise_observations: Normalise vector observations by running mean and variance, see `NormalisedTask`.
        options: Options of the task: `k` and `decks` (repeat_previous), `decks` (repeat_first), `masked` (cart_pole,
            pendulum), `size` (snake), those of `AtariTask`, or those of the Gymnasium environment.

    Raises:
        ConfigError: There is no such task, or it has no such option.
    """
    within = name.removeprefix(PREFIX)
    make: Callable[..., Environment]
    if name.startswith(PREFIX):
        make = partial(AtariTask if is_atari(within) else GymnasiumEnv, within)
    elif name in _TASKS:
        make = _TASKS[name]
    else:
        hint = did_you_mean(name, REFERENCE_TASKS)
        raise ConfigError(f"no reference task {name!r}; {hint}allowed: {', '.join(REFERENCE_TASKS)}, {PREFIX}ID")
    try:
        task = make(num_envs, seed, **options)
    except TypeError as error:
        raise ConfigError(f"task {name}: {error}") from None
    return NormalisedTask(task) if normalise_observations else task
