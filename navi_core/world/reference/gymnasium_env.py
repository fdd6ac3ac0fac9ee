"""Environments of Gymnasium as reference tasks: vectors in, a choice or a vector out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from navi_core.config.spaces import Spaces
from navi_core.errors import ConfigError
from navi_core.world.counter_random import Purpose, words
from navi_core.world.reference.task import TaskBatch

__all__ = ["PREFIX", "GymnasiumEnv"]

PREFIX = "gymnasium:"
"""What stands before an environment's id in the name of a task."""


class GymnasiumEnv:
    """B environments of one id, stepped one after another, each restarted in the step in which its episode ends.

    An episode's seed is a function of (seed, row, episode). What an environment holds cannot be saved: after
    `load_state_dict` every row begins the episode after the one it was in.

    Args:
        name: Id of a registered environment, such as LunarLander-v3, or module:id.
        num_envs: Rows B.
        seed: Seed of the episodes.
        first_row: Number of the first row among those of the run.
        options: Of the environment.

    Raises:
        ConfigError: gymnasium or the environment is not installed, or its spaces are others than vectors and choices.
    """

    _length: Tensor
    _return: Tensor
    _obs: np.ndarray
    restarts = True
    """`load_state_dict` begins new episodes; what was seen before it is not what is seen after."""

    def __init__(self, name: str, num_envs: int, seed: int = 0, *, first_row: int = 0, **options: Any) -> None:
        try:
            import gymnasium
        except ImportError:
            raise ConfigError(f"{PREFIX}{name} needs gymnasium; pip install 'navi[gym]'") from None
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; it must be at least 1")
        try:
            self._envs = [gymnasium.make(name, **options) for _ in range(num_envs)]
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise ConfigError(f"gymnasium cannot make {name}: {error}") from None
        self.num_envs, self.seed = num_envs, seed
        self.rows = torch.arange(first_row, first_row + num_envs)
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
        self.reset()

    def reset(self) -> Tensor:
        """Begin every row's first episode; returns (B, n) observations."""
        self._episode = torch.zeros_like(self.rows)
        return self._begin_all()

    def step(self, actions: Tensor) -> TaskBatch:
        """Advance every row by one decision.

        Args:
            actions: (B, axes); one of `spaces.choices` in each row, or numbers in (−1, 1) for the whole range.

        Raises:
            ConfigError: The actions have another shape.
        """
        if tuple(actions.shape) != (self.num_envs, self.spaces.axes):
            raise ConfigError(f"actions of shape {tuple(actions.shape)}, expected {(self.num_envs, self.spaces.axes)}")
        given = actions.detach().cpu().numpy()
        final, rewards, flags = np.empty_like(self._obs), np.empty(self.num_envs, np.float32), []
        for row, env in enumerate(self._envs):
            seen, paid, over, cut, _ = env.step(self._action(given[row]))
            final[row], rewards[row] = seen, paid
            flags.append((over, cut and not over))
        terminated, truncated = torch.tensor(flags).unbind(1)
        done = terminated | truncated
        reward = torch.from_numpy(rewards)
        returns, length = self._return + reward, self._length + 1
        info = {
            "reward_terms": {"reward": reward},
            "speed": torch.zeros_like(reward),
            "episode_return": returns,
            "episode_length": length,
        }
        self._episode = self._episode + done
        self._length, self._return = torch.where(done, 0, length), torch.where(done, 0.0, returns)
        self._obs = final.copy()
        for row in torch.nonzero(done).flatten().tolist():
            self._obs[row] = self._begin(row)
        obs = torch.from_numpy(self._obs.copy())
        return TaskBatch(obs, reward, terminated, truncated, torch.from_numpy(final), info)

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers of the episodes."""
        return {"episode": self._episode.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the episodes after those that `state_dict` was taken in; the observation is that of their start."""
        self._episode = state["episode"].clone() + 1
        self._begin_all()

    def observe(self) -> Tensor:
        """Return the present observations (B, n)."""
        return torch.from_numpy(self._obs.copy())

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()

    def _action(self, given: np.ndarray) -> Any:
        if self._low is None or self._high is None:
            return round(float(given[0]))
        share = (np.clip(given, -1.0, 1.0) + 1.0) / 2.0
        return (self._low + share * (self._high - self._low)).astype(self._low.dtype)

    def _begin(self, row: int) -> np.ndarray:
        bits = int(words(self.seed, Purpose.TASK, self.rows[row : row + 1], self._episode[row])[0])
        seen, _ = self._envs[row].reset(seed=bits & (2**31 - 1))
        return np.asarray(seen, dtype=np.float32)

    def _begin_all(self) -> Tensor:
        self._length = torch.zeros_like(self.rows)
        self._return = torch.zeros(self.num_envs)
        self._obs = np.stack([self._begin(row) for row in range(self.num_envs)])
        return torch.from_numpy(self._obs.copy())
