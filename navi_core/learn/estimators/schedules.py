"""Scheduled settings and exploration rates."""

import torch
from torch import Tensor

from navi_core.config import DQNConfig, TrainConfig


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


def epsilons(config: DQNConfig, rows: int, steps: int) -> Tensor:
    """Return ε of every row.

    Args:
        config: `per_actor` gives row i base^(1 + exponent·i/(B−1)) (Horgan et al. 2018), `shared` gives all the same.
        rows: B; a single row gets the ladder's middle.
        steps: Decisions so far, summed over rows; before epsilon_decay_steps ε is on the line from 1.

    Returns:
        (B,) float64.
    """
    if config.exploration == "shared":
        final = torch.full((rows,), config.epsilon_end, dtype=torch.float64)
    else:
        place = torch.arange(rows, dtype=torch.float64) / (rows - 1) if rows > 1 else torch.tensor([0.5]).double()
        final = config.epsilon_base ** (1.0 + config.epsilon_exponent * place)
    share = 1.0 if not config.epsilon_decay_steps else min(1.0, max(steps, 0) / config.epsilon_decay_steps)
    return 1.0 + share * (final - 1.0)
