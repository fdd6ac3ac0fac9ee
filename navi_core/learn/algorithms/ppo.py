"""Proximal policy optimisation (Schulman et al. 2017) on recurrent sequences.

`PPOLearner.update` walks minibatches of sequences for some epochs. Before the first gradient step of
every update the new policy is compared with the acting one: `parity_ratio` and `parity_value` must
vanish, or the update would learn from another policy's data. docs/PPO.md goes through the details.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.gradient_steps import GradientSteps, UpdateStats
from navi_core.learn.estimators.losses import approximate_kl, policy_loss, value_loss
from navi_core.learn.estimators.reward_normalisation import RewardScale
from navi_core.learn.estimators.schedules import scheduled
from navi_core.learn.estimators.value_normalisation import ValueScale
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.attribution import stage_timer, timed_parts
from navi_core.learn.rollout.execution import evaluation
from navi_core.learn.rollout.minibatches import Draw, epoch_minibatches
from navi_core.learn.rollout.storage import Rollout
from navi_core.record import StageTimer

__all__ = ["PPOLearner", "UpdateStats"]

_LOG = logging.getLogger("navi.learn")
_LARGE, _AT_ONCE = 2**14, 128
"""On a CPU, activations of 128 panoramas of so many numbers or more fit its caches; 512 take a quarter longer."""
_PARITY = 1e-2
"""Ratio error before the first step at which acting and learning are no longer the same function."""


_MEANS = ("policy_loss", "value_loss", "entropy", "total_loss", "rnd_loss", "approx_kl", "clip_fraction")
_PEAKS = ("parity_ratio", "parity_value")


@dataclass(frozen=True)
class _Settings:
    """What the schedules say during one update."""

    learning_rate: float
    clip: float
    entropy: float
    std_limit: float | None


def sequences_at_once(microbatch: int | None, rollout: Rollout, device: torch.device) -> int | None:
    """Return how many sequences go through the network at once; None for all of a minibatch."""
    if microbatch is None and device.type == "cpu" and rollout.observations.numbers >= _LARGE:
        return max(1, _AT_ONCE // rollout.bptt)
    return microbatch


def tell_parity(metrics: dict[str, float], index: int) -> None:
    """Warn where the policy that learns is not the one that acted."""
    if metrics["parity_ratio"] > _PARITY:
        _LOG.warning(
            "before the first step of update %d the policy's ratio to the one that acted is off by %.2g: the "
            "update learns from another policy's data",
            index,
            metrics["parity_ratio"],
        )


class PPOLearner:
    """Turns rollouts into weights.

    Args:
        policy: `NavigationPolicy`.
        shaper: `RewardShaper`; its RND predictor, if it has one, is trained on the update's embeddings.
        config: The run's configuration.
        device: Training device.
        workers: Processes of the run; each brings the rollout of its rows.

    Raises:
        ConfigError: A schedule ends at `total_steps`, which is not set, or a bound of standard deviations is set for
            a policy without.
    """

    def __init__(
        self, policy: Any, shaper: Any, config: TrainConfig, device: torch.device, workers: Workers = ALONE
    ) -> None:
        self.policy, self.shaper, self.config, self.device, self.workers = policy, shaper, config, device, workers
        ppo = config.ppo
        self.settings(0)
        if ppo.std_limit is not None and getattr(policy.heads, "log_std", None) is None:
            raise ConfigError(
                "ppo.std_limit bounds the deviations of a Gaussian policy; this one has none: leave it out"
            )
        self.scale = ValueScale(policy.heads.critic[-1], device, workers) if ppo.normalise_returns else None
        rows = workers.rows(config.actors)[1]
        self.rewards = RewardScale(rows, ppo.gamma, ppo.reward_clip, device, workers) if ppo.normalise_rewards else None
        self.steps = GradientSteps(
            policy,
            shaper,
            ppo.learning_rate,
            device,
            _MEANS,
            _PEAKS,
            "ppo",
            workers,
            replayed=config.execution == "graph",
        )
        self._evaluate = evaluation(policy, config, device)
        self._ratios: Tensor | None = None

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Adam."""
        return self.steps.optimizer

    def settings(self, steps: int) -> _Settings:
        """Return the scheduled settings after `steps` decisions."""
        return _Settings(
            scheduled(self.config, "learning_rate", steps),
            scheduled(self.config, "clip", steps),
            scheduled(self.config, "entropy_coefficient", steps),
            None if self.config.ppo.std_limit is None else scheduled(self.config, "std_limit", steps),
        )

    def update(self, rollout: Rollout, *, index: int, steps: int) -> UpdateStats:
        """Improve the policy on one rollout.

        Args:
            rollout: Filled by the collector.
            index: Number of this update; part of the shuffle's seed.
            steps: Decisions before this rollout; sets what is scheduled.

        Raises:
            NonFiniteError: A loss, a gradient or a weight became NaN or infinite; it is named.
        """
        ppo, start = self.config.ppo, time.perf_counter()
        timer = stage_timer(self.device, self.config.profile)
        settings = self.settings(steps)
        with timer("advantages"):
            explained = self._prepare(rollout)
        self.steps.learning_rate(settings.learning_rate)
        epochs = 0
        # Hooks would cut a compiled program into pieces.
        eager = self.config.execution == "eager"
        with timed_parts(self.policy, timer, "policy_evaluation") if eager else nullcontext():
            for epoch in range(ppo.epochs):
                if epoch and self._ratios is not None:
                    with timer("advantages"):
                        self._reweigh(rollout, self._ratios)
                first = len(self.steps.rows)
                self._epoch(rollout, index, epoch, settings, timer)
                epochs += 1
                # The stop is asked between epochs only: the first epoch always runs, parity comes before it.
                if ppo.target_kl is not None and epoch + 1 < ppo.epochs:
                    kl = torch.stack(self.steps.rows[first:])[:, _MEANS.index("approx_kl")].mean()
                    self.workers.sum(kl)
                    if float(kl) > ppo.target_kl:
                        break
        with timer("statistics"):
            metrics = self.steps.read(index, {"explained_variance": explained})
            if self.config.precision == "fp32":
                tell_parity(metrics, index)
        if settings.std_limit is not None:
            # Between two rollouts, so that acting and learning stay one function; after the look for infinite weights.
            with torch.no_grad():
                self.policy.heads.log_std.clamp_(max=math.log(settings.std_limit))
        metrics |= {
            "learning_rate": settings.learning_rate,
            "clip": settings.clip,
            "entropy_coefficient": settings.entropy,
            "epochs": float(epochs),
        }
        return UpdateStats(metrics=metrics, seconds=time.perf_counter() - start, epochs=epochs, timer=timer)

    def _prepare(self, rollout: Rollout) -> Tensor:
        """Estimate advantages in raw units, then bring values, returns and advantages to unit scale."""
        ppo = self.config.ppo
        if self.rewards is not None:
            self.rewards.normalise_(rollout.rewards, rollout.terminated | rollout.truncated)
        if self.scale is not None:
            rollout.values.copy_(self.scale.to_raw(rollout.values))
            rollout.bootstrap_values.copy_(self.scale.to_raw(rollout.bootstrap_values))
        rollout.estimate_advantages(gamma=ppo.gamma, lam=ppo.gae_lambda)
        explained = self._explained_variance(rollout)
        if self.scale is not None:
            self.scale.follow(rollout.returns)
            rollout.values.copy_(self.scale.to_scaled(rollout.values))
            rollout.returns.copy_(self.scale.to_scaled(rollout.returns))
        self._normalise_advantages(rollout)
        self._ratios = None if ppo.rho_clip is None and ppo.c_clip is None else torch.ones_like(rollout.values)
        return explained

    def _reweigh(self, rollout: Rollout, ratios: Tensor) -> None:
        """Estimate again with the importance ratios that the epoch before has seen."""
        ppo, scale = self.config.ppo, self.scale
        scaled = rollout.values.clone()
        if scale is not None:
            rollout.values.copy_(scale.to_raw(scaled))
        rho, c = (None if bound is None else ratios.clamp(max=bound) for bound in (ppo.rho_clip, ppo.c_clip))
        rollout.estimate_advantages(gamma=ppo.gamma, lam=ppo.gae_lambda, rho=rho, c=c)
        rollout.values.copy_(scaled)
        if scale is not None:
            rollout.returns.copy_(scale.to_scaled(rollout.returns))
        self._normalise_advantages(rollout)

    def _normalise_advantages(self, rollout: Rollout) -> None:
        """Bring the advantages of all rows to mean 0 and population deviation 1."""
        deviation, mean = self.workers.std_mean(rollout.advantages)
        rollout.advantages.sub_(mean).div_(deviation + 1e-8)

    def _explained_variance(self, rollout: Rollout) -> Tensor:
        """1 − Var(returns − values) / Var(returns); 0 where the returns do not vary."""
        whole = self.workers.std_mean(rollout.returns)[0].square()
        left = self.workers.std_mean(rollout.returns - rollout.values)[0].square()
        return torch.where(whole > 1e-12, 1.0 - left / whole.clamp_min(1e-12), 0.0)

    def _epoch(self, rollout: Rollout, update: int, epoch: int, settings: _Settings, timer: StageTimer) -> None:
        draws = epoch_minibatches(self.config, rollout, update, epoch, self.workers)
        while True:
            with timer("minibatch_prep"):
                draw = next(draws, None)
            if draw is None:
                return
            self.steps.begin()
            piece = sequences_at_once(self.config.ppo.microbatch, rollout, self.device)
            for index, count, weight in _microbatches(draw, piece):
                self._backward(rollout, index, count / draw.total, weight, settings, timer)
            self.steps.take(self.config.ppo.max_grad_norm, timer)

    def _backward(
        self,
        rollout: Rollout,
        index: Tensor | slice,
        share: float,
        weight: Tensor | None,
        settings: _Settings,
        timer: StageTimer,
    ) -> None:
        """Add the gradient of some sequences, which are `share` of their minibatch, and their statistics."""
        ppo = self.config.ppo
        with timer("minibatch_fetch"):
            batch = rollout.minibatch(index)
            if weight is not None:
                batch.advantages *= weight[:, None]
        with timer("policy_evaluation"):
            out = self._evaluate(batch.obs, batch.aux, batch.state, batch.reset, batch.actions)
        with timer("loss"):
            log_ratio = out.log_prob - batch.log_probs
            actor = policy_loss(log_ratio, batch.advantages, settings.clip)
            critic = value_loss(out.value, batch.returns, batch.values, ppo.value_clip)
            entropy = out.entropy.mean()
            total = actor + ppo.value_coefficient * critic - settings.entropy * entropy
        with timer("backward"):
            (total * share).backward()
        with timer("rnd_step"):
            curiosity = self.shaper.learn(out.embedding.detach(), share)
        with timer("statistics"), torch.no_grad():
            log_ratio = log_ratio.detach()
            off = (log_ratio.exp() - 1.0).abs()
            if self._ratios is not None:
                numbers = _numbers(rollout, index)
                self._ratios.view(-1).index_copy_(0, rollout.flat_index(numbers), log_ratio.exp().flatten())
            clipped = (off > settings.clip).float().mean()
            parts = (actor, critic, entropy, total, curiosity, approximate_kl(log_ratio), clipped)
            peaks = torch.stack((off.max(), (out.value - batch.values).abs().max()))
            self.steps.add(torch.stack([part.detach() for part in parts]) * share, peaks)

    def state_dict(self) -> dict[str, Any]:
        """Return state besides the policy's weights and the optimiser's: the scales of returns and rewards."""
        scales = {"value_scale": self.scale, "reward_scale": self.rewards}
        return {name: scale.state_dict() for name, scale in scales.items() if scale is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        if self.scale is not None:
            self.scale.load_state_dict(state["value_scale"])
        if self.rewards is not None and "reward_scale" in state:
            self.rewards.load_state_dict(state["reward_scale"])

    def begin_episodes(self) -> None:
        """Forget what rewards have come to in the episodes so far: all rows begin new ones."""
        if self.rewards is not None:
            self.rewards.begin_episodes()

    def begin_from(self, state: dict[str, Any]) -> None:
        """Take over the scales of another run, whose weights the policy has been given.

        That run may have had other rows and another `normalise_returns`; in raw units the critic says what it said.

        Args:
            state: `state_dict` of its learner.
        """
        before = state.get("value_scale")
        if before is not None:
            scale = self.scale if self.scale is not None else ValueScale(self.policy.heads.critic[-1], self.device)
            scale.load_state_dict(before)
            if self.scale is None:
                scale.dissolve()
        # Without one the critic was learned in raw units; those are the units of a scale that has seen nothing.
        if self.rewards is not None and "reward_scale" in state:
            self.rewards.take_moments(state["reward_scale"])


def _numbers(rollout: Rollout, index: Tensor | slice) -> Tensor:

    return torch.arange(rollout.sequences, device=rollout.values.device)[index] if isinstance(index, slice) else index


def _microbatches(draw: Draw, size: int | None) -> Iterator[tuple[Tensor | slice, int, Tensor | None]]:
    """Yield index, count and weights of at most `size` sequences each."""
    step = draw.count if size is None else size
    for start in range(0, draw.count, max(step, 1)):
        count = min(step, draw.count - start)
        weight = None if draw.weight is None else draw.weight[start : start + count]
        if isinstance(draw.index, slice):
            begin = draw.index.start + start
            yield slice(begin, begin + count), count, weight
        else:
            yield draw.index[start : start + count], count, weight
