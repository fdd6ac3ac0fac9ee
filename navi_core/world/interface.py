"""Environment interface for learners, viewers and evaluations, its wrapper, and the result of a step."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import torch

from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError

if TYPE_CHECKING:
    from navi_core.world.field import Field


class StepInfo(TypedDict):
    """Info dictionary of a step, all values before any reset; the optional ones depend on the environment.

    Every environment has the first four keys. Flight adds those up to `scene_index`, point-goal flight the rest.
    """

    reward_terms: dict[str, torch.Tensor]
    """(B,) unweighted, by name."""
    speed: torch.Tensor
    """(B,) [m/s]."""
    episode_return: torch.Tensor
    """(B,) sum of the episode's rewards."""
    episode_length: torch.Tensor
    """(B,) decisions of the episode."""
    collision: NotRequired[torch.Tensor]
    """(B,) bool."""
    void: NotRequired[torch.Tensor]
    """(B,) bool: the drone has left the scene."""
    action_fault: NotRequired[torch.Tensor]
    """(B,) bool: the action was not finite."""
    position: NotRequired[torch.Tensor]
    """(B, 3) [m]."""
    yaw: NotRequired[torch.Tensor]
    """(B,) [rad]."""
    scene_index: NotRequired[torch.Tensor]
    """(B,)."""
    scan_age: NotRequired[torch.Tensor]
    """(B,) int64 age of the observation [decisions]; only of a sensor with a delay or a period."""
    success: NotRequired[torch.Tensor]
    """(B,) bool: the goal is reached."""
    goal: NotRequired[torch.Tensor]
    """(B, 4) as `relative_goal`."""
    way: NotRequired[torch.Tensor]
    """(B,) length of the shortest path left [m]."""
    near: NotRequired[torch.Tensor]
    """(B,) bool: near enough to stop."""


class Poses(TypedDict):
    """Dictionary of the drones' poses, one per row."""

    position: torch.Tensor
    """(B, 3) [m]."""
    yaw: torch.Tensor
    """(B,) [rad]."""
    scene_index: torch.Tensor
    """(B,)."""


@dataclass(frozen=True)
class StepBatch:
    """Result of one environment step, B rows. The tensors are the caller's: later steps do not touch them.

    Attributes:
        obs: (B, …), of flight (B, 3, Az, El) float32; of the new episode where one ended.
        reward: (B,) float32 weighted environment reward.
        terminated: (B,) bool: the goal is reached, the task is over, or the void with `void_ends: terminated`.
        truncated: (B,) bool; time limit, or the void.
        ended_obs: (B, …) observation after the step in the rows whose episode ended; the other rows hold anything.
            `final_obs` is complete.
        info: Details.
    """

    obs: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    ended_obs: torch.Tensor
    info: StepInfo

    @cached_property
    def final_obs(self) -> torch.Tensor:
        """(B, …) observation after the step, before any reset; built on first access.

        It is `obs` itself where no episode ended.
        """
        if self.ended_obs is self.obs:
            return self.obs
        ends = self.truncated | self.terminated
        return torch.where(ends.view(-1, *[1] * (self.obs.ndim - 1)), self.ended_obs, self.obs)


class Environment(abc.ABC):
    """Abstract vectorised environment of B rows; a row is reset in the step in which its episode ends (autoreset).

    The first four methods are required. The others have defaults; what an environment lacks raises `ConfigError`.
    """

    num_envs: int
    """Rows B."""
    spaces: Spaces | None = None
    """Observations and actions of a reference task; None for flight."""
    restarts: bool = False
    """Whether `load_state_dict` begins new episodes, since the present ones cannot be saved."""
    field: Field | None = None
    """Scenes that are flown in; None for reference tasks."""

    @abc.abstractmethod
    def reset(self) -> torch.Tensor:
        """Reset all environments (rows); returns (B, …) observations."""

    @abc.abstractmethod
    def step(self, actions: torch.Tensor) -> StepBatch:
        """Step the vectorised environment (all rows) once; actions (B, axes)."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the environment's full state, on which the rows' future depends."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the environment from a `state_dict`."""

    def observe(self) -> torch.Tensor:
        """Return the current (B, …) observations; required where `restarts`."""
        raise self._lacks("observe")

    def progress(self) -> torch.Tensor:
        """Return the (B, 3) privileged inputs of the critic: work left in the episodes and decisions flown."""
        raise self._lacks("progress")

    def unseen_around(self) -> torch.Tensor:
        """Return (B, ANTICIPATED) where unseen floor lies around the drones, for `policy.anticipation`."""
        raise self._lacks("unseen_around")

    def poses(self) -> Poses:
        """Return the current poses of the drones."""
        raise self._lacks("poses")

    def relative_goals(self) -> torch.Tensor | None:
        """Return the current goals (B, 4) in the drones' frames, as `world.goals.relative_goal`; None without goals."""
        return None

    @property
    def scan_age(self) -> torch.Tensor | None:
        """(B,) int64 ages of the latest observations [decisions]; None for present ones."""
        return None

    @property
    def bodies(self) -> torch.Tensor | None:
        """(B, 3) factor of the speed limits, radius [m] and smoothing of each row; None where all have the drone's."""
        return None

    def _lacks(self, name: str) -> ConfigError:
        return ConfigError(f"environment {type(self).__name__} has no {name}()")


class EnvironmentWrapper(Environment):
    """Wrapper that delegates to another environment; subclasses override what they change.

    Args:
        env: Wrapped environment, as `env` in subclasses.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.num_envs, self.spaces, self.restarts, self.field = env.num_envs, env.spaces, env.restarts, env.field

    def reset(self) -> torch.Tensor:
        """Reset all environments (rows); returns (B, …) observations."""
        return self.env.reset()

    def step(self, actions: torch.Tensor) -> StepBatch:
        """Step the vectorised environment (all rows) once; actions (B, axes)."""
        return self.env.step(actions)

    def state_dict(self) -> dict[str, Any]:
        """Return the environment's full state, on which the rows' future depends."""
        return self.env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the environment from a `state_dict`."""
        self.env.load_state_dict(state)

    def observe(self) -> torch.Tensor:
        """Return the current (B, …) observations."""
        return self.env.observe()

    def progress(self) -> torch.Tensor:
        """Return the (B, 3) privileged inputs of the critic, see `Environment.progress`."""
        return self.env.progress()

    def unseen_around(self) -> torch.Tensor:
        """Return (B, ANTICIPATED) where unseen floor lies around the drones."""
        return self.env.unseen_around()

    def poses(self) -> Poses:
        """Return the current poses of the drones."""
        return self.env.poses()

    def relative_goals(self) -> torch.Tensor | None:
        """Return the current goals (B, 4) in the drones' frames; None without goals."""
        return self.env.relative_goals()

    @property
    def scan_age(self) -> torch.Tensor | None:
        """(B,) ages of the latest observations [decisions]; None for present ones."""
        return self.env.scan_age

    @property
    def bodies(self) -> torch.Tensor | None:
        """(B, 3) bodies of the rows; None where all have the drone's."""
        return self.env.bodies
