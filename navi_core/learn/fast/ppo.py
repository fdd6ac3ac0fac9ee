"""The PPO loop of the fast path: rollout, advantages, epochs; nothing is allocated while it runs."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from navi_core.config.fast import FastPPOConfig
from navi_core.errors import NonFiniteError
from navi_core.learn.estimators.advantages import gae
from navi_core.learn.fast.loops import STATISTICS, adam, choose, gather, ppo_gradient
from navi_core.learn.fast.network import ActorCritic
from navi_core.learn.fast.rows import Rows, first_returns, open_rows
from navi_core.world.counter_random import Purpose, stream_key

__all__ = ["FastPPO", "FastResult", "Team"]

Array = np.ndarray


class Team:
    """One process alone; `processes.py` has several."""

    rank, size = 0, 1

    def sum(self, gradient: Array) -> None:
        """Replace a gradient by the mean over the processes."""


@dataclass(frozen=True)
class FastResult:
    """How a run went.

    Attributes:
        steps: Decisions summed over rows.
        solved_at: Decisions after which the mean of the last 100 episodes first reached the target; None if never.
        solved_cpu_seconds: Process CPU time until then, from the first rollout on.
        mean_return: Mean return of the last 100 episodes of training; NaN where fewer ended.
        cpu_seconds: Process CPU time of all updates.
        metrics: Of the last update.
    """

    steps: int
    solved_at: int | None
    solved_cpu_seconds: float | None
    mean_return: float
    cpu_seconds: float
    metrics: dict[str, float]


class FastPPO:
    """PPO of a memoryless network.

    Numpy's BLAS should have one thread (OPENBLAS_NUM_THREADS=1 before numpy loads): these products are too small to
    be shared.

    Args:
        config: Settings.
        team: Processes that share the work.

    Raises:
        ConfigError: The task is unknown, or its actions are continuous.
    """

    def __init__(self, config: FastPPOConfig, team: Team | None = None) -> None:
        self.config, self.team = config, team or Team()
        c, b, t = config, config.rows // self.team.size, config.rollout
        self._first = self.team.rank * b
        self.env: Rows = open_rows(c.task, b, c.seed, c.task_options, first_row=self._first)
        n, total = self.env.obs.shape[1], b * t
        minibatch = max(1, min(c.minibatch // self.team.size, total))
        self._chunks = np.array_split(np.arange(total), math.ceil(total / minibatch))
        most = max(b, *map(len, self._chunks), min(total, 4096))
        self.network = ActorCritic(n, self.env.actions, c.hidden, shared=c.shared, rows=most, seed=c.seed)
        self._moments = np.zeros((2, len(self.network.params)), dtype=np.float32)
        self._obs, self._obs_part = np.empty((t, b, n), np.float32), np.empty((most, n), np.float32)
        self._actions, self._actions_part = np.empty((t, b), np.int64), np.empty(most, np.int64)
        self._log_probs, self._values, self._rewards, self._boot, self._ended = np.empty((5, t, b), np.float32)
        self._terminated, self._truncated = np.empty((2, t, b), bool)
        self._parts = np.empty((3, most), np.float32)
        self._sums = np.zeros(len(STATISTICS))
        self._scale = (1.0 / self.env.scale).astype(np.float32)
        self._rng = np.random.default_rng((c.seed, 1, self.team.rank))
        self._key = stream_key(c.seed, Purpose.ACTION)
        self.decisions, self.updates, self._steps_taken = 0, 0, 0

    @property
    def steps(self) -> int:
        """Decisions summed over the rows of all processes."""
        return self.decisions * self.env.num_envs * self.team.size

    def collect(self) -> None:
        """Fill the rollout."""
        env, network = self.env, self.network
        cut: list[tuple[int, Array, Array]] = []
        for t in range(self.config.rollout):
            obs = np.multiply(env.obs, self._scale, out=self._obs[t])
            if network.shared:
                logits, values = network.both(obs)
                self._values[t] = values
            else:
                logits = network.policy(obs)
            choose(logits, self._key, self._first, self.decisions, self._actions[t], self._log_probs[t], False)
            env.step(self._actions[t])
            self._rewards[t], self._ended[t] = env.reward, env.ended
            self._terminated[t], self._truncated[t] = env.terminated, env.truncated
            if env.truncated.any():
                rows = np.flatnonzero(env.truncated)
                cut.append((t, rows, env.final_obs[rows] * self._scale))
            self.decisions += 1
        if self.config.reward_scale != 1.0:
            self._rewards *= np.float32(self.config.reward_scale)
        if not network.shared:
            self._value_all()
        self._boot[-1] = network.value(env.obs * self._scale)
        for t, rows, obs in cut:
            self._boot[t, rows] = network.value(obs)

    def _value_all(self) -> None:
        obs, values = self._obs.reshape(-1, self._obs.shape[-1]), self._values.reshape(-1)
        most = len(self._obs_part)
        for start in range(0, len(obs), most):
            part = obs[start : start + most]
            values[start : start + len(part)] = self.network.value(part)

    def update(self) -> dict[str, float]:
        """Improve the network on the rollout; return the mean `STATISTICS` over all minibatches, and `grad_norm`.

        Raises:
            NonFiniteError: The loss or the gradient is NaN or infinite.
        """
        c, network = self.config, self.network
        left = max(0.0, 1.0 - self.steps / c.total_steps)
        rate = c.learning_rate_end + (c.learning_rate - c.learning_rate_end) * left
        parts = (self._rewards, self._values, self._terminated, self._truncated, self._boot)
        advantages, returns = gae(*map(torch.from_numpy, parts), gamma=c.gamma, lam=c.gae_lambda)
        flat_advantages, flat_returns = advantages.numpy().reshape(-1), returns.numpy().reshape(-1)
        flat_advantages -= flat_advantages.mean()
        flat_advantages /= flat_advantages.std() + 1e-8
        obs, actions = self._obs.reshape(len(flat_returns), -1), self._actions.reshape(-1)
        log_probs = self._log_probs.reshape(-1)
        self._sums[:] = 0.0
        norm, seen = 0.0, 0
        for _ in range(c.epochs):
            order = self._rng.permutation(len(flat_returns))
            for chunk in self._chunks:
                index = order[chunk[0] : chunk[-1] + 1]
                n = len(index)
                o, a = self._obs_part[:n], self._actions_part[:n]
                p, d, r = (x[:n] for x in self._parts)
                gather(index, obs, actions, log_probs, flat_advantages, flat_returns, o, a, p, d, r)
                logits, values = network.both(o)
                ppo_gradient(
                    logits, values, a, p, d, r, c.clip, c.entropy_coefficient, c.value_coefficient,
                    *network.gradient(n), self._sums,
                )  # fmt: skip
                network.backward(n)
                self.team.sum(network.grads)
                self._steps_taken += 1
                first, second = self._moments
                norm += adam(
                    network.params, network.grads, first, second, self._steps_taken, rate, c.max_grad_norm, 1e-5
                )
                seen += n
        self.updates += 1
        metrics = dict(zip(STATISTICS, (self._sums / seen).tolist()))
        metrics["grad_norm"] = norm / (c.epochs * len(self._chunks))
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise NonFiniteError(
                    name, f"{name} is {value} in update {self.updates}; a lower learning_rate may help"
                )
        return metrics

    def train(
        self,
        *,
        target: float = math.inf,
        window: int = 100,
        progress: Callable[[int, float], None] | None = None,
        until_solved: bool = False,
    ) -> FastResult:
        """Learn until `total_steps`.

        Args:
            target: Mean return of the last `window` episodes that counts as solved.
            window: Episodes.
            progress: Called after every update with the steps and that mean.
            until_solved: Stop where it is reached.
        """
        recent: deque[float] = deque(maxlen=window)
        start, solved, solved_seconds, mean = time.process_time(), None, None, math.nan
        metrics: dict[str, float] = {}
        while self.steps < self.config.total_steps:
            self.collect()
            ended = self._ended.reshape(-1)
            recent.extend(ended[~np.isnan(ended)].tolist())
            mean = sum(recent) / window if len(recent) == window else math.nan
            if solved is None and mean >= target:
                solved, solved_seconds = self.steps, time.process_time() - start
                if until_solved:
                    break
            metrics = self.update()
            if progress is not None:
                progress(self.steps, mean)
        seconds = time.process_time() - start
        return FastResult(self.steps, solved, solved_seconds, mean, seconds, metrics)

    def evaluate(self, episodes: int = 100, seed: int = 10_000, *, greedy: bool = True) -> np.ndarray:
        """Return the returns (episodes,) of one episode in each of as many rows, from starts of another seed.

        Args:
            episodes: How many.
            seed: Seed of the starts.
            greedy: Take the most probable action; otherwise draw.
        """
        c = self.config
        env = open_rows(c.task, episodes, seed, c.task_options)
        network = ActorCritic(env.obs.shape[1], env.actions, c.hidden, shared=c.shared, rows=episodes, seed=0)
        network.params[:] = self.network.params
        log_probs, key, decisions = np.empty(episodes, np.float32), stream_key(seed, Purpose.ACTION), itertools.count()

        def decide(obs: Array, actions: Array) -> None:
            choose(network.policy(obs * self._scale), key, 0, next(decisions), actions, log_probs, greedy)

        return first_returns(env, decide)
