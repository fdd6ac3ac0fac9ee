"""Shadow evaluation: a candidate and the version in service fly from the same starts in simulation."""

from dataclasses import dataclass

import torch

from navi_core.config import EnvConfig
from navi_core.pilots.recovery import Recovery
from navi_core.policy import NavigationPolicy
from navi_core.world import Field, NavigationEnv
from navi_core.world.occupancy_memory import OccupancyMemory, pose_rows


@dataclass(frozen=True)
class ShadowResult:
    """Result of a shadow evaluation.

    Attributes:
        passed: Whether the candidate may serve: not worse by more than one standard error of the paired
            difference, and no more collisions than a fifth more.
        difference: Mean of the candidate's reward per decision minus the other's.
        error: Standard error of that mean over drones.
        collisions: Of the candidate and of the other.
    """

    passed: bool
    difference: float
    error: float
    collisions: tuple[int, int]


class ShadowFlight:
    """Flies two policies from the same starts in the gate's scenes.

    Args:
        field: Scenes.
        env: Observation, dynamics, reward.
        rows: Drones.
        decisions: Of each drone.
        seed: Of the starts; another one for every call.
    """

    def __init__(self, field: Field, env: EnvConfig, rows: int, decisions: int, seed: int = 0) -> None:
        self._env = NavigationEnv(field, rows, env.model_copy(update={"stagger": False}), seed=seed)
        self._decisions, self._seed, self._calls = decisions, seed, 0

    @property
    def has_goals(self) -> bool:
        """Whether its flights have goals."""
        return self._env.goals is not None

    def __call__(self, candidate: NavigationPolicy, serving: NavigationPolicy) -> ShadowResult:
        """Fly both and compare."""
        self._calls += 1
        seed = self._seed + self._calls
        rewards, hits = self._fly(candidate, seed)
        other_rewards, other_hits = self._fly(serving, seed)
        gain = rewards - other_rewards
        error = float(gain.std() / len(gain) ** 0.5) if len(gain) > 1 else 0.0
        difference = float(gain.mean())
        passed = difference + error >= 0.0 and hits <= other_hits + max(2, other_hits // 5)
        return ShadowResult(passed, difference, error, (hits, other_hits))

    @torch.no_grad()
    def _fly(self, policy: NavigationPolicy, seed: int) -> tuple[torch.Tensor, int]:
        """Return (B,) mean rewards per decision and the number of collisions of a deterministic flight."""
        rows = self._env.num_envs
        obs, state, step = self._env.reset(seed), policy.initial_state(rows), torch.zeros(rows, 3)
        occupancy = OccupancyMemory.of_env(self._env.config, rows) if policy.config.place_memory else None
        recovery = None
        if policy.config.recovery:
            recovery = Recovery(rows, self._env.config.dynamics.decision_hz, seed)
        keys = torch.arange(rows)
        reset, total, hits = torch.ones(rows, dtype=torch.bool), torch.zeros(rows), 0
        for step_number in range(self._decisions):
            pose = self._poses()
            goal = self._env.relative_goals() if policy.config.goal else None
            inputs = [step] if occupancy is None else [step, occupancy.look(obs, pose, reset, goal=goal)]
            aux = torch.cat(inputs if goal is None else [*inputs, goal], dim=1)
            out = policy.act(obs, aux, state, reset, None)
            action = out.action
            if recovery is not None:
                action = recovery.act(action, pose, reset, keys, torch.full_like(keys, step_number))
            batch = self._env.step(action)
            obs, state, reset = batch.obs, out.state, batch.truncated | batch.terminated
            total += batch.reward
            hits += int(batch.info["collision"].sum())
        return total / self._decisions, hits

    def _poses(self) -> torch.Tensor:
        now = self._env.poses()
        return pose_rows(now["position"], now["yaw"])
