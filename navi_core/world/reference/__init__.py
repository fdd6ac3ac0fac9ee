"""Reference tasks: small known problems with the environment's protocol, to prove learners on before they fly."""

from __future__ import annotations

from typing import Any

from navi_core.errors import ConfigError
from navi_core.world.reference.acrobot import Acrobot
from navi_core.world.reference.cards import RepeatFirst, RepeatPrevious
from navi_core.world.reference.cart_pole import CartPole
from navi_core.world.reference.gymnasium_env import PREFIX, GymnasiumEnv
from navi_core.world.reference.pendulum import Pendulum
from navi_core.world.reference.snake import Snake
from navi_core.world.reference.task import ReferenceTask, TaskBatch

__all__ = [
    "REFERENCE_TASKS",
    "Acrobot",
    "CartPole",
    "GymnasiumEnv",
    "Pendulum",
    "ReferenceTask",
    "RepeatFirst",
    "RepeatPrevious",
    "Snake",
    "TaskBatch",
    "reference_task",
]

REFERENCE_TASKS: tuple[str, ...] = ("repeat_previous", "repeat_first", "cart_pole", "acrobot", "pendulum", "snake")
"""Names of the tasks."""


def reference_task(name: str, num_envs: int, seed: int = 0, **options: Any) -> ReferenceTask | GymnasiumEnv:
    """Build a task by name.

    Args:
        name: One of `REFERENCE_TASKS`, or gymnasium: and the id of one of its environments.
        num_envs: Rows B.
        seed: Seed of every draw.
        options: Of the task: `k` and `decks` (repeat_previous), `decks` (repeat_first), `masked` (cart_pole,
            pendulum), `size` (snake), or those of the Gymnasium environment.

    Raises:
        ConfigError: There is no such task, or it has no such option.
    """
    made: dict[str, type[ReferenceTask]] = {
        "repeat_previous": RepeatPrevious,
        "repeat_first": RepeatFirst,
        "cart_pole": CartPole,
        "acrobot": Acrobot,
        "pendulum": Pendulum,
        "snake": Snake,
    }
    if name.startswith(PREFIX):
        return GymnasiumEnv(name.removeprefix(PREFIX), num_envs, seed, **options)
    if name not in made:
        raise ConfigError(f"no reference task {name!r}; allowed: {', '.join(REFERENCE_TASKS)}, {PREFIX}ID")
    try:
        return made[name](num_envs, seed, **options)
    except TypeError as error:
        raise ConfigError(f"reference task {name}: {error}") from None
