"""Group-relative policy optimisation (GRPO, Shao et al. 2024): critic-free, advantages relative to a group's mean.

A rollout is split into segments (`minibatches.py`). K of them form a group. The advantage of a segment is its return
minus the group's mean, and all its decisions share it:

    loss = −mean_i(A_i · Σ_t log π(a_t)) − c_ent · mean(H) + c_kl · mean(KL(π‖π_ref))

with the clipped ratio in place of log π where `clip` is set. The value head is not used.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.rollout_learner import MicroBatch, ReferenceLearner, pieces
from navi_core.learn.estimators.losses import approximate_kl, group_advantages, reference_kl, surrogate
from navi_core.learn.estimators.noise import shuffled
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.minibatches import Segments, find_segments, on_sequences, segment_returns
from navi_core.learn.rollout.storage import Rollout
from navi_core.policy import EvaluateOutput, NavigationPolicy, RewardShaper
from navi_core.record import StageTimer

_LOG = logging.getLogger("navi.learn")


@dataclass(frozen=True)
class Groups:
    """Groups of exactly K segments each, with their returns and group-relative advantages.

    Attributes:
        segments: G·K segments, group after group.
        advantages: (G·K,) float64.
        returns: (G·K,) float64.
        silent: (G,) bool; groups of zero variance, which give no gradient.
        surplus: Number of segments in no group.
    """

    segments: Segments
    advantages: Tensor
    returns: Tensor
    silent: np.ndarray
    surplus: int


def form_groups(
    segments: Segments, returns: Tensor, size: int, mode: Literal["mean", "mean_std"], ages: np.ndarray | None = None
) -> Groups:
    """Partition segments into groups of exactly `size` and compute their advantages; surplus segments are dropped.

    Args:
        segments: N segments.
        returns: (N,) returns of the segments.
        size: Segments per group, K.
        mode: Normalisation, as in `group_advantages`.
        ages: (N,) episode ages; segments of similar age are grouped. None groups those that began together.
    """
    order = np.arange(len(segments)) if ages is None else np.argsort(ages, kind="stable")
    count = len(segments) // size
    order = order[: count * size]
    kept = returns[torch.from_numpy(order)]
    if not count:
        return Groups(segments[order], kept, kept, np.zeros(0, dtype=bool), len(segments))
    groups = kept.view(count, size)
    advantages = torch.stack([group_advantages(group, mode) for group in groups])
    silent = (advantages == 0).all(dim=1).numpy()
    return Groups(segments[order], advantages.flatten(), kept, silent, len(segments) - count * size)


def grpo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    entropy: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    segments: int,
    decisions: int,
    ent_coef: float,
    clip: float | None = None,
    ref_kl_coef: float = 0.0,
    reference_log_prob: Tensor | None = None,
    kl_estimator: str = "k3",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute a micro-batch's contribution to the GRPO loss: total, policy loss, entropy and KL divergence; scalars.

    The contributions of all micro-batches add up to the loss of the gradient step.

    Args:
        log_prob: (S, L) log π of the actions under the current weights.
        old_log_prob: (S, L) log π of the acting policy; read where `clip` is set.
        entropy: (S, L).
        advantages: (S, L) that of the segment each decision belongs to, over its length where lengths are normalised.
        mask: (S, L) bool, decisions that belong to a segment.
        segments: Segments N of the gradient step.
        decisions: Decisions M of the gradient step.
        ent_coef: Coefficient of the entropy bonus.
        clip: Ratio clip ε, or None.
        ref_kl_coef: Coefficient of the KL divergence from the reference.
        reference_log_prob: (S, L) log π_ref; None without one.
        kl_estimator: `k3` or `k1`.
    """
    weight = mask.to(log_prob.dtype)
    policy = -(surrogate(log_prob, old_log_prob, advantages, clip) * weight).sum() / segments
    bonus = (entropy * weight).sum() / decisions
    total = policy - ent_coef * bonus
    divergence = torch.zeros_like(policy)
    if reference_log_prob is not None:
        divergence = (reference_kl(log_prob, reference_log_prob, kl_estimator) * weight).sum() / decisions
        total = total + ref_kl_coef * divergence
    return total, policy, bonus, divergence


