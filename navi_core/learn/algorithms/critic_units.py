"""The units of a critic that does not learn, carried on by learners without one.

GRPO, DPO and cloning leave the critic's head as their parent had it. PPO learned it in units of the returns' spread,
and perhaps of scaled rewards: a PPO run that goes on from their weights needs them, or predictions mean nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from navi_core.config import PolicyConfig

__all__ = ["CriticUnits", "tell_idle_critic"]

_LOG = logging.getLogger("navi.learn")
_OF_THE_CRITIC = ("separate_value", "stop_value_gradient", "privileged_critic")


class CriticUnits:
    """What a parent's normalisers say of its critic's units; nothing where the parent had none."""

    def __init__(self) -> None:
        self._scales: dict[str, Any] = {}

    def take(self, state: Mapping[str, Any]) -> None:
        """Keep the units that a learner's state holds, in place of those before.

        Args:
            state: `state_dict` of PPO or of a learner that carries units; of another one there is nothing to keep.
        """
        self._scales = {}
        if "value_scale" in state:
            self._scales["value_scale"] = dict(state["value_scale"])
        if "reward_scale" in state:
            # Running sums of the parent's rows are nobody's here.
            self._scales["reward_scale"] = {"moments": dict(state["reward_scale"]["moments"])}

    def state_dict(self) -> dict[str, Any]:
        """Return them by the names that PPO gives them; empty where there are none."""
        return dict(self._scales)


def tell_idle_critic(policy: PolicyConfig, algorithm: str) -> None:
    """Warn of settings of a critic that the learner does not have.

    They are not refused: a PPO run may go on from these weights, and a network without them has other ones.
    """
    idle = [f"policy.{name}" for name in _OF_THE_CRITIC if getattr(policy, name)]
    if idle:
        _LOG.warning(
            "%s has no critic: %s changes nothing that is learned and serves only a ppo run that goes on from these "
            "weights; leave it out unless there is to be one",
            algorithm,
            " and ".join(idle),
        )
