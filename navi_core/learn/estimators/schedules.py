"""What a scheduled setting is worth now."""

from __future__ import annotations

from navi_core.config import TrainConfig

__all__ = ["scheduled"]


def scheduled(config: TrainConfig, name: str, steps: int) -> float:
    """Return a setting of the run's learner after `steps` decisions.

    Args:
        config: The run's configuration.
        name: One of the settings that its `schedules` may name.
        steps: Decisions so far, summed over rows.

    Raises:
        ConfigError: The schedule ends at the run's total_steps, which is not set.
    """
    start = float(getattr(config.rule, name))
    schedule = config.rule.schedules.get(name)
    return start if schedule is None else schedule.value(start, steps, config.total_steps)
