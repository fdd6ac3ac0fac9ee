"""The reference tasks of the learning benchmarks: their short names, what counts as solved, and PPO's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from navi_core.config import parse_config
from navi_core.config.fast import FastPPOConfig

__all__ = ["PPO_TARGETS", "ppo_settings", "task_name"]

_NAMES = {"lunar_lander": "gymnasium:LunarLander-v3"}
PPO_TARGETS = {"cart_pole": 475.0, "acrobot": -85.0, "lunar_lander": 220.0}
"""Mean return of 100 episodes that counts as solved by PPO."""
_PPO: dict[str, dict[str, Any]] = {
    # Returns of -500: unscaled, the critic's gradient drowns the actor's under the common norm bound.
    "acrobot": {
        "total_steps": 995_328,
        "rows": 32,
        "rollout": 128,
        "epochs": 4,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "learning_rate_end": 1e-5,
        "entropy_coefficient": 0.001,
        "reward_scale": 0.02,
    },
    # Discount, λ and the entropy's order as rl-baselines3-zoo has them; its batches are four times as large.
    "lunar_lander": {
        "total_steps": 499_712,
        "rows": 16,
        "rollout": 256,
        "epochs": 6,
        "minibatch": 128,
        "learning_rate_end": 5e-5,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "entropy_coefficient": 0.005,
        "reward_scale": 0.05,
    },
}


def task_name(task: str) -> str:
    """Return the name by which environments are opened: `lunar_lander` is one of Gymnasium's."""
    return _NAMES.get(task, task)


def ppo_settings(task: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the benchmark's settings of a task for `FastPPOConfig`, as far as they differ from its defaults.

    Args:
        task: `cart_pole`, `acrobot`, `lunar_lander`, or any other reference task, which gets the defaults.
        changes: Settings that win.

    Raises:
        ConfigError: A setting is unknown or impossible.
    """
    settings = _PPO.get(task, {}) | {"task": task_name(task)} | dict(changes or {})
    parse_config(FastPPOConfig, settings)
    return settings
