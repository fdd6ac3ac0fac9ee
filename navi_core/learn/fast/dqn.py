"""Double DQN of the fast path: the same replay, targets, exploration and controller as the run loop's learner.

What differs is the network, a perceptron with gradients by hand, and that nothing is checkpointed: a run takes seconds.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from navi_core.config import EarlyStopConfig
from navi_core.config.fast_dqn import FastDQNConfig
from navi_core.errors import NonFiniteError
from navi_core.learn.estimators.drift_smoother import alpha_step_at
from navi_core.learn.estimators.schedules import epsilons
from navi_core.learn.estimators.targets import n_step_returns
from navi_core.learn.fast.loops import adam
from navi_core.learn.fast.network import Perceptron
from navi_core.learn.fast.q_loops import choose_greedily, q_gradient, smooth_targets
from navi_core.learn.fast.rows import Rows, first_returns, open_rows
from navi_core.learn.replay.prioritized import PrioritizedReplay
from navi_core.learn.run.early_stopping import EarlyStopController
from navi_core.world.counter_random import Purpose, stream_key

__all__ = ["DQNCurve", "FastDQN", "unit_nearness"]

Array = np.ndarray


@dataclass
class DQNCurve:
    """What the evaluations of a run saw.

    Attributes:
        steps: Decisions at each evaluation.
        returns: Mean return of its greedy episodes.
        td_variance: Variance of the temporal differences since the one before.
        recent: Mean return of the last 100 episodes of training, exploration included; NaN before there are 100.
        solved_step: Decisions at which the last 100 training episodes first reached the target; None if they never did.
        total_steps: Decisions of the run.
        last_recent: Mean return of the last 100 episodes at its end; NaN before there are 100.
        best_recent: Its highest value; NaN before there are 100 episodes.
        td_mean: Their mean; NaN where nothing was learned, as is the variance.
        local_structure: Share of latent neighbours with like targets; NaN likewise.
        smoothed_share: Share of gradient steps whose targets were smoothed.
        mean_step: Mean |Δh| of a smoothed target.
        clipped_share: Share of its rows that the trust region clipped.
        gradient_steps: Gradient steps taken.
        cpu_seconds: Process CPU time.
    """

    steps: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    td_variance: list[float] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)
    solved_step: int | None = None
    total_steps: int = 0
    last_recent: float = math.nan
    best_recent: float = math.nan
    td_mean: list[float] = field(default_factory=list)
    local_structure: list[float] = field(default_factory=list)
    smoothed_share: float = 0.0
    mean_step: float = 0.0
    clipped_share: float = 0.0
    gradient_steps: int = 0
    cpu_seconds: float = 0.0

    def stop_step(self, config: EarlyStopConfig) -> int | None:
        """Return the decisions at which the early-stopping controller would have ended the run; None if never.

        Args:
            config: Its settings; the evaluations are those of the run.
        """
        controller = EarlyStopController(config)
        for steps, *seen in zip(self.steps, self.td_mean, self.td_variance, self.local_structure, self.returns):
            if not any(map(math.isnan, seen)) and controller.update(*seen).should_stop:
                return steps
        return None


class FastDQN:
    """Double DQN of a memoryless network.

    Args:
        config: Settings.

    Raises:
        ConfigError: The task is unknown, or its actions are continuous.
    """

    def __init__(self, config: FastDQNConfig) -> None:
        c = self.config = config
        self.env: Rows = open_rows(c.task, c.rows, c.seed, c.task_options)
        scale = self.env.scale if c.scale_observations else np.ones_like(self.env.scale)
        self._scale = (1.0 / scale).astype(np.float32)
        n, actions, batch = self.env.obs.shape[1], self.env.actions, c.replay.batch_size
        widths = (n, *c.hidden, actions)
        size, most = Perceptron.size(widths), max(batch, c.rows, c.evaluation_episodes)
        self.params, self.target_params, self._grads = np.zeros((3, size), np.float32)
        self.network = Perceptron(widths, self.params, self._grads, most)
        self.target = Perceptron(widths, self.target_params, np.zeros(size, np.float32), batch)
        self.network.draw(np.random.default_rng(c.seed), [0.01] * actions)
        self.target_params[:] = self.params
        self._moments = np.zeros((2, size), np.float32)
        replay = c.replay
        self.replay = PrioritizedReplay(
            replay.capacity, replay.alpha if replay.prioritized_replay else 0.0, replay.beta0, c.seed
        )
        self._obs = np.zeros((c.dqn.rollout + 1, c.rows, n), np.float32)
        self._actions = np.zeros((c.dqn.rollout, c.rows), np.int64)
        self._rewards = np.zeros((c.dqn.rollout, c.rows), np.float32)
        self._terminated, self._truncated = np.zeros((2, c.dqn.rollout, c.rows), bool)
        self._gradient, self._errors = np.zeros((batch, actions), np.float32), np.zeros(batch, np.float32)
        self._smooth = np.zeros(batch, np.float32)
        self._key, self._noise = stream_key(c.seed, Purpose.ACTION), np.random.default_rng((c.seed, 7))
        self._sums, self._figures = np.zeros(5), np.zeros(3)
        self.decisions = self.gradient_steps = self._smoothed = self._since = 0
        self._owed = 0.0
        self._td_var: float | None = None

    @property
    def steps(self) -> int:
        """Decisions summed over rows."""
        return self.decisions * self.config.rows

    def collect(self) -> list[float]:
        """Fly a rollout into the replay; return the returns of the episodes that ended."""
        c, env, ended = self.config, self.env, []
        epsilon = epsilons(c.dqn, c.rows, self.steps).numpy()
        cut: list[tuple[int, Array, Array]] = []
        for t in range(c.dqn.rollout):
            obs = np.multiply(env.obs, self._scale, out=self._obs[t])
            choose_greedily(self.network.forward(obs), epsilon, self._key, self.decisions, self._actions[t])
            env.step(self._actions[t])
            self._rewards[t], self._terminated[t], self._truncated[t] = env.reward, env.terminated, env.truncated
            if env.truncated.any():
                rows = np.flatnonzero(env.truncated)
                cut.append((t, rows, env.final_obs[rows] * self._scale))
            ended += env.ended[~np.isnan(env.ended)].tolist()
            self.decisions += 1
        np.multiply(env.obs, self._scale, out=self._obs[-1])
        if c.reward_noise:
            self._rewards += c.reward_noise * self._noise.standard_normal(self._rewards.shape, np.float32)
        parts = (torch.from_numpy(x) for x in (self._rewards, self._terminated, self._truncated))
        returns, last, discount = n_step_returns(*parts, gamma=c.dqn.gamma, n=c.dqn.n_step)
        after = self._obs[1:].copy()
        for t, rows, obs in cut:
            after[t, rows] = obs
        following = after[last.numpy(), np.arange(c.rows)]
        self.replay.add(
            {
                "obs": self._obs[:-1].reshape(-1, self._obs.shape[-1]),
                "next": following.reshape(-1, self._obs.shape[-1]),
                "action": self._actions.reshape(-1),
                "return": returns.reshape(-1),
                "discount": discount.reshape(-1),
            }
        )
        return ended

    def learn(self) -> None:
        """Take the gradient steps that the last rollout owes."""
        c = self.config
        if len(self.replay) < c.dqn.learning_starts:
            return
        self.replay.anneal(self.steps / (c.replay.beta_steps or c.total_steps))
        schedule = c.dqn.schedules.get("learning_rate")
        rate = c.dqn.learning_rate
        if schedule is not None:
            rate = schedule.value(rate, self.steps, c.total_steps)
        self._owed += c.dqn.rollout * c.rows * c.dqn.replay_ratio / c.replay.batch_size
        spreads = []
        while self._owed >= 1.0:
            self._owed -= 1.0
            spreads.append(self.gradient_step(rate))
        if spreads:
            self._td_var = sum(spreads) / len(spreads)

    def gradient_step(self, rate: float) -> float:
        """Learn from one minibatch; return the variance of its temporal differences.

        Args:
            rate: Step size of Adam.
        """
        c, dqn, n = self.config, self.config.dqn, self.config.replay.batch_size
        items, places, weights = self.replay.sample(n)
        batch = {name: x.numpy() for name, x in items.items()}
        targets = self._targets(batch)
        values = self.network.forward(batch["obs"])
        if c.kernel_smoothing.enabled:
            targets = self._smoothed_targets(targets)
        _, mean, square, *_ = self._sums.tolist()
        q_gradient(
            values, batch["action"], targets, weights.numpy(), dqn.huber, self._gradient, self._errors, self._sums
        )
        self.network.backward(self._gradient)
        self.gradient_steps += 1
        self._since += 1
        first, second = self._moments
        norm = adam(self.params, self._grads, first, second, self.gradient_steps, rate, dqn.max_grad_norm, 1e-5)
        if not math.isfinite(norm):
            raise NonFiniteError("gradient", f"the gradient is {norm} after {self.steps} steps; lower learning_rate")
        if dqn.target_update == "polyak":
            self.target_params += dqn.polyak * (self.params - self.target_params)
        elif self.gradient_steps % dqn.target_period == 0:
            self.target_params[:] = self.params
        if self.replay.alpha:
            # The gradient of an infinite error is finite (Huber).
            if not np.isfinite(self._errors).all():
                raise NonFiniteError("q_loss", f"a temporal difference is not finite after {self.steps} steps; "
                                     "lower learning_rate")  # fmt: skip
            self.replay.update(places, np.abs(self._errors) + c.replay.priority_floor)
        return float(max(self._sums[2] - square - (self._sums[1] - mean) ** 2, 0.0))

    def _targets(self, batch: dict[str, Array]) -> Array:
        """Return the Double DQN targets (n,) of a minibatch."""
        choice = self.network.forward(batch["next"]).argmax(1)
        followed = self.target.forward(batch["next"])[np.arange(len(choice)), choice]
        # A discount of 0 says that nothing follows; a value that is not finite must not leak through it.
        return batch["return"] + np.where(batch["discount"] > 0, batch["discount"] * followed, np.float32(0))

    def _smoothed_targets(self, targets: Array) -> Array:
        """Return targets after a step toward their latent neighbours, which `forward` has just seen."""
        config = self.config.kernel_smoothing
        alpha = alpha_step_at(config, self.steps)
        if alpha == 0.0 or len(targets) < 2:
            return targets
        figures = np.zeros(3)
        near = unit_nearness(self.network.hidden(len(targets)))
        smooth_targets(
            near, targets, min(config.k, len(targets) - 1), config.sigma_min, config.sigma_max,
            alpha * config.latent_dim**-config.dim_exponent, config.trust_region_tau, self._smooth, figures,
        )  # fmt: skip
        # The variance of the update before, as the run loop's learner has it; evaluations have no part in it.
        variance = float(targets.var()) if self._td_var is None else self._td_var
        uncertain = variance > config.td_var_min or figures[2] > config.disagreement_min
        if config.gate_by_td_variance and not uncertain:
            return targets
        self._smoothed += 1
        self._figures += figures
        return self._smooth

    def evaluate(self, number: int) -> float:
        """Return the mean return of greedy episodes from starts that training does not see."""
        c = self.config
        env = open_rows(c.task, c.evaluation_episodes, c.seed + 1_000_003 * (number + 1), c.task_options)
        never = np.zeros(env.num_envs)

        def decide(obs: Array, actions: Array) -> None:
            choose_greedily(self.network.forward(obs * self._scale), never, 0, 0, actions)

        return float(first_returns(env, decide).mean())

    def train(
        self,
        progress: Callable[[int, float], None] | None = None,
        *,
        target: float = math.inf,
        until_solved: bool = False,
    ) -> DQNCurve:
        """Learn until `total_steps`, evaluating on the way; no controller ends the run.

        Args:
            progress: Called after every evaluation with the steps and the mean return.
            target: Mean return of the last 100 training episodes that counts as solved.
            until_solved: Stop where it is reached.
        """
        c, curve, recent = self.config, DQNCurve(), deque[float](maxlen=100)
        start, interval, done = time.process_time(), c.early_stopping.eval_interval, False
        while self.steps < c.total_steps and not done:
            before = self.steps
            recent.extend(self.collect())
            self.learn()
            curve.last_recent = sum(recent) / 100 if len(recent) == 100 else math.nan
            curve.best_recent = float(np.fmax(curve.best_recent, curve.last_recent))
            if curve.solved_step is None and curve.last_recent >= target:
                curve.solved_step, done = self.steps, until_solved
            if before // interval == self.steps // interval:
                continue
            mean, variance = self._signs()
            curve.steps.append(self.steps)
            curve.returns.append(self.evaluate(len(curve.steps)))
            curve.td_variance.append(variance)
            curve.recent.append(curve.last_recent)
            curve.td_mean.append(mean)
            curve.local_structure.append(self._local_structure(len(curve.steps)) if self._since else math.nan)
            self._sums[:], self._since = 0.0, 0
            if progress is not None:
                progress(self.steps, curve.returns[-1])
        curve.total_steps, curve.gradient_steps = self.steps, self.gradient_steps
        curve.smoothed_share = self._smoothed / max(self.gradient_steps, 1)
        curve.mean_step, curve.clipped_share = (self._figures[:2] / max(self._smoothed, 1)).tolist()
        curve.cpu_seconds = time.process_time() - start
        return curve

    def _signs(self) -> tuple[float, float]:
        """Return mean and variance of the temporal differences since the last evaluation."""
        if not self._since:
            return math.nan, math.nan
        mean = self._sums[1] / self._since
        return float(mean), float(max(self._sums[2] / self._since - mean * mean, 0.0))

    def _local_structure(self, number: int) -> float:
        """Return the share of latent neighbours with like targets in a minibatch that training does not see."""
        n, smoothing = self.config.replay.batch_size, self.config.kernel_smoothing
        if n < 2:
            return 1.0
        batch = {name: x.numpy() for name, x in self.replay.peek(n, number).items()}
        targets = self._targets(batch)
        self.network.forward(batch["obs"])
        out, figures = np.empty_like(targets), np.zeros(3)
        near = unit_nearness(self.network.hidden(n))
        return smooth_targets(
            near, targets, min(smoothing.k, n - 1), smoothing.sigma_min, smoothing.sigma_max, 0.0, 1.0,
            out, figures,
        )  # fmt: skip


def unit_nearness(latents: Array) -> Array:
    """Return 1 − ‖a − b‖²/2 (n, n) of latents (n, d) set on the unit sphere: their products, if none is zero."""
    length = np.sqrt((latents * latents).sum(1, keepdims=True))
    unit = latents / np.maximum(length, 1e-12)
    dead = np.float32(0.5) * (length == 0)
    return unit @ unit.T + (dead + dead.T)
