"""Options of a reference task, without what the run itself tells it."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from navi_core.errors import ConfigError

__all__ = ["TaskOptions"]

_TOLD = {"name": "task", "num_envs": "actors (rows of a fast learner)", "seed": "seed", "first_row": "seed"}
"""What a run tells its task, and the setting that says it."""


def _own(options: dict[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
    for name in options:
        if name in _TOLD:
            raise ConfigError(f"task_options.{name} is no option of a task; set {_TOLD[name]} instead")
    return options


TaskOptions = Annotated[dict[str, bool | int | float | str], AfterValidator(_own)]
"""Option of the task by name."""
