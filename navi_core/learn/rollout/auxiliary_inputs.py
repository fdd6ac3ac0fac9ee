"""Auxiliary inputs of the policy: previous step, occupancy-map features, goal, and privileged critic inputs."""

from typing import Any

import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.config.policy import ANTICIPATED, OCCUPANCY_INPUTS
from navi_core.pilots.shield import Shield
from navi_core.policy.heads import PRIVILEGED
from navi_core.policy.navigation_policy import AUX_INPUTS
from navi_core.record import StageTimer
from navi_core.world.interface import Environment, StepBatch, StepInfo
from navi_core.world.occupancy_memory import OccupancyMemory, pose_rows


class AuxiliaryInputs:
    """Builder of the policy's auxiliary input (B, A) for every decision.

    The columns are reward, loop similarity and curiosity of the previous step; features of the occupancy memory; the
    relative goal; the privileged inputs of the critic; and the unseen floor that `policy.anticipation` predicts.

    Args:
        env: The environment.
        config: The run's configuration.
        obs: (B, …) first observations.
        privileged: Whether the critic has privileged inputs.
        device: Training device.
    """

    def __init__(
        self, env: Environment, config: TrainConfig, obs: Tensor, *, privileged: bool, device: torch.device
    ) -> None:
        self.env, self.device = env, device
        self.rows = env.num_envs
        cell = config.policy.map_cell
        self.memory = None
        if config.policy.place_memory:
            self.memory = OccupancyMemory.of_env(config.env, self.rows, cell, shielded=config.policy.shield)
        """Occupancy maps of the rows' flights, for a policy with an occupancy memory."""
        self._shield = None
        if self.memory is not None and config.policy.shield:
            self._shield = Shield(self.memory)
        step = torch.zeros((self.rows, AUX_INPUTS), device=device)
        features = None if self.memory is None else self._begin_maps(obs, torch.arange(self.rows))
        public = _joined(step, features, self._goals())
        self._public, self._privileged = public.shape[1], privileged
        self._anticipates = privileged and config.policy.anticipation > 0
        self.current = _joined(public, env.progress().to(device) if privileged else None, self._unseen())
        """(B, A) input of the next decision."""

    def update_maps(self, batch: StepBatch, done: Tensor, timer: StageTimer) -> Tensor | None:
        """Update the occupancy maps after a step, before any reset; return features (B, OCCUPANCY_INPUTS) or None."""
        if self.memory is None:
            return None
        # For rows whose episode continues, `final_obs` equals `obs`.
        seen = batch.final_obs if bool(done.any()) else batch.obs
        with timer("memory_query"):
            pose = pose_rows(batch.info["position"], batch.info["yaw"])
            goal, age = batch.info.get("goal"), batch.info.get("scan_age")
            features = self.memory.follow(seen, pose, torch.arange(self.rows), goal, age)
            return features.to(self.device)

    def shielded(self, action: Tensor, obs: Tensor) -> Tensor:
        """Return the actions (B, 4) that are flown: those of the policy, slowed by its shield if it has one."""
        if self._shield is None:
            return action
        return self._shield.apply(action, obs, self.env.scan_age, bodies=self.env.bodies)

    def privileged(self, info: StepInfo) -> Tensor | None:
        """Compute the critic's privileged inputs (B, 3) after a step, before any reset; None for a critic without.

        They are updated incrementally: the previous inputs minus the area seen in this step. With goals the environment
        provides them.
        """
        if not self._privileged:
            return None
        area, fraction, decisions = self.current[:, self._public : self._public + PRIVILEGED].unbind(1)
        if "way" in info:
            way, near = info["way"].to(self.device), info["near"].to(self.device, area.dtype)
            return torch.stack((way, near, decisions + 1.0), dim=1)
        left = (area - info["reward_terms"]["view_gain"].to(self.device)).clamp_min(0.0)
        return torch.stack((left, fraction * left / area.clamp_min(1e-6), decisions + 1.0), dim=1)

    def at_end(self, step: Tensor, features: Tensor | None, privileged: Tensor | None, info: StepInfo) -> Tensor:
        """Concatenate the auxiliary input (B, A) of the final observation of a step, before any reset."""
        unseen = torch.zeros(len(step), ANTICIPATED, device=self.device) if self._anticipates else None
        return _joined(step, features, info["goal"].to(self.device) if "goal" in info else None, privileged, unseen)

    def advance(
        self, obs: Tensor, step: Tensor, features: Tensor | None, privileged: Tensor | None, done: Tensor
    ) -> None:
        """Build the next decision's auxiliary input; rows whose episode ended get that of their new episode.

        Args:
            obs: (B, …) observations after resets.
            step: (B, 3) reward, loop similarity and curiosity; changed in place.
            features: Result of `update_maps`; changed in place.
            privileged: Result of `privileged`.
            done: (B,) bool, rows whose episode ended.
        """
        step.masked_fill_(done[:, None], 0.0)
        if features is not None:
            rows = done.nonzero().squeeze(1)
            if len(rows):
                features[rows] = self._begin_maps(obs, rows.cpu())
        # On the CPU the check is free, and the environment's count takes a tenth of a step.
        if privileged is not None and (self.device.type != "cpu" or bool(done.any())):
            privileged = torch.where(done[:, None], self.env.progress().to(self.device), privileged)
        self.current = _joined(step, features, self._goals(), privileged, self._unseen())

    def restart(self, obs: Tensor) -> None:
        """Reset the auxiliary input and the occupancy maps of all rows for new episodes."""
        self.current[:, :AUX_INPUTS] = 0.0
        if self.memory is not None:
            features = self._begin_maps(obs, torch.arange(self.rows))
            self.current[:, AUX_INPUTS : AUX_INPUTS + OCCUPANCY_INPUTS] = features

    def _begin_maps(self, obs: Tensor, rows: Tensor) -> Tensor:
        """Reset the occupancy maps of some rows (n,) and return their features (n, OCCUPANCY_INPUTS)."""
        assert self.memory is not None
        now = self.env.poses()
        pose = pose_rows(now["position"], now["yaw"])
        goals = self._goals()
        goal = None if goals is None else goals[rows.to(self.device)]
        features = self.memory.begin(obs[rows.to(obs.device)], rows, pose[rows.to(pose.device)], goal)
        return features.to(self.device)

    def _unseen(self) -> Tensor | None:
        """Return what `policy.anticipation` learns to predict, (B, ANTICIPATED); None without."""
        return self.env.unseen_around().to(self.device) if self._anticipates else None

    def _goals(self) -> Tensor | None:
        """Return the relative goals (B, 4) on the training device; None for an environment without."""
        goals = self.env.relative_goals()
        return None if goals is None else goals.to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the current auxiliary input and the occupancy maps."""
        return {"aux": self.current} | ({} if self.memory is None else {"places": self.memory.state_dict()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the auxiliary input and the occupancy maps from a `state_dict`."""
        self.current = state["aux"].to(self.device).clone()
        if self.memory is not None:
            self.memory.load_state_dict(state["places"])


def _joined(*parts: Tensor | None) -> Tensor:
    """Concatenate the parts that are not None along the last axis; a single part is returned as it is."""
    kept = [part for part in parts if part is not None]
    return torch.cat(kept, dim=-1) if len(kept) > 1 else kept[0]
