"""Which code of a user's own a training is made of."""

from __future__ import annotations

from navi_core.config import REWARD_TERMS, TrainConfig
from navi_core.learn.algorithms.registry import LEARNERS
from navi_core.policy import own_networks
from navi_core.world.custom_rewards import REWARDS

__all__ = ["own_code"]


def own_code(config: TrainConfig) -> str | None:
    """Return the sources of networks, learner and reward terms that are not Navi's, by digits; None where all are.

    With the settings, the seed and the code of Navi they tell what a training comes to.

    Raises:
        ConfigError: A part is neither built in nor registered.
    """
    sources = {f"learner {config.algorithm}": LEARNERS.source(config.algorithm)}
    for name in sorted(config.env.reward.weights.keys() - set(REWARD_TERMS)):
        sources[f"reward term {name}"] = REWARDS.source(name)
    told = [f"{part} {source}" for part, source in sources.items() if source is not None]
    networks = own_networks(config.policy.encoder, config.policy.core)
    return ", ".join(told if networks is None else [networks, *told]) or None
