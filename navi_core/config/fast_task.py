"""Task settings that every fast learner shares."""

from __future__ import annotations

from pydantic import Field

from navi_core.config.base import Config
from navi_core.config.tasks import TaskOptions

__all__ = ["FastTaskConfig"]


class FastTaskConfig(Config):
    """Base of the fast learners' settings."""

    task: str = "cart_pole"
    """A reference task with a choice of actions."""
    task_options: TaskOptions = {}
    """Options of the task."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of every random draw."""
