"""Base of tasks over external environments: seeds by row and episode, autoreset, returns, no saved state."""

import abc
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError
from navi_core.world.counter_random import Purpose, words
from navi_core.world.interface import Environment, StepBatch, StepInfo


class ExternalTask(Environment):
    """B environments of one kind, each restarted in the step in which its episode ends.

    An episode's seed is a function of (seed, row, episode). What an environment holds cannot be saved: after
    `load_state_dict` every row begins the episode after the one it was in.

    Args:
        num_envs: Rows B.
        seed: Seed of the episodes.
        first_row: Number of the first row among those of the run.

    Raises:
        ConfigError: `num_envs` below 1.
    """

    spaces: Spaces
    restarts = True
    """`load_state_dict` begins new episodes; what was seen before it is not what is seen after."""
    _obs: np.ndarray
    _length: Tensor
    _return: Tensor

    def __init__(self, num_envs: int, seed: int, first_row: int) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; it must be at least 1")
        self.num_envs, self.seed = num_envs, seed
        self.rows = torch.arange(first_row, first_row + num_envs)

    @abc.abstractmethod
    def _begin(self, rows: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """Begin new episodes in rows (B,) bool, each with its seed of (B,); return what all rows see."""

    def reset(self) -> Tensor:
        """Begin every row's first episode; returns (B, …) observations."""
        self._episode = torch.zeros_like(self.rows)
        return self._begin_all()

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers of the episodes."""
        return {"episode": self._episode.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the episodes after those that `state_dict` was taken in; the observation is that of their start."""
        self._episode = state["episode"].clone() + 1
        self._begin_all()

    def observe(self) -> Tensor:
        """Return the present observations (B, …)."""
        return torch.from_numpy(self._obs.copy())

    def _numbers(self, actions: Tensor) -> np.ndarray:
        """Return actions (B, axes) as an array.

        Raises:
            ConfigError: They have another shape.
        """
        if tuple(actions.shape) != (self.num_envs, self.spaces.axes):
            raise ConfigError(f"actions of shape {tuple(actions.shape)}, expected {(self.num_envs, self.spaces.axes)}")
        given: np.ndarray = actions.detach().cpu().numpy()
        return given

    def _stepped(self, final: np.ndarray, score: Tensor, reward: Tensor, over: Tensor, cut: Tensor) -> StepBatch:
        """Account for a step and restart what has ended.

        Args:
            final: (B, …) what is seen after the step.
            score: (B,) what the environment paid, of which returns are made.
            reward: (B,) what the learner is shown.
            over: (B,) bool, terminated.
            cut: (B,) bool, truncated.
        """
        cut = cut & ~over
        done = over | cut
        returns, length = self._return + score, self._length + 1
        info: StepInfo = {
            "reward_terms": {"reward": reward},
            "speed": torch.zeros_like(reward),
            "episode_return": returns,
            "episode_length": length,
        }
        self._episode = self._episode + done
        self._length, self._return = torch.where(done, 0, length), torch.where(done, 0.0, returns)
        self._obs = final.copy()
        if bool(done.any()):
            self._obs = self._begin(done.numpy(), self._seeds())
        return StepBatch(self.observe(), reward, over, cut, torch.from_numpy(final), info)

    def _seeds(self) -> np.ndarray:
        """Return the seeds (B,) of the rows' present episodes."""
        bits: np.ndarray = words(self.seed, Purpose.TASK, self.rows, self._episode).numpy()
        return bits & (2**31 - 1)

    def _begin_all(self) -> Tensor:
        self._length = torch.zeros_like(self.rows)
        self._return = torch.zeros(self.num_envs)
        self._obs = self._begin(np.ones(self.num_envs, dtype=bool), self._seeds())
        return self.observe()
