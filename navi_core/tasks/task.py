"""Base of the reference tasks: rows, episodes, autoreset in the same step, counter-based draws."""

import abc
from typing import Any

import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError
from navi_core.world.interface import Environment, StepBatch, StepInfo

State = dict[str, Tensor]


class ReferenceTask(Environment):
    """B rows of one task.

    Args:
        num_envs: Rows B.
        seed: Seed; a draw is a function of (seed, row, episode, number).
        first_row: Number of the first row among those of the run.

    Raises:
        ConfigError: `num_envs` below 1.
    """

    spaces: Spaces
    limit: int
    """Decisions after which an episode is cut off."""

    def __init__(self, num_envs: int, seed: int = 0, *, first_row: int = 0) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; it must be at least 1")
        self.num_envs, self.seed = num_envs, seed
        self.rows = torch.arange(first_row, first_row + num_envs)
        self.reset()

    @abc.abstractmethod
    def _begin(self, episode: Tensor) -> State:
        """Return every row's state at the start of its episode (B,)."""

    @abc.abstractmethod
    def _advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Return the state after actions (B, axes), rewards (B,) and whether each episode is over (B,) bool."""

    @abc.abstractmethod
    def _observe(self, state: State) -> Tensor:
        """Return observations (B, n)."""

    def reset(self) -> Tensor:
        """Begin every row's first episode; returns (B, n) observations."""
        self._episode = torch.zeros_like(self.rows)
        self._length = torch.zeros_like(self.rows)
        self._return = torch.zeros(self.num_envs)
        self._state = self._begin(self._episode)
        return self._observe(self._state).float()

    def step(self, actions: Tensor) -> StepBatch:
        """Advance every row by one decision.

        Args:
            actions: (B, axes); one of `spaces.choices` in each row, or unclamped numbers.

        Raises:
            ConfigError: The actions have another shape.
        """
        if tuple(actions.shape) != (self.num_envs, self.spaces.axes):
            raise ConfigError(f"actions of shape {tuple(actions.shape)}, expected {(self.num_envs, self.spaces.axes)}")
        state, reward, terminated = self._advance(self._state, actions.detach().to("cpu"))
        reward, self._length = reward.float(), self._length + 1
        truncated = (self._length >= self.limit) & ~terminated
        done = terminated | truncated
        final = self._observe(state).float()
        returns = self._return + reward
        info: StepInfo = {
            "reward_terms": {"reward": reward},
            "speed": torch.zeros_like(reward),
            "episode_return": returns,
            "episode_length": self._length,
        }
        self._episode = self._episode + done
        self._length = torch.where(done, 0, self._length)
        self._return = torch.where(done, 0.0, returns)
        fresh = self._begin(self._episode)
        self._state = {
            name: torch.where(done.view(-1, *[1] * (x.ndim - 1)), fresh[name], x) for name, x in state.items()
        }
        return StepBatch(self._observe(self._state).float(), reward, terminated, truncated, final, info)

    def rows_state(self) -> tuple[Tensor, ...]:
        """Return the states, episode numbers, lengths and returns (B, …) of the rows; a compiled step changes them."""
        return (*self._state.values(), self._episode, self._length, self._return)

    def state_dict(self) -> dict[str, Any]:
        """Return everything a row's future depends on."""
        return {
            "episode": self._episode.clone(),
            "length": self._length.clone(),
            "return": self._return.clone(),
            "state": {name: x.clone() for name, x in self._state.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self._episode, self._length, self._return = (state[k].clone() for k in ("episode", "length", "return"))
        self._state = {name: x.clone() for name, x in state["state"].items()}
