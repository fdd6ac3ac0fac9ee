"""Spaces and options of a reference task."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from navi_core.errors import ConfigError


@dataclass(frozen=True)
class Spaces:
    """The two sides of a task.

    Attributes:
        observation: Numbers of an observation.
        axes: Width of an action.
        choices: Every allowed action, each with `axes` numbers; empty where actions are continuous in (−1, 1).
        scale: Usual magnitude of each number of an observation, by which a network divides; empty for 1.
        shape: (C, H, W) of observations that are pictures, bytes; empty for vectors.
    """

    observation: int
    axes: int = 1
    choices: tuple[tuple[float, ...], ...] = ()
    scale: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()

    @property
    def observed(self) -> tuple[int, ...]:
        """Shape of an observation."""
        return self.shape or (self.observation,)


_SET_BY_RUN = {"name": "task", "num_envs": "actors (rows of a fast learner)", "seed": "seed", "first_row": "seed"}
"""Options that a run sets itself, and the setting of each."""


def _own(options: dict[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
    for name in options:
        if name in _SET_BY_RUN:
            raise ConfigError(f"task_options.{name} is no option of a task; set {_SET_BY_RUN[name]} instead")
    return options


TaskOptions = Annotated[dict[str, bool | int | float | str], AfterValidator(_own)]
"""Option of the task by name."""
