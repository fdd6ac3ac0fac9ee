"""Settings of the training runs that benchmarks make on reference tasks, and the returns that count as solved."""

from collections.abc import Mapping
from typing import Any

from navi_core.config import TrainConfig, parse_config
from navi_core.presets import merge

_NAMES = {"lunar_lander": "gymnasium:LunarLander-v3"}
PPO_TARGETS = {"cart_pole": 475.0, "acrobot": -85.0, "lunar_lander": 220.0}
"""Mean return of 100 episodes that counts as solved by PPO."""
DQN_TARGETS = {"cart_pole": 475.0, "acrobot": -90.0, "snake": 5.0, "lunar_lander": 200.0}
"""Mean return of the last 100 training episodes that counts as solved by DQN; of snake, mean food."""

_COMMON: dict[str, Any] = {
    "threads": 1,
    "device": "cpu",
    "checkpoint_every": 100_000,
    "policy": {"core": "none", "aux": "off", "width": 64},
    "shaper": {"existential_tax": 0.0, "rnd_start": 0.0, "rnd_end": 0.0, "loop_coefficient": 0.0},
}
_ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {
        "actors": 64,
        "total_steps": 200_000,
        "ppo": {
            "rollout": 32,
            "bptt": 1,
            "minibatch": 256,
            "epochs": 10,
            "learning_rate": 1e-3,
            "schedules": {"learning_rate": {"end": 1e-4}},
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "entropy_coefficient": 0.0,
            "target_kl": None,
        },
    },
    "grpo": {
        "actors": 64,
        "total_steps": 400_000,
        "grpo": {
            "rollout": 128,
            "bptt": 1,
            "horizon": 64,
            "group_size": 64,
            "normalize_group": "mean_std",
            "learning_rate": 3e-3,
            "ent_coef": 0.0,
        },
    },
    "dqn": {
        "actors": 16,
        "total_steps": 100_000,
        "early_stopping": {"eval_interval": 2500},
        "dqn": {
            "rollout": 16,
            "bptt": 16,
            "replay_ratio": 16.0,
            "learning_rate": 2e-3,
            "schedules": {"learning_rate": {"end": 2e-4}},
            "exploration": "shared",
            "epsilon_end": 0.01,
            "epsilon_decay_steps": 10_000,
            "polyak": 0.01,
            "n_step": 3,
            "huber": 20.0,
        },
        "replay": {"batch_size": 128},
    },
}
_TASKS: dict[tuple[str, str], dict[str, Any]] = {
    ("ppo", "acrobot"): {
        "total_steps": 995_328,
        "actors": 32,
        "ppo": {
            "rollout": 128,
            "epochs": 4,
            "gamma": 0.99,
            "gae_lambda": 0.95,
            "schedules": {"learning_rate": {"end": 1e-5}},
            "entropy_coefficient": 0.001,
        },
    },
    # Discount, λ and the entropy's order as rl-baselines3-zoo has them; its batches are four times as large.
    ("ppo", "lunar_lander"): {
        "total_steps": 499_712,
        "actors": 16,
        "ppo": {
            "rollout": 256,
            "epochs": 6,
            "minibatch": 128,
            "schedules": {"learning_rate": {"end": 5e-5}},
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "entropy_coefficient": 0.005,
        },
    },
    # Ten rewards before the bootstrap and few random actions: the last 100 episodes of 500 decisions take half the run.
    ("dqn", "cart_pole"): {
        "actors": 8,
        "dqn": {"n_step": 10, "epsilon_end": 0.001, "epsilon_decay_steps": 3000, "learning_starts": 500},
    },
    ("dqn", "acrobot"): {"dqn": {"epsilon_end": 0.02, "epsilon_decay_steps": 20_000, "huber": 5.0}},
    ("dqn", "snake"): {
        "total_steps": 1_000_000,
        "actors": 64,
        "dqn": {"replay_ratio": 2.0, "epsilon_decay_steps": 100_000, "huber": 1.0},
        "replay": {"batch_size": 256},
    },
    # A crash is worth -100 and comes at once: unless the loss is linear there, falling is all that is learned from.
    ("dqn", "lunar_lander"): {
        "total_steps": 120_000,
        "early_stopping": {"eval_interval": 4000},
        "dqn": {"replay_ratio": 32.0, "epsilon_end": 0.1, "huber": 1.0},
    },
}


def task_config(algorithm: str, task: str, seed: int = 0, changes: Mapping[str, Any] | None = None) -> TrainConfig:
    """Return the benchmark's training run of a task; a task without settings gets those of cart-pole.

    Args:
        algorithm: `ppo`, `grpo` or `dqn`.
        task: Reference task, or `lunar_lander` for Gymnasium's.
        seed: Seed.
        changes: Nested settings that win.

    Raises:
        ConfigError: A setting is unknown or impossible.
    """
    fixed: dict[str, Any] = {"algorithm": algorithm, "task": _NAMES.get(task, task), "seed": seed}
    if task == "cart_pole":
        fixed["task_options"] = {"masked": False}
    values = merge(merge(_COMMON, _ALGORITHMS[algorithm]), merge(_TASKS.get((algorithm, task), {}), fixed))
    return parse_config(TrainConfig, merge(values, dict(changes or {})))