@dataclass(frozen=True)
class _Update:
    """Data of one GRPO update: groups, and reference log-probabilities.

    Attributes:
        groups: All groups.
        learned: Indices of the groups with non-zero variance.
        reference: (T, B) log π_ref; None without a reference.
    """

    groups: Groups
    learned: np.ndarray
    reference: Tensor | None


@dataclass(frozen=True)
class _MicroBatch(MicroBatch):
    """GRPO micro-batch: training sequences with segment advantages and mask.

    Attributes:
        advantages: (S, L) that of the segment each decision belongs to, over its length where lengths are normalised.
        mask: (S, L) bool, decisions that belong to a segment.
        segments: Segments N of the gradient step.
        decisions: Decisions M of the gradient step.
        reference: (S, L) log π_ref; None without one.
    """

    advantages: Tensor
    mask: Tensor
    segments: int
    decisions: int
    reference: Tensor | None


class GRPOLearner(ReferenceLearner[_Update, _MicroBatch]):
    """Learner of group-relative policy optimisation (GRPO).

    Args:
        policy: `NavigationPolicy`.
        shaper: `RewardShaper`; its RND predictor, if it has one, is trained on the update's embeddings.
        config: The run's configuration.
        device: Training device.
        workers: A single process: groups are not distributed.

    Raises:
        ConfigError: The rollout has too few rows to fill a group, there are several processes, or a schedule ends at
            `total_steps`, which is not set.
    """

    section = "grpo"
    schedules = ("learning_rate", "ent_coef", "max_grad_norm", "ref_kl_coef", "gamma")
    means = ("policy_loss", "entropy", "reference_kl", "total_loss", "approx_kl", "clip_fraction")
    peaks = ("parity_ratio",)
    clock = "group_updates"

    def __init__(
        self,
        policy: NavigationPolicy,
        shaper: RewardShaper,
        config: TrainConfig,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        grpo = config.grpo
        super().__init__(policy, shaper, config, device, workers)
        if config.actors < grpo.least_rows():
            raise ConfigError(
                f"{config.actors} actors make {config.actors * (grpo.rollout // grpo.segment_steps)} segments of "
                f"{grpo.segment_steps} decisions a rollout, too few for grpo.group_size {grpo.group_size}; use "
                f"--actors {grpo.least_rows()}, a longer grpo.rollout, a shorter grpo.horizon or a smaller group"
            )
        if grpo.clip is None and grpo.update_epochs > 1:
            _LOG.warning(
                "grpo.update_epochs is %d without grpo.clip: later epochs follow a gradient of actions that the policy "
                "would no longer choose as often; set grpo.clip=0.2 or grpo.update_epochs=1",
                grpo.update_epochs,
            )

    def prepare(self, rollout: Rollout, _index: int, now: dict[str, float], timer: StageTimer) -> _Update:
        """Form groups of segments, and evaluate the reference policy on the rollout."""
        with timer("advantages"):
            groups = self._groups(rollout, now["gamma"])
        with timer("reference"):
            reference = self._reference_log_probs(rollout, now["ref_kl_coef"])
        return _Update(groups, np.flatnonzero(~groups.silent), reference)

    def epochs(self, data: _Update) -> int:
        """Return the number of epochs: the configured one, or 0 if all groups have zero variance."""
        return self.config.grpo.update_epochs if len(data.learned) else 0

    def finish(self, data: _Update, _now: dict[str, float]) -> dict[str, float]:
        """Synchronise the reference policy if due, and return metrics of the groups."""
        groups = data.groups
        self.count(len(data.learned))
        metrics = {
            "groups": float(len(data.learned)),
            "zero_variance_groups": float(groups.silent.sum()),
            "surplus_segments": float(groups.surplus),
        }
        metrics |= {f"dropped_{reason}": float(count) for reason, count in groups.segments.dropped.items()}
        if len(groups.returns):
            metrics |= {
                "segment_return": float(groups.returns.mean()),
                "segment_return_std": float(groups.returns.std(correction=0)),
                "segment_length": float(groups.segments.length.mean()),
            }
        return metrics

    def _groups(self, rollout: Rollout, gamma: float) -> Groups:
        grpo = self.config.grpo
        found = find_segments(rollout.terminated, rollout.truncated, grpo.segment_steps, grpo.min_steps)
        returns = segment_returns(rollout.rewards, found, gamma)
        ages = None
        if grpo.group_by == "age":
            ages = rollout.episode_length.cpu().numpy()[found.start, found.row]
        groups = form_groups(found, returns, grpo.group_size, grpo.normalize_group, ages)
        if not len(groups.silent):
            _LOG.warning(
                "a rollout had %d segments that count, too few for a group of %d (%s): nothing was learned from it",
                len(found),
                grpo.group_size,
                ", ".join(f"{count} {reason}" for reason, count in found.dropped.items()),
            )
        return groups

    def _reference_log_probs(self, rollout: Rollout, coefficient: float) -> Tensor | None:
        """Return log π_ref (T, B) of a rollout; None, without a forward pass, while its coefficient is 0."""
        grpo = self.config.grpo
        if grpo.ref_kl_coef == 0 and "ref_kl_coef" not in grpo.schedules:
            return None
        reference = self.reference_policy()
        if coefficient == 0:
            reference.skip()
            return None
        return reference.log_probs(rollout)

    def batches(
        self, rollout: Rollout, data: _Update, index: int, epoch: int, timer: StageTimer
    ) -> Iterator[Iterator[_MicroBatch]]:
        """Yield the micro-batches of every gradient step's groups, in shuffled order."""
        order = shuffled(self.config.seed, len(data.learned), index, epoch).numpy()
        for first in range(0, len(order), self.config.grpo.groups_per_step):
            chosen = data.learned[order[first : first + self.config.grpo.groups_per_step]]
            yield self._micro_batches(rollout, data, chosen, timer)

    def _micro_batches(
        self, rollout: Rollout, data: _Update, chosen: np.ndarray, timer: StageTimer
    ) -> Iterator[_MicroBatch]:
        grpo, size = self.config.grpo, self.config.grpo.group_size
        with timer("minibatch_prep"):
            pick = (chosen[:, None] * size + np.arange(size)).reshape(-1)
            segments = data.groups.segments[pick]
            advantage = data.groups.advantages.numpy()[pick]
            if grpo.length_normalisation:
                advantage = advantage / segments.length
            step, row, number = segments.decisions()
            index, laid = on_sequences(rollout, step, row, advantage[number])
            _, marked = on_sequences(rollout, step, row, np.ones(len(step)))
            sequences, advantages = (torch.from_numpy(x).to(self.device) for x in (index, laid))
            mask = torch.from_numpy(marked > 0).to(self.device)
        for part in pieces(len(sequences), grpo.microbatch, rollout, self.device):
            with timer("minibatch_fetch"):
                batch, reference = rollout.minibatch(sequences[part]), None
                if data.reference is not None:
                    reference = rollout.in_sequences(data.reference)[sequences[part]]
            share = (part.stop - part.start) / len(sequences)
            yield _MicroBatch(batch, share, advantages[part], mask[part], len(segments), len(step), reference)

    def loss(
        self, batch: _MicroBatch, out: EvaluateOutput, now: dict[str, float]
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Compute the micro-batch's GRPO loss, its contributions to `means`, and the largest |importance ratio − 1|."""
        total, policy, entropy, divergence = grpo_loss(
            out.log_prob,
            batch.sequences.log_probs,
            out.entropy,
            batch.advantages,
            batch.mask,
            segments=batch.segments,
            decisions=batch.decisions,
            ent_coef=now["ent_coef"],
            clip=self.config.grpo.clip,
            ref_kl_coef=now["ref_kl_coef"],
            reference_log_prob=batch.reference,
            kl_estimator=self.config.grpo.kl_estimator,
        )
        with torch.no_grad():
            log_ratio = (out.log_prob - batch.sequences.log_probs)[batch.mask]
            off = (log_ratio.exp() - 1.0).abs()
            clipped = (off > (self.config.grpo.clip or 1.0)).float().mean()
            here = log_ratio.numel() / batch.decisions
            further = [approximate_kl(log_ratio) * here, clipped * here]
        return total, [policy, entropy, divergence, total, *further], off.max()[None]
