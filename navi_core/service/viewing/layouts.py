"""Layouts of telemetry events: the names of the payload's numbers, in their order.

NaN stands for a number that a learner does not have. A payload of a newer publisher may be longer than its layout; the
rest is ignored.
"""

import math
import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from navi_core.config import GOAL_TERMS, REWARD_TERMS

SCENE_EVENT = "actor.scene"
"""Scene of the selected drone; sent before its first observation there."""
PHASES = {
    "rollout": (
        "storage", "forward", "environment_step", "memory_query", "memory_append", "shaping_rnd", "bootstrap",
        "host_extraction", "telemetry_publication",
    ),
    "update": (
        "advantages", "minibatch_fetch", "minibatch_prep", "policy_evaluation", "loss", "backward", "gradient_clip",
        "optimizer_step", "rnd_step", "statistics", "progress_callback",
    ),
}  # fmt: skip
"""Stages of an update, by phase; those that a learner times under another name are summed as the last one, `other`."""
LAYOUTS: dict[str, tuple[str, ...]] = {
    "step": (
        "reward", "speed", "collided", "episode_return", "episode_length", "seen_share", *REWARD_TERMS,
        *(f"weight/{name}" for name in REWARD_TERMS), *GOAL_TERMS,
    ),
    "update": (
        "step", "updates", "reward_ema", "reward_mean", "episode_return", "episode_length", "policy_loss", "value_loss",
        "entropy", "approx_kl", "clip_fraction", "explained_variance", "total_loss", "rnd_loss", "beta", "grad_norm",
        "learning_rate", "loss", "nll", "collision_rate", "void_rate", "intrinsic_reward", "loop_penalty",
        "epsilon", "td_mean", "td_var", "q_mean", *REWARD_TERMS, *GOAL_TERMS, "success_rate",
    ),
    "episode": ("episodes", "episode_return", "episode_length"),
    "perf": (
        "sps", "env_ms", "ppo_update_ms", "zero_wait_ratio",
        *(f"{phase}/{stage}" for phase, stages in PHASES.items() for stage in (*stages, "other")),
    ),
    "scene": (
        "scene", "scenes", "rows", "max_distance", "decision_hz", "low_x", "low_y", "low_z", "high_x", "high_y",
        "high_z", "corner_x", "corner_z", "metres_per_pixel", "height",
    ),
}  # fmt: skip
"""By the last word of the event's type."""
_TRAINING = re.compile(r"actor\.training\.\w{1,32}\.(step|update|episode|perf)")


def training_event(event_type: str) -> str | None:
    """Return the key in `LAYOUTS` of an event; None for events of other publishers."""
    if event_type == SCENE_EVENT:
        return "scene"
    found = _TRAINING.fullmatch(event_type)
    return found[1] if found else None


def payload(layout: str, values: Mapping[str, float]) -> npt.NDArray[np.float32]:
    """Return the payload of an event; values that the layout does not name are left out."""
    return np.array([values.get(name, math.nan) for name in LAYOUTS[layout]], np.float32)


def named(layout: str, numbers: npt.NDArray[np.float32]) -> dict[str, float]:
    """Return the values of a payload by name; a shorter one has fewer."""
    return dict(zip(LAYOUTS[layout], numbers.tolist()))


SERVICE_LAYOUTS: dict[str, tuple[str, ...]] = {
    "actor.inference.perf": ("p50_ms", "p99_ms", "drones", "decisions"),
    "actor.inference.gate": (
        "send", "collides", "expected_reward", "clearance", "progress", "novelty", "starvation",
    ),
    "actor.inference.step": ("reward", "episode_return", "ended"),
    "actor.heartbeat": ("drones", "decisions", "seconds_up"),
    "environment.heartbeat": ("drones", "decisions", "seconds_up"),
}  # fmt: skip
"""Names of the numbers of a service's events that viewers list, as docs/WIRE.md has them."""
