"""Base classes of reference tasks (vectorised environments): episodes, autoreset, seeded draws, normalisation."""

import abc
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from navi_core.config.policy import Spaces
from navi_core.errors import ConfigError
from navi_core.world.counter_random import Purpose, uniform
from navi_core.world.interface import Environment, EnvironmentWrapper, StepBatch, StepInfo

State = dict[str, Tensor]


class Task(Environment):
    """Abstract vectorised environment of one reference task: B rows with episode counters and returns.

    Args:
        num_envs: Rows B.
        seed: Seed of the episodes.
        first_row: Number of the first row among those of the run.

    Raises:
        ConfigError: `num_envs` below 1.
    """

    spaces: Spaces
    _episode: Tensor
    _length: Tensor
    _return: Tensor

    def __init__(self, num_envs: int, seed: int = 0, *, first_row: int = 0) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; it must be at least 1")
        self.num_envs, self.seed = num_envs, seed
        self.rows = torch.arange(first_row, first_row + num_envs)

    def _checked(self, actions: Tensor) -> Tensor:
        """Validate the shape of actions (B, axes) and return them on the CPU.

        Raises:
            ConfigError: The actions have another shape.
        """
        if tuple(actions.shape) != (self.num_envs, self.spaces.axes):
            raise ConfigError(f"actions of shape {tuple(actions.shape)}, expected {(self.num_envs, self.spaces.axes)}")
        return actions.detach().to("cpu")

    def _account(self, score: Tensor, reward: Tensor, done: Tensor) -> StepInfo:
        """Update episode counters and returns after a step, and return the step's info.

        Args:
            score: (B,) reward of the environment, summed to the episode return.
            reward: (B,) reward for the learner, possibly clipped.
            done: (B,) bool, rows whose episode ended; they begin the next one.
        """
        returns, length = self._return + score, self._length + 1
        self._episode = self._episode + done
        self._length, self._return = torch.where(done, 0, length), torch.where(done, 0.0, returns)
        return {
            "reward_terms": {"reward": reward},
            "speed": torch.zeros_like(reward),
            "episode_return": returns,
            "episode_length": length,
        }


