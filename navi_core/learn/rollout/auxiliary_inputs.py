"""Auxiliary inputs of the policy: the previous step, the occupancy memory, the goal, and privileged inputs."""

from typing import Any

import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.config.policy import OCCUPANCY_INPUTS
from navi_core.policy.navigation_policy import AUX_INPUTS
from navi_core.record import StageTimer
from navi_core.world.interface import Environment, StepBatch, StepInfo
from navi_core.world.occupancy_memory import OccupancyMemory, pose_rows


class AuxiliaryInputs:
    """Composes the auxiliary input (B, A) of every decision.

    Its columns are reward, loop similarity and curiosity of the step before; features of the occupancy memory; the
    relative goal; and, last, the privileged inputs of the critic.

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
        self.memory = OccupancyMemory.of_env(config.env, self.rows) if config.policy.place_memory else None
        """Occupancy maps of the rows' flights, for a policy with an occupancy memory."""
        step = torch.zeros((self.rows, AUX_INPUTS), device=device)
        features = None if self.memory is None else self._begin_maps(obs, torch.arange(self.rows))
        public = _joined(step, features, self._goals())
        self._public, self._privileged = public.shape[1], privileged
        self.current = _joined(public, env.progress().to(device) if privileged else None)
        """(B, A) input of the next decision."""

    def update_maps(self, batch: StepBatch, done: Tensor, timer: StageTimer) -> Tensor | None:
        """Return features (B, OCCUPANCY_INPUTS) of the maps after a step, before any reset; None without maps."""
        if self.memory is None:
            return None
        # Rows that go on see in `final_obs` what they see in `obs`.
        seen = batch.final_obs if bool(done.any()) else batch.obs
        with timer("memory_query"):
            pose = pose_rows(batch.info["position"], batch.info["yaw"])
            features = self.memory.follow(seen, pose, torch.arange(self.rows), batch.info.get("goal"))
            return features.to(self.device)

    def privileged(self, info: StepInfo) -> Tensor | None:
        """Return privileged inputs (B, 3) after a step, before any reset; None for a critic without.

        They are those of the step before, less the area seen in this one. With goals the environment has them.
        """
        if not self._privileged:
            return None
        area, fraction, decisions = self.current[:, self._public :].unbind(1)
        if "way" in info:
            way, near = info["way"].to(self.device), info["near"].to(self.device, area.dtype)
            return torch.stack((way, near, decisions + 1.0), dim=1)
        left = (area - info["reward_terms"]["view_gain"].to(self.device)).clamp_min(0.0)
        return torch.stack((left, fraction * left / area.clamp_min(1e-6), decisions + 1.0), dim=1)

    def at_end(self, step: Tensor, features: Tensor | None, privileged: Tensor | None, info: StepInfo) -> Tensor:
        """Return the input (B, A) that follows a step, before any reset."""
        return _joined(step, features, info["goal"].to(self.device) if "goal" in info else None, privileged)

    def advance(
        self, obs: Tensor, step: Tensor, features: Tensor | None, privileged: Tensor | None, done: Tensor
    ) -> None:
        """Compose the next decision's input: rows whose episode ended get that of their new one.

        Args:
            obs: (B, …) observations after resets.
            step: (B, 3) reward, loop similarity and curiosity; changed in place.
            features: Of `update_maps`; changed in place.
            privileged: Of `privileged`.
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
        self.current = _joined(step, features, self._goals(), privileged)

    def restart(self, obs: Tensor) -> None:
        """Begin new episodes in all rows."""
        self.current[:, :AUX_INPUTS] = 0.0
        if self.memory is not None:
            features = self._begin_maps(obs, torch.arange(self.rows))
            self.current[:, AUX_INPUTS : AUX_INPUTS + OCCUPANCY_INPUTS] = features

    def _begin_maps(self, obs: Tensor, rows: Tensor) -> Tensor:
        """Begin the maps of some rows (n,) and return their features (n, OCCUPANCY_INPUTS)."""
        assert self.memory is not None
        now = self.env.poses()
        pose = pose_rows(now["position"], now["yaw"])
        goals = self._goals()
        goal = None if goals is None else goals[rows.to(self.device)]
        features = self.memory.begin(obs[rows.to(obs.device)], rows, pose[rows.to(pose.device)], goal)
        return features.to(self.device)

    def _goals(self) -> Tensor | None:
        """Return the goals (B, 4); None for an environment without."""
        goals = self.env.relative_goals()
        return None if goals is None else goals.to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the current input and the maps."""
        return {"aux": self.current} | ({} if self.memory is None else {"places": self.memory.state_dict()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.current = state["aux"].to(self.device).clone()
        if self.memory is not None:
            self.memory.load_state_dict(state["places"])


def _joined(*parts: Tensor | None) -> Tensor:
    """Return the columns of the parts that there are; one part alone as it is."""
    kept = [part for part in parts if part is not None]
    return torch.cat(kept, dim=-1) if len(kept) > 1 else kept[0]
