"""Proximal policy optimisation (PPO, Schulman et al. 2017) on recurrent sequences.

Before the first gradient step of every update the learning policy is compared with the acting one: `parity_ratio` and
`parity_value` must be zero up to rounding, or the update would be off-policy. Details: docs/concepts/ppo.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.rollout_learner import MicroBatch, RolloutLearner, pieces
from navi_core.learn.estimators.losses import approximate_kl, policy_loss, value_loss
from navi_core.learn.estimators.noise import scheduled
from navi_core.learn.estimators.normalisation import RewardScale, ValueScale
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.minibatches import Draw, epoch_minibatches
from navi_core.learn.rollout.storage import Rollout
from navi_core.policy import EvaluateOutput, NavigationPolicy, RewardShaper
from navi_core.policy.heads import ActorCritic
from navi_core.record import StageTimer


@dataclass(frozen=True)
class _Update:
    """Data of one PPO update: explained variance, and importance ratios of the latest epoch.

    Attributes:
        explained_variance: 1 − Var(returns − values) / Var(returns), a scalar.
        ratios: (T, B) importance ratios of the latest epoch; None where advantages are estimated once.
    """

    explained_variance: Tensor
    ratios: Tensor | None


@dataclass(frozen=True)
class PPOMicroBatch(MicroBatch):
    """PPO micro-batch: training sequences, and their positions in the update's importance ratios.

    Attributes:
        positions: (S·L,) indices of the decisions in `ratios`; None without ratios.
        ratios: (T·B,) importance ratios of the update, written by `loss`.
    """

    positions: Tensor | None
    ratios: Tensor | None


class PPOLearner(RolloutLearner[_Update, PPOMicroBatch]):
    """Learner of proximal policy optimisation (PPO) with GAE advantages.

    Args:
        policy: `NavigationPolicy`.
        shaper: `RewardShaper`; its RND predictor, if it has one, is trained on the update's embeddings.
        config: The run's configuration.
        device: Training device.
        workers: Data-parallel processes of the run; each contributes the rollout of its rows.

    Raises:
        ConfigError: A schedule ends at `total_steps`, which is not set, or `std_limit` is set for a policy without
            standard deviations.
    """

    section = "ppo"
    schedules = ("learning_rate", "clip", "entropy_coefficient")
    means = ("policy_loss", "value_loss", "entropy", "total_loss", "approx_kl", "clip_fraction")
    peaks = ("parity_ratio", "parity_value")

    def __init__(
        self,
        policy: NavigationPolicy,
        shaper: RewardShaper,
        config: TrainConfig,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        ppo = config.ppo
        assert isinstance(policy.heads, ActorCritic)
        self._heads = policy.heads
        if ppo.std_limit is not None and policy.heads.log_std is None:
            raise ConfigError(
                "ppo.std_limit bounds the deviations of a Gaussian policy; this one has none: leave it out"
            )
        super().__init__(policy, shaper, config, device, workers)
        self.scale = ValueScale(self._heads.value_layer, device, workers) if ppo.normalise_returns else None
        rows = workers.rows(config.actors)[1]
        self.rewards = RewardScale(rows, ppo.gamma, ppo.reward_clip, device, workers) if ppo.normalise_rewards else None

    def settings(self, steps: int) -> dict[str, float]:
        """Return the scheduled settings after `steps` decisions, and `std_limit` if it is set."""
        limit = {} if self.config.ppo.std_limit is None else {"std_limit": scheduled(self.config, "std_limit", steps)}
        return super().settings(steps) | limit

    def prepare(self, rollout: Rollout, _index: int, _now: dict[str, float], timer: StageTimer) -> _Update:
        """Estimate advantages (GAE) in raw units, then normalise values, returns and advantages."""
        ppo = self.config.ppo
        with timer("advantages"):
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
            once = ppo.rho_clip is None and ppo.c_clip is None
            return _Update(explained, None if once else torch.ones_like(rollout.values))

    def epochs(self, _data: _Update) -> int:
        """Return the configured number of epochs."""
        return self.config.ppo.epochs

    def stops_early(self, first: int) -> bool:
        """Return whether to stop early: the epoch's mean approximate KL divergence exceeds `target_kl`."""
        target = self.config.ppo.target_kl
        if target is None:
            return False
        kl = torch.stack(self.steps.rows[first:])[:, self.means.index("approx_kl")].mean()
        self.workers.sum(kl)
        return float(kl) > target

    def tensor_metrics(self, data: _Update) -> dict[str, Tensor]:
        """Return the explained variance of the critic."""
        return {"explained_variance": data.explained_variance}

    def finish(self, _data: _Update, now: dict[str, float]) -> dict[str, float]:
        """Clamp the policy's log standard deviations to the scheduled `std_limit`."""
        if "std_limit" in now and self._heads.log_std is not None:
            # Between two rollouts, so that acting and learning stay one function; after the check for infinite weights.
            with torch.no_grad():
                self._heads.log_std.clamp_(max=math.log(now["std_limit"]))
        return {}

    def _reweigh(self, rollout: Rollout, ratios: Tensor) -> None:
        """Re-estimate advantages with the clipped importance ratios of the previous epoch (V-trace)."""
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
        """Normalise the advantages of all rows to mean 0 and population standard deviation 1."""
        deviation, mean = self.workers.std_mean(rollout.advantages)
        rollout.advantages.sub_(mean).div_(deviation + 1e-8)

    def _explained_variance(self, rollout: Rollout) -> Tensor:
        """Compute the explained variance, 1 − Var(returns − values) / Var(returns); 0 if the returns do not vary."""
        whole = self.workers.std_mean(rollout.returns)[0].square()
        left = self.workers.std_mean(rollout.returns - rollout.values)[0].square()
        return torch.where(whole > 1e-12, 1.0 - left / whole.clamp_min(1e-12), 0.0)

    def batches(
        self, rollout: Rollout, data: _Update, index: int, epoch: int, timer: StageTimer
    ) -> Iterator[Iterator[PPOMicroBatch]]:
        """Yield the micro-batches of every minibatch; advantages are re-estimated each epoch if ratios are clipped."""
        if epoch and data.ratios is not None:
            with timer("advantages"):
                self._reweigh(rollout, data.ratios)
        draws = epoch_minibatches(self.config, rollout, index, epoch, self.workers)
        while True:
            with timer("minibatch_prep"):
                draw = next(draws, None)
            if draw is None:
                return
            yield self._micro_batches(rollout, data, draw, timer)

    def _micro_batches(self, rollout: Rollout, data: _Update, draw: Draw, timer: StageTimer) -> Iterator[PPOMicroBatch]:
        positions = None
        for part in pieces(draw.count, self.config.ppo.microbatch, rollout, self.device):
            count = part.stop - part.start
            if isinstance(draw.index, slice):
                index: Tensor | slice = slice(draw.index.start + part.start, draw.index.start + part.stop)
            else:
                index = draw.index[part]
            with timer("minibatch_fetch"):
                batch = rollout.minibatch(index)
                if draw.weight is not None:
                    batch.advantages *= draw.weight[part][:, None]
            ratios = None if data.ratios is None else data.ratios.view(-1)
            if ratios is not None:
                numbers = torch.arange(rollout.sequences, device=rollout.values.device)[index]
                positions = rollout.flat_index(numbers)
            yield PPOMicroBatch(batch, count / draw.total, positions, ratios)

    def loss(
        self, batch: PPOMicroBatch, out: EvaluateOutput, now: dict[str, float]
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Compute the PPO loss of a micro-batch: clipped surrogate, value loss and entropy bonus, weighted.

        The peaks are the largest ratio and value differences from the acting policy.
        """
        ppo, s = self.config.ppo, batch.sequences
        log_ratio = out.log_prob - s.log_probs
        actor = policy_loss(log_ratio, s.advantages, now["clip"])
        critic = value_loss(out.value, s.returns, s.values, ppo.value_clip)
        entropy = out.entropy.mean()
        total = actor + ppo.value_coefficient * critic - now["entropy_coefficient"] * entropy
        if out.anticipation_loss is not None:
            total = total + self.config.policy.anticipation * out.anticipation_loss.mean()
        with torch.no_grad():
            off = (log_ratio.exp() - 1.0).abs()
            if batch.ratios is not None and batch.positions is not None:
                batch.ratios.index_copy_(0, batch.positions, log_ratio.exp().flatten())
            clipped = (off > now["clip"]).float().mean()
            means = [actor, critic, entropy, total, approximate_kl(log_ratio), clipped]
            peaks = torch.stack((off.max(), (out.value - s.values).abs().max()))
        return total * batch.share, [x * batch.share for x in means], peaks

    def state_dict(self) -> dict[str, Any]:
        """Return the learner's state besides weights and optimiser: the normalisers of returns and rewards."""
        scales = {"value_scale": self.scale, "reward_scale": self.rewards}
        return {name: scale.state_dict() for name, scale in scales.items() if scale is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the normalisers of returns and rewards from a `state_dict`."""
        if self.scale is not None:
            self.scale.load_state_dict(state["value_scale"])
        if self.rewards is not None and "reward_scale" in state:
            self.rewards.load_state_dict(state["reward_scale"])

    def begin_episodes(self) -> None:
        """Reset the discounted reward sums, because all rows begin new episodes."""
        if self.rewards is not None:
            self.rewards.begin_episodes()

    def begin_from(self, state: dict[str, Any]) -> None:
        """Load the return and reward normalisers of the run whose weights the policy starts from.

        That run may have had other rows and another `normalise_returns`; the critic's predictions in raw units are
        preserved.

        Args:
            state: `state_dict` of that run's learner.
        """
        before = state.get("value_scale")
        if before is not None:
            scale = self.scale if self.scale is not None else ValueScale(self._heads.value_layer, self.device)
            scale.load_state_dict(before)
            if self.scale is None:
                scale.dissolve()
        # Without one the critic was trained in raw units, which are the units of an untouched scale.
        if self.rewards is not None and "reward_scale" in state:
            self.rewards.load_moments(state["reward_scale"])
