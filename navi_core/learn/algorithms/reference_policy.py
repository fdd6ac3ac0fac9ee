"""The frozen reference policy: weights of an earlier time, with a recurrent state of its own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from navi_core.learn.rollout.storage import Rollout

__all__ = ["ReferencePolicy"]


class ReferencePolicy:
    """What the policy was when it was last synchronised.

    Its state walks through every rollout under its own weights, as if it had been flying along; where it missed
    one, it takes the acting policy's state at the rollout's start.

    Args:
        policy: What is copied.
    """

    def __init__(self, policy: Any) -> None:
        self.policy = copy.deepcopy(policy).requires_grad_(False).eval()
        self._state: tuple[Tensor, ...] | None = None

    def sync(self, policy: Any) -> None:
        """Take the weights of `policy`; the state is then the acting policy's."""
        self.policy.load_state_dict(policy.state_dict())
        self._state = None

    def miss(self) -> None:
        """Say that a rollout goes by without it."""
        self._state = None

    @torch.no_grad()
    def log_probs(self, rollout: Rollout) -> Tensor:
        """Return log π_ref of a rollout's actions, (T, B); to be asked once for every rollout, in their order."""
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
