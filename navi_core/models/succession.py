"""Which version `latest` moves to: one whose reward_ema exceeds that of the current latest, where the two compare."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navi_core.config import TrainConfig
    from navi_core.models.checkpoint import Checkpoint

__all__ = ["why_latest_stays"]


def why_latest_stays(new: Checkpoint, current: Checkpoint) -> str | None:
    """Return why `latest` does not move from one checkpoint to another, None where it moves.

    What was paid differently does not compare: then the newer one follows, unless too little is known of it.
    """
    if math.isnan(new.reward_ema):
        return "nothing was paid to the new one"
    if math.isnan(current.reward_ema):
        return None
    ours, theirs = new.train_config(), current.train_config()
    if (ours.task is None) != (theirs.task is None):
        return None if ours.task is None else f"the new one flies nowhere, it solves {ours.task}"
    settled = _is_settled(new)
    if settled != _is_settled(current):
        return None if settled else f"the new one has ended {new.episode_count} episodes with {ours.actors} drones"
    if _pay(ours) != _pay(theirs):
        return None
    if new.run_id == current.run_id and not settled and new.step_id != current.step_id:
        return None if new.step_id > current.step_id else "it is what the new one's run became"
    if new.reward_ema > current.reward_ema:
        return None
    return f"its reward_ema is {current.reward_ema:+.4f}, the new one's {new.reward_ema:+.4f}"


def _is_settled(checkpoint: Checkpoint) -> bool:
    """Tell whether a reward_ema knows whole episodes: as many ended as there are drones.

    Before, it is that of beginnings, where all floor is new: a run of one update would beat what it becomes.
    """
    return checkpoint.episode_count >= checkpoint.train_config().actors


def _pay(config: TrainConfig) -> dict[str, Any]:
    """Return what an environment pays for, and how much."""
    env = config.env
    if config.task is not None:
        return {"task": config.task}
    goal = env.goal.model_dump() if env.task == "point_goal" else {}
    return {"task": env.task, "weights": env.reward.resolved(), "goal": goal}
