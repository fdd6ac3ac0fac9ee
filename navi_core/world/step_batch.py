"""The outcome of one step of an environment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

__all__ = ["StepBatch"]


@dataclass(frozen=True)
class StepBatch:
    """The outcome of one step. The tensors are the caller's: later steps do not touch them.

    Attributes:
        obs: (B, 3, Az, El) float32; of the new episode where one ended.
        reward: (B,) float32 weighted environment reward.
        terminated: (B,) bool: the goal is reached, or the void with `void_ends: terminated`.
        truncated: (B,) bool; time limit, or the void.
        ended_obs: (B, 3, Az, El) observation after the step in the rows whose episode ended; the other rows
            hold anything. `final_obs` is complete.
        info: "reward_terms" {name: (B,)}, "collision", "void", "action_fault" (B,) bool, "position" (B, 3),
            "yaw", "speed" (B,), "scene_index", "episode_return", "episode_length" (B,), all before any reset; of
            point-goal flight also "success" (B,) bool, "goal" (B, 4) as `relative_goal`, "way" (B,) left [m] and
            "near" (B,) bool: near enough to stop.
    """

    obs: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    ended_obs: torch.Tensor
    info: dict[str, Any]

    @cached_property
    def final_obs(self) -> torch.Tensor:
        """(B, 3, Az, El) observation after the step, before any reset; put together when first asked for.

        It is `obs` itself where no episode ended.
        """
        if self.ended_obs is self.obs:
            return self.obs
        ends = self.truncated | self.terminated
        return torch.where(ends[:, None, None, None], self.ended_obs, self.obs)
