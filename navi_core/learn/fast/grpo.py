"""GRPO of the fast path: groups of whole episodes, the loss of `algorithms/grpo.py`, hand-derived gradients.

An update begins B episodes and flies each to its end, so nothing is cut out of its trajectory: a drift that ends an
episode only hundreds of decisions later is paid for by all decisions that led there. Once every episode of a group
earns the same, the group teaches nothing, and a solved task is left alone.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import torch

from navi_core.config.fast_grpo import FastGRPOConfig
from navi_core.errors import NonFiniteError
from navi_core.learn.estimators.advantages import group_advantages
from navi_core.learn.fast.loops import STATISTICS, adam, choose, gather, ppo_gradient
from navi_core.learn.fast.network import Perceptron
from navi_core.learn.fast.ppo import FastResult
from navi_core.learn.fast.rows import first_returns, open_rows
from navi_core.world.counter_random import Purpose, stream_key

__all__ = ["FastGRPO"]

Array = np.ndarray


class FastGRPO:
    """Group-relative policy optimisation of a memoryless network on whole episodes (Shao et al. 2024).

    Args:
        config: Settings.

    Attributes:
        returns: (B,) float64 undiscounted returns of the last episodes, group after group.
        advantages: (B,) float64 of theirs.
        silent_groups: Groups without spread so far; nothing is learned from them.

    Raises:
        ConfigError: The task is unknown, or its actions are continuous.
    """

    def __init__(self, config: FastGRPOConfig) -> None:
        c = self.config = config
        example = open_rows(c.task, 1, c.seed, c.task_options)
        n, most = example.obs.shape[1], max(c.rows, c.minibatch)
        self._scale = (1.0 / example.scale).astype(np.float32)
        widths = self._widths = (n, *c.hidden, example.actions)
        size = Perceptron.size(widths)
        self.params, self.grads = np.zeros((2, size), np.float32)
        self.network = Perceptron(widths, self.params, self.grads, most)
        self.network.draw(np.random.default_rng(c.seed), [0.01] * example.actions)
        self._moments = np.zeros((2, size), np.float32)
        self._obs = np.empty((c.horizon, c.rows, n), np.float32)
        self._actions = np.empty((c.horizon, c.rows), np.int64)
        self._log_probs = np.empty((c.horizon, c.rows), np.float32)
        self._obs_part, self._actions_part = np.empty((most, n), np.float32), np.empty(most, np.int64)
        self._parts, self._nothing = np.empty((3, most), np.float32), np.zeros(most, np.float32)
        self._gradient = np.empty((most, example.actions), np.float32)
        self._sums = np.zeros(len(STATISTICS))
        self._rng, self._key = np.random.default_rng((c.seed, 1)), stream_key(c.seed, Purpose.ACTION)
        self.returns, self.advantages = np.zeros(c.rows), np.zeros(c.rows)
        self._lengths = np.zeros(c.rows, np.int64)
        self.steps = self.decisions = self.updates = self.silent_groups = self._steps_taken = 0

    def collect(self) -> None:
        """Fly one episode in every row; decisions of rows that wait for the others are counted too."""
        c = self.config
        env = open_rows(c.task, c.rows, c.seed + 7919 * (self.updates + 1), c.task_options)
        self.returns[:], self._lengths[:] = 0.0, c.horizon
        alive = np.ones(c.rows, bool)
        for t in range(c.horizon):
            obs = np.multiply(env.obs, self._scale, out=self._obs[t])
            choose(self.network.forward(obs), self._key, 0, self.decisions, self._actions[t], self._log_probs[t], False)
            env.step(self._actions[t])
            self.decisions += 1
            self.returns += np.where(alive, env.reward, 0.0)
            over = alive & (env.terminated | env.truncated)
            self._lengths[over] = t + 1
            alive &= ~over
            self.steps += c.rows
            if not alive.any():
                break
        groups = torch.from_numpy(self.returns).view(-1, c.group_size)
        advantages = torch.stack([group_advantages(group, c.normalize_group) for group in groups])
        self.advantages[:] = advantages.flatten().numpy()
        self.silent_groups += int((advantages == 0).all(1).sum())

    def update(self) -> dict[str, float]:
        """Improve the network on the episodes; return the mean `STATISTICS` over all minibatches, and `grad_norm`.

        Raises:
            NonFiniteError: The gradient is NaN or infinite.
        """
        c = self.config
        self.updates += 1
        self._sums[:] = 0.0
        speaking = np.repeat(np.abs(self.advantages).reshape(-1, c.group_size).any(1), c.group_size)
        episodes = np.flatnonzero(speaking)
        if not len(episodes):
            return dict.fromkeys((*STATISTICS, "grad_norm"), 0.0)
        lengths = self._lengths[episodes]
        row, first = np.repeat(episodes, lengths), np.cumsum(lengths) - lengths
        index = (np.arange(len(row)) - np.repeat(first, lengths)) * c.rows + row
        # The loss is a mean over episodes of sums over decisions; a minibatch is a mean over decisions.
        weighted = np.empty(c.horizon * c.rows, np.float32)
        weighted[index] = self.advantages[row] * (len(row) / len(episodes))
        left = max(0.0, 1.0 - self.steps / c.total_steps)
        rate = c.learning_rate_end + (c.learning_rate - c.learning_rate_end) * left
        obs, norm, taken = self._obs.reshape(-1, self._obs.shape[-1]), 0.0, 0
        for _ in range(c.epochs):
            order = self._rng.permutation(index)
            for part in np.array_split(order, math.ceil(len(order) / c.minibatch)):
                n = len(part)
                o, a = self._obs_part[:n], self._actions_part[:n]
                p, d, r = (x[:n] for x in self._parts)
                gather(
                    part, obs, self._actions.reshape(-1), self._log_probs.reshape(-1), weighted, weighted, o, a, p, d, r
                )
                gradient, nothing = self._gradient[:n], self._nothing[:n]
                ppo_gradient(
                    self.network.forward(o), nothing, a, p, d, nothing, c.clip, c.ent_coef, 0.0, gradient,
                    self._parts[2, :n], self._sums,
                )  # fmt: skip
                self.network.backward(gradient)
                self._steps_taken += 1
                taken += 1
                first_moment, second_moment = self._moments
                norm += adam(
                    self.params, self.grads, first_moment, second_moment, self._steps_taken, rate, c.max_grad_norm, 1e-5
                )
        if not math.isfinite(norm):
            raise NonFiniteError("gradient", f"the gradient is {norm} in update {self.updates}; lower learning_rate")
        seen = c.epochs * len(index)
        return dict(zip(STATISTICS, (self._sums / seen).tolist())) | {"grad_norm": norm / taken}

    def train(
        self, *, target: float = math.inf, window: int = 100, progress: Callable[[int, float], None] | None = None
    ) -> FastResult:
        """Learn until `total_steps`.

        Args:
            target: Mean return of the last `window` episodes that counts as solved.
            window: Episodes.
            progress: Called after every update with the steps and that mean.
        """
        recent: deque[float] = deque(maxlen=window)
        start, solved, solved_seconds, mean = time.process_time(), None, None, math.nan
        metrics: dict[str, float] = {}
        while self.steps < self.config.total_steps:
            self.collect()
            recent.extend(self.returns.tolist())
            mean = sum(recent) / window if len(recent) == window else math.nan
            if solved is None and mean >= target:
                solved, solved_seconds = self.steps, time.process_time() - start
            metrics = self.update()
            if progress is not None:
                progress(self.steps, mean)
        seconds = time.process_time() - start
        return FastResult(self.steps, solved, solved_seconds, mean, seconds, metrics)

    def evaluate(self, episodes: int = 100, seed: int = 10_000) -> Array:
        """Return the returns (episodes,) of as many episodes, the most probable action taken, from other starts.

        Args:
            episodes: How many.
            seed: Seed of the starts.
        """
        env = open_rows(self.config.task, episodes, seed, self.config.task_options)
        network = Perceptron(self._widths, self.params, self.grads, episodes)
        log_probs = np.empty(episodes, np.float32)

        def decide(obs: Array, actions: Array) -> None:
            choose(network.forward(obs * self._scale), 0, 0, 0, actions, log_probs, True)

        return first_returns(env, decide)
