"""Which version `latest` moves to: one whose reward_ema exceeds that of the current latest, where the two compare."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navi_core.config import TrainConfig
    from navi_core.models.checkpoint import Checkpoint

__all__ = ["paid_alike", "same_rewards", "why_latest_stays"]


def why_latest_stays(new: Checkpoint, current: Checkpoint) -> str | None:
    """Return why `latest` does not move from one checkpoint to another, None where it moves.

    What was paid differently does not compare: then the newer one follows, unless too little is known of it.
    """
    if not math.isfinite(new.reward_ema):
        return "nothing was paid to the new one"
    if not math.isfinite(current.reward_ema):
        return None
    ours, theirs = new.train_config(), current.train_config()
    if (ours.task is None) != (theirs.task is None):
        return None if ours.task is None else f"the new one flies nowhere, it solves {ours.task}"
    settled = _is_settled(new)
    if settled != _is_settled(current):
        return None if settled else f"the new one has ended {new.episode_count} episodes with {ours.actors} drones"
    if not paid_alike(new, current):
        return None
    if new.run_id == current.run_id and not settled and new.step_id != current.step_id:
        return None if new.step_id > current.step_id else "it is what the new one's run became"
    if new.reward_ema > current.reward_ema:
        return None
    return f"{current.reward_ema:+.4f} is the reward_ema to exceed, the new one's is {new.reward_ema:+.4f}"


def paid_alike(one: Checkpoint, other: Checkpoint) -> bool:
    """Tell whether the rewards of two runs compare: the same is paid for, decision by decision, and as much."""
    return same_rewards(one.train_config(), other.train_config())


def same_rewards(one: TrainConfig, other: TrainConfig) -> bool:
    """Tell whether two configurations pay for the same, decision by decision, and as much."""
    return _pay(one) == _pay(other)


def _is_settled(checkpoint: Checkpoint) -> bool:
    """Tell whether a reward_ema knows whole episodes: as many ended as there are drones.

    Before, it is that of beginnings, where all floor is new: a run of one update would beat what it becomes.
    """
    return checkpoint.episode_count >= checkpoint.train_config().actors


def _pay(config: TrainConfig) -> dict[str, Any]:
    """Return what is paid for, and how much: by the environment, and by the shaper on top of it."""
    env, shaper = config.env, config.shaper
    shaped = {name: value for name, value in shaper.model_dump().items() if name not in _UNPAID}
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


_UNPAID = ("memory_capacity", "rnd_lr")
"""Settings of the shaper that change what is paid only by the way."""
