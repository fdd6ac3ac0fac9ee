"""Environments of Gymnasium as reference tasks: vectors in, a choice or a vector out."""

from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError
from navi_core.tasks.external_task import ExternalTask
from navi_core.world.interface import StepBatch

PREFIX = "gymnasium:"
"""Prefix of an environment's id in the name of a task."""


class GymnasiumEnv(ExternalTask):
    """B environments of one id, stepped one after another.

    Args:
        name: Id of a registered environment, such as LunarLander-v3, or module:id.
        num_envs: Rows B.
        seed: Seed of the episodes.
        first_row: Number of the first row among those of the run.
        options: Of the environment.

    Raises:
        ConfigError: gymnasium or the environment is not installed, or its spaces are others than vectors and choices.
    """

    def __init__(self, name: str, num_envs: int, seed: int = 0, *, first_row: int = 0, **options: Any) -> None:  # noqa: ANN401 (keywords of the environment)
        try:
            import gymnasium
        except ImportError:
            raise ConfigError(f"{PREFIX}{name} needs gymnasium; pip install -e '.[gym]'") from None
        super().__init__(num_envs, seed, first_row)
        try:
            self._envs = [gymnasium.make(name, **options) for _ in range(num_envs)]
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise ConfigError(f"gymnasium cannot make {name}: {error}{_extra(gymnasium, name)}") from None
        seen, acted = self._envs[0].observation_space, self._envs[0].action_space
        if not isinstance(seen, gymnasium.spaces.Box) or len(seen.shape) != 1:
            raise ConfigError(f"{name} shows {seen}; allowed: a Box of one dimension")
        if isinstance(acted, gymnasium.spaces.Discrete):
            first = int(acted.start)
            self.spaces = Spaces(seen.shape[0], 1, tuple((float(first + i),) for i in range(int(acted.n))))
            self._low = self._high = None
        elif isinstance(acted, gymnasium.spaces.Box) and len(acted.shape) == 1 and acted.is_bounded():
            self.spaces = Spaces(seen.shape[0], acted.shape[0])
            self._low, self._high = acted.low, acted.high
        else:
            raise ConfigError(f"{name} takes {acted}; allowed: Discrete, or a bounded Box of one dimension")
        self._obs = np.zeros((num_envs, self.spaces.observation), np.float32)
        self.reset()

    def step(self, actions: Tensor) -> StepBatch:
        """Advance every row by one decision.

        Args:
            actions: (B, axes); one of `spaces.choices` in each row, or numbers in (−1, 1) for the whole range.

        Raises:
            ConfigError: The actions have another shape.
        """
        given = self._numbers(actions)
        final, rewards, flags = np.empty_like(self._obs), np.empty(self.num_envs, np.float32), []
        for row, env in enumerate(self._envs):
            seen, paid, over, cut, _ = env.step(self._action(given[row]))
            final[row], rewards[row] = seen, paid
            flags.append((over, cut))
        terminated, truncated = torch.tensor(flags).unbind(1)
        reward = torch.from_numpy(rewards)
        return self._stepped(final, reward, reward, terminated, truncated)

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()

    def _action(self, given: np.ndarray) -> int | np.ndarray:
        if self._low is None or self._high is None:
            return round(float(given[0]))
        share = (np.clip(given, -1.0, 1.0) + 1.0) / 2.0
        action: np.ndarray = (self._low + share * (self._high - self._low)).astype(self._low.dtype)
        return action

    def _begin(self, rows: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        every = self._obs.copy()
        for row in np.flatnonzero(rows):
            every[row] = self._envs[row].reset(seed=int(seeds[row]))[0]
        return every


def _extra(gymnasium: ModuleType, name: str) -> str:
    """Return which extra an environment's library comes with, as the end of a message; empty where none does."""
    spec = gymnasium.registry.get(name)
    entry = str(spec.entry_point) if spec is not None else ""
    found = next((extra for extra in ("mujoco", "box2d") if f".{extra}" in entry), None)
    return f"; pip install -e '.[{found}]'" if found is not None else ""
