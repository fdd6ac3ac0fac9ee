"""Rows of a task as numpy arrays that are updated in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from navi_core.errors import ConfigError
from navi_core.tasks import Acrobot, CartPole, reference_task
from navi_core.tasks.control_kernels import ACROBOT, CART_POLE, begin_rows, step_rows
from navi_core.world.counter_random import Purpose, stream_key
from navi_core.world.interface import Environment

__all__ = ["NativeRows", "Rows", "TaskRows", "first_returns", "open_rows"]

Array = np.ndarray


class Rows(Protocol):
    """What the fast path asks of B rows.

    Attributes:
        num_envs: B.
        actions: Number A of actions.
        scale: (n,) float32 usual magnitude of each number of an observation.
        obs: (B, n) float32 that the next decision is made on.
        final_obs: (B, n) float32 before any reset; valid in rows that were cut off.
        reward: (B,) float32 of the last decision.
        terminated: (B,) bool.
        truncated: (B,) bool.
        ended: (B,) float32 return of the episode that ended, NaN where none did.
    """

    num_envs: int
    actions: int
    scale: Array
    obs: Array
    final_obs: Array
    reward: Array
    terminated: Array
    truncated: Array
    ended: Array

    def step(self, actions: Array) -> None:
        """Advance every row by one decision, actions (B,) int64."""


class _Arrays:
    def __init__(self, num_envs: int, numbers: int, actions: int, scale: tuple[float, ...]) -> None:
        self.num_envs, self.actions = num_envs, actions
        self.scale = np.array(scale or (1.0,) * numbers, dtype=np.float32)
        self.obs, self.final_obs = np.zeros((2, num_envs, numbers), dtype=np.float32)
        self.reward, self.ended = np.zeros((2, num_envs), dtype=np.float32)
        self.terminated, self.truncated = np.zeros((2, num_envs), dtype=bool)


class NativeRows(_Arrays):
    """Cart-pole or acrobot in one compiled loop; lives the life of the reference task of the same seed.

    Args:
        task: `cart_pole` or `acrobot`.
        num_envs: Rows B.
        seed: Seed of the starts.
        first_row: Number of the first row among those of the run.
    """

    _KINDS = {"cart_pole": (CART_POLE, CartPole(1, masked=False)), "acrobot": (ACROBOT, Acrobot(1))}

    def __init__(self, task: str, num_envs: int, seed: int = 0, *, first_row: int = 0) -> None:
        self._kind, example = self._KINDS[task]
        super().__init__(num_envs, example.spaces.observation, len(example.spaces.choices), example.spaces.scale)
        self._limit, self._key, self._first = example.limit, stream_key(seed, Purpose.TASK), first_row
        self.body = np.zeros((num_envs, 4))
        self._episode, self._length = np.zeros((2, num_envs), dtype=np.int64)
        self._earned = np.zeros(num_envs)
        begin_rows(self._kind, self._key, first_row, self.body, self._episode, self.obs)

    def step(self, actions: Array) -> None:
        """Advance every row by one decision, actions (B,) int64."""
        step_rows(
            self._kind, self._key, self._first, self._limit, actions, self.body, self._episode, self._length,
            self._earned, self.obs, self.final_obs, self.reward, self.terminated, self.truncated, self.ended,
        )  # fmt: skip


class TaskRows(_Arrays):
    """Any reference task with a choice of actions.

    Args:
        task: The task, at its start.

    Raises:
        ConfigError: Its actions are continuous, or it shows pictures.
    """

    def __init__(self, task: Environment) -> None:
        spaces = task.spaces
        assert spaces is not None, "flight has no choices"
        if spaces.shape:
            raise ConfigError("the fast path sees vectors, and this task shows pictures; use navi train ppo or dqn")
        if not spaces.choices:
            raise ConfigError("the fast path chooses among actions, and this task's are continuous; use navi train ppo")
        super().__init__(task.num_envs, spaces.observation, len(spaces.choices), spaces.scale)
        self._task, self._choices = task, torch.tensor(spaces.choices)
        self.obs[:] = task.reset().numpy()

    def step(self, actions: Array) -> None:
        """Advance every row by one decision, actions (B,) int64."""
        batch = self._task.step(self._choices[torch.from_numpy(actions)])
        self.obs[:], self.final_obs[:], self.reward[:] = batch.obs, batch.final_obs, batch.reward
        self.terminated[:], self.truncated[:] = batch.terminated, batch.truncated
        done = self.terminated | self.truncated
        self.ended[:] = np.where(done, batch.info["episode_return"], np.nan)


def open_rows(task: str, num_envs: int, seed: int, options: Mapping[str, Any], *, first_row: int = 0) -> Rows:
    """Return rows of a task by name: compiled ones where there are, else those of the reference task.

    Args:
        task: Name of a reference task.
        num_envs: Rows B.
        seed: Seed of every draw.
        options: Of the task; cart-pole shows its velocities here unless `masked` is set.
        first_row: Number of the first row among those of the run.

    Raises:
        ConfigError: There is no such task, it has no such option, its actions are continuous, or its observations are
            to be normalised.
    """
    wanted = dict(options)
    if wanted.get("normalise_observations"):
        raise ConfigError(
            "task_options.normalise_observations measures the rows that are flown; the fast path evaluates in others, "
            "which would be shown on another scale. Leave it out, or use navi train"
        )
    if task == "cart_pole":
        wanted.setdefault("masked", False)
    if task in NativeRows._KINDS and wanted in ({}, {"masked": False}):
        return NativeRows(task, num_envs, seed, first_row=first_row)
    return TaskRows(reference_task(task, num_envs, seed, first_row=first_row, **wanted))


def first_returns(env: Rows, decide: Callable[[Array, Array], None]) -> Array:
    """Fly one episode in every row and return what each earned, (B,) float64.

    Args:
        env: Rows at their start.
        decide: Given observations (B, n), not scaled, writes actions (B,) int64.
    """
    returns, actions = np.full(env.num_envs, np.nan), np.empty(env.num_envs, np.int64)
    while np.isnan(returns).any():
        decide(env.obs, actions)
        env.step(actions)
        first = np.isnan(returns) & ~np.isnan(env.ended)
        returns[first] = env.ended[first]
    return returns
