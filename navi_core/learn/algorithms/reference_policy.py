"""Frozen reference policy, and the base of the learners that use one instead of a critic (GRPO, DPO)."""

import copy
import logging
from typing import Any

import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.rollout_learner import Data, Micro, RolloutLearner
from navi_core.learn.estimators.normalisation import CriticUnits
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.storage import Rollout
from navi_core.policy import NavigationPolicy, RewardShaper

_LOG = logging.getLogger("navi.learn")
_CRITIC_SETTINGS = ("separate_value", "stop_value_gradient", "privileged_critic")


class ReferencePolicy:
    """Copy of the policy at its last synchronisation.

    Its recurrent state passes through every rollout under its own weights. After a rollout that it skipped, it takes
    the acting policy's state at the next rollout's start.

    Args:
        policy: The policy to be copied.
    """

    def __init__(self, policy: NavigationPolicy) -> None:
        self.policy = copy.deepcopy(policy).requires_grad_(False).eval()
        self._state: tuple[Tensor, ...] | None = None

    def sync(self, policy: NavigationPolicy) -> None:
        """Copy the weights of `policy`; the state is then the acting policy's."""
        self.policy.load_state_dict(policy.state_dict())
        self._state = None

    def skip(self) -> None:
        """Skip a rollout."""
        self._state = None

    @torch.no_grad()
    def log_probs(self, rollout: Rollout) -> Tensor:
        """Return log π_ref of a rollout's actions, (T, B); call it once for every rollout, in their order."""
        state = self._state if self._state is not None else tuple(x[0] for x in rollout.chunk_state)
        parts = []
        for chunk in range(rollout.chunks):
            batch = rollout.minibatch(slice(chunk * rollout.rows, (chunk + 1) * rollout.rows))
            out = self.policy.evaluate(batch.obs, batch.aux, state, batch.reset, batch.actions)
            state = out.state
            parts.append(out.log_prob.transpose(0, 1))
        self._state = tuple(x.clone() for x in state)
        return torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        """Return weights and state."""
        return {
            "policy": {name: x.clone() for name, x in self.policy.state_dict().items()},
            "state": None if self._state is None else [x.clone() for x in self._state],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.policy.load_state_dict(state["policy"])
        device = next(self.policy.parameters()).device
        self._state = None if state["state"] is None else tuple(x.to(device) for x in state["state"])


class ReferenceLearner(RolloutLearner[Data, Micro]):
    """Rollout learner of one process with a reference policy and without a critic.

    Raises:
        ConfigError: There are several processes, or a schedule ends at `total_steps`, which is not set.
    """

    def __init__(
        self,
        policy: NavigationPolicy,
        shaper: RewardShaper,
        config: TrainConfig,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        if workers.size > 1:
            raise ConfigError(f"{self.section} learns in one process, not in {workers.size}; start it without torchrun")
        super().__init__(policy, shaper, config, device)
        self.reference: ReferencePolicy | None = None
        """Made at the first update: only then the policy has the weights that the run begins with."""
        self.units = CriticUnits()
        # Not refused: a PPO run may go on from these weights, and a network without these settings has other weights.
        idle = [f"policy.{name}" for name in _CRITIC_SETTINGS if getattr(config.policy, name)]
        if idle:
            _LOG.warning(
                "%s has no critic: %s changes nothing that is learned and serves only a ppo run that goes on from "
                "these weights; leave it out unless there is to be one",
                self.section,
                " and ".join(idle),
            )

    def reference_policy(self) -> ReferencePolicy:
        """Return the reference policy, a copy of the policy at the first call."""
        if self.reference is None:
            self.reference = ReferencePolicy(self.policy)
        return self.reference

    def state_dict(self) -> dict[str, Any]:
        """Return state besides the weights and the optimiser's: the reference and the critic's units."""
        reference = None if self.reference is None else self.reference.state_dict()
        return {"reference": reference} | self.units.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.units.load_state_dict(state)
        self.reference = None
        if state["reference"] is not None:
            self.reference_policy().load_state_dict(state["reference"])

    def begin_from(self, state: dict[str, Any]) -> None:
        """Keep the critic's units of another run, whose weights the policy has been given.

        Args:
            state: `state_dict` of its learner.
        """
        self.units.load_state_dict(state)
