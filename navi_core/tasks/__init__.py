"""Reference tasks: small known problems with the environment's protocol, to prove learners on before they fly."""

from typing import Any

from navi_core.errors import ConfigError
from navi_core.tasks.acrobot import Acrobot
from navi_core.tasks.atari import ATARI, AtariTask
from navi_core.tasks.cards import RepeatFirst, RepeatPrevious
from navi_core.tasks.cart_pole import CartPole
from navi_core.tasks.gymnasium_env import PREFIX, GymnasiumEnv
from navi_core.tasks.normalised import NormalisedTask
from navi_core.tasks.pendulum import Pendulum
from navi_core.tasks.snake import Snake
from navi_core.tasks.task import ReferenceTask
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

REFERENCE_TASKS: tuple[str, ...] = ("repeat_previous", "repeat_first", "cart_pole", "acrobot", "pendulum", "snake")
"""Names of the tasks."""


def reference_task(
    name: str,
    num_envs: int,
    seed: int = 0,
    *,
    normalise_observations: bool = False,
    **options: Any,  # noqa: ANN401 (keywords of the task)
) -> Environment:
    """Build a task by name.

    Args:
        name: One of `REFERENCE_TASKS`, or gymnasium: and the id of one of its environments; ids that begin with ALE/
            are Atari's, with its preprocessing.
        num_envs: Rows B.
        seed: Seed of every draw.
        normalise_observations: Bring vectors to mean 0 and deviation 1 by what was seen so far.
        options: Of the task: `k` and `decks` (repeat_previous), `decks` (repeat_first), `masked` (cart_pole,
            pendulum), `size` (snake), those of `AtariTask`, or those of the Gymnasium environment.

    Raises:
        ConfigError: There is no such task, or it has no such option.
    """
    task = _task(name, num_envs, seed, options)
    return NormalisedTask(task) if normalise_observations else task


def _task(name: str, num_envs: int, seed: int, options: dict[str, Any]) -> Environment:
    made: dict[str, type[ReferenceTask]] = {
        "repeat_previous": RepeatPrevious,
        "repeat_first": RepeatFirst,
        "cart_pole": CartPole,
        "acrobot": Acrobot,
        "pendulum": Pendulum,
        "snake": Snake,
    }
    within = name.removeprefix(PREFIX)
    if name.startswith(PREFIX) and not within.startswith(ATARI):
        return GymnasiumEnv(within, num_envs, seed, **options)
    if name not in made and not name.startswith(PREFIX):
        raise ConfigError(f"no reference task {name!r}; allowed: {', '.join(REFERENCE_TASKS)}, {PREFIX}ID")
    try:
        if name in made:
            return made[name](num_envs, seed, **options)
        return AtariTask(within, num_envs, seed, **options)
    except TypeError as error:
        raise ConfigError(f"task {name}: {error}") from None
