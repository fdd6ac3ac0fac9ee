"""Settings of point-goal flight: reach a place and stop there."""

from __future__ import annotations

from pydantic import Field

from navi_core.config.base import Config

__all__ = ["GOAL_TERMS", "GoalConfig"]

GOAL_TERMS = ("goal_progress", "goal_success")
"""What a goal pays, told beside the reward terms and with its weight in it."""


class GoalConfig(Config):
    """Goals of point-goal flight, what reaches them, and what training pays for."""

    success_radius: float = Field(0.5, gt=0, le=100)
    """Distance at which a goal counts as reached [m]."""
    stop_speed: float = Field(0.25, gt=0, le=100)
    """Linear speed below which the drone has stopped [m/s]."""
    min_distance: float = Field(2.0, ge=0, le=1000)
    """Least way from the start to the goal: the geodesic one in training, the straight one in evaluation [m]."""
    per_scene: int = Field(8, ge=1, le=256)
    """Goals of each training scene; the way to each is kept for every voxel."""
    progress_weight: float = Field(1.0, ge=0)
    """Reward for each metre by which the way to the goal became shorter [1/m]."""
    success_reward: float = Field(10.0, ge=0)
    """Reward for stopping at the goal."""
