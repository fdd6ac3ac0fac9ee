"""What a scheduled setting is worth now."""

from __future__ import annotations

from navi_core.config import TrainConfig
from navi_core.config.learn import Scheduled

__all__ = ["scheduled"]


def scheduled(config: TrainConfig, name: Scheduled, steps: int) -> float:
    """Return a setting of PPO after `steps` decisions.

    Args:
        config: The run's configuration.
        name: `learning_rate`, `entropy_coefficient` or `clip`.
        steps: Decisions so far, summed over rows.

    Raises:
        ConfigError: The schedule ends at the run's total_steps, which is not set.
    """
    start = float(getattr(config.ppo, name))
    schedule = config.ppo.schedules.get(name)
    return start if schedule is None else schedule.value(start, steps, config.total_steps)