class ReferenceTask(Task):
    """Abstract vectorised task with tensor state; random draws are a function of (seed, row, episode, number)."""

    limit: int
    """Time limit: decisions after which an episode is truncated."""

    def __init__(self, num_envs: int, seed: int = 0, *, first_row: int = 0) -> None:
        super().__init__(num_envs, seed, first_row=first_row)
        self.reset()

    @abc.abstractmethod
    def _begin(self, episode: Tensor) -> State:
        """Return the initial state of every row's episode (B,)."""

    @abc.abstractmethod
    def _advance(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Apply actions (B, axes): return the next state, rewards (B,) and termination flags (B,) bool."""

    @abc.abstractmethod
    def _observe(self, state: State) -> Tensor:
        """Compute observations (B, n) of a state."""

    def _draws(self, episode: Tensor, count: int) -> Tensor:
        """Draw uniform numbers (B, count) in [0, 1) for the rows' episodes (B,), counter-based."""
        rows, number = self.rows[:, None].expand(-1, count), torch.arange(count)
        return uniform(self.seed, Purpose.TASK, rows, episode[:, None], number)

    def reset(self) -> Tensor:
        """Reset all environments (rows) to their first episode; return observations (B, n)."""
        self._episode = torch.zeros_like(self.rows)
        self._length = torch.zeros_like(self.rows)
        self._return = torch.zeros(self.num_envs)
        self._state = self._begin(self._episode)
        return self._observe(self._state).float()

    def step(self, actions: Tensor) -> StepBatch:
        """Step the vectorised environment (all rows) once, with same-step autoreset.

        Args:
            actions: (B, axes); one of `spaces.choices` in each row, or unclamped numbers.

        Raises:
            ConfigError: The actions have another shape.
        """
        state, reward, terminated = self._advance(self._state, self._checked(actions))
        reward, final = reward.float(), self._observe(state).float()
        truncated = (self._length + 1 >= self.limit) & ~terminated
        done = terminated | truncated
        info = self._account(reward, reward, done)
        fresh = self._begin(self._episode)
        self._state = {
            name: torch.where(done.view(-1, *[1] * (x.ndim - 1)), fresh[name], x) for name, x in state.items()
        }
        return StepBatch(self._observe(self._state).float(), reward, terminated, truncated, final, info)

    def rows_state(self) -> tuple[Tensor, ...]:
        """Return the rows' state tensors, episode numbers, lengths and returns (B, …); a compiled step changes them."""
        return (*self._state.values(), self._episode, self._length, self._return)

    def state_dict(self) -> dict[str, Any]:
        """Return the full state of all rows: episodes, lengths, returns and task state."""
        return {
            "episode": self._episode.clone(),
            "length": self._length.clone(),
            "return": self._return.clone(),
            "state": {name: x.clone() for name, x in self._state.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the full state of all rows from a `state_dict`."""
        self._episode, self._length, self._return = (state[k].clone() for k in ("episode", "length", "return"))
        self._state = {name: x.clone() for name, x in state["state"].items()}


_BOUND = 10.0
_EPSILON = 1e-8


class NormalisedTask(EnvironmentWrapper):
    """Environment wrapper that normalises vector observations by running mean and variance, bounded by ±10.

    The usual preprocessing of tasks with quantities of different scale, such as those of MuJoCo: (x − mean) /
    √(variance + ε), with moments of all rows merged in float64 (Chan et al. 1979). The moments belong to the
    environment, so the collector stores the normalised observations. Each process of a run keeps the moments of its
    own rows.

    Args:
        task: The task.

    Attributes:
        mean: (n,) float64 of all observations so far.
        variance: (n,) float64, population.
        count: Observations so far.

    Raises:
        ConfigError: The task's observations are images.
    """

    spaces: Spaces

    def __init__(self, task: Environment) -> None:
        super().__init__(task)
        spaces = self.spaces
        if spaces.shape:
            raise ConfigError("normalise_observations is for vectors; pictures are divided by 255 in the network")
        self.spaces = replace(spaces, scale=())
        self.mean = torch.zeros(spaces.observation, dtype=torch.float64)
        self.variance = torch.ones(spaces.observation, dtype=torch.float64)
        self.count = 0

    def reset(self) -> Tensor:
        """Reset all environments (rows) to their first episode; return normalised observations (B, n)."""
        return self._seen(self.env.reset())

    def step(self, actions: Tensor) -> StepBatch:
        """Step the vectorised environment (all rows) once; observations normalised, rewards and returns unchanged."""
        batch = self.env.step(actions)
        return replace(batch, obs=self._seen(batch.obs), ended_obs=self._scaled(batch.ended_obs))

    def observe(self) -> Tensor:
        """Return the current observations (B, n), normalised."""
        return self._scaled(self.env.observe())

    def state_dict(self) -> dict[str, Any]:
        """Return the task's state and the running moments."""
        moments = {"mean": self.mean.clone(), "variance": self.variance.clone(), "count": self.count}
        return {"task": self.env.state_dict(), "moments": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the task's state and the running moments from a `state_dict`."""
        moments = state["moments"]
        self.mean, self.variance = moments["mean"].clone(), moments["variance"].clone()
        self.count = int(moments["count"])
        self.env.load_state_dict(state["task"])

    def _seen(self, obs: Tensor) -> Tensor:
        """Update the running moments with observations (B, n), then return them normalised."""
        values = obs.double()
        count, mean = len(values), values.mean(0)
        total, delta = self.count + count, mean - self.mean
        squares = self.variance * self.count + (values - mean).square().sum(0)
        squares = squares + delta.square() * self.count * count / total
        self.mean = self.mean + delta * count / total
        self.variance, self.count = squares / total, total
        return self._scaled(obs)

    def _scaled(self, obs: Tensor) -> Tensor:
        return ((obs.double() - self.mean) / (self.variance + _EPSILON).sqrt()).clamp(-_BOUND, _BOUND).float()
