"""Promotion of `latest`: to a version with a greater reward_ema, where the two compare."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navi_core.config import TrainConfig
    from navi_core.models.checkpoint import Checkpoint


def why_latest_stays(new: Checkpoint, current: Checkpoint) -> str | None:
    """Return why `latest` does not move from one checkpoint to another, None where it moves.

    Different rewards do not compare: then the newer version follows, unless it has ended too few episodes.
    """
    if not math.isfinite(new.reward_ema):
        return "the new one has no reward"
    if not math.isfinite(current.reward_ema):
        return None
    ours, theirs = new.train_config(), current.train_config()
    if (ours.task is None) != (theirs.task is None):
        return None if ours.task is None else f"the new one flies nowhere, it solves {ours.task}"
    settled = _is_settled(new)
    if settled != _is_settled(current):
        return None if settled else f"the new one has ended {new.episode_count} episodes with {ours.actors} drones"
    if not comparable_rewards(new, current):
        return None
    if new.run_id == current.run_id and not settled and new.step_id != current.step_id:
        return None if new.step_id > current.step_id else "it is what the new one's run became"
    if new.reward_ema > current.reward_ema:
        return None
    return f"{current.reward_ema:+.4f} is the reward_ema to exceed, the new one's is {new.reward_ema:+.4f}"


def comparable_rewards(one: Checkpoint, other: Checkpoint) -> bool:
    """Return whether the rewards of two runs compare: the same terms with the same weights for each decision."""
    return same_rewards(one.train_config(), other.train_config())


def same_rewards(one: TrainConfig, other: TrainConfig) -> bool:
    """Return whether two configurations have the same reward terms and weights for each decision."""
    return _reward_settings(one) == _reward_settings(other)


def _is_settled(checkpoint: Checkpoint) -> bool:
    """Return whether a reward_ema covers whole episodes: as many ended as there are drones.

    Before, it is that of beginnings, where all floor is new: a run of one update would beat what it becomes.
    """
    return checkpoint.episode_count >= checkpoint.train_config().actors


def _reward_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the reward terms and weights of the environment and the shaper."""
    env, shaper = config.env, config.shaper
    shaped = {name: value for name, value in shaper.model_dump().items() if name not in _NO_REWARD}
    if config.task is not None:
        return {"task": config.task, "shaper": shaped}
    return {
        "task": env.task,
        "weights": env.reward.resolved(),
        "floor": (env.reward.view_radius, env.reward.view_cell),
        "goal": env.goal.model_dump() if env.task == "point_goal" else {},
        "decision_hz": env.dynamics.decision_hz,
        "shaper": shaped,
    }


_NO_REWARD = ("memory_capacity", "rnd_lr")
"""Settings of the shaper that are no part of the reward."""
