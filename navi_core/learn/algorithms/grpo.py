"""Group-relative policy optimisation (Shao et al. 2024): no critic, segments are judged by their group.

A rollout is divided into segments (`segments.py`). K of them make a group; the advantage of a segment is its return
less the group's mean, and all its decisions share it:

    loss = −mean_i(A_i · Σ_t log π(a_t)) − c_ent · mean(H) + c_kl · mean(KL(π‖π_ref))

with the clipped ratio in place of log π where `clip` is set. The value head takes no part.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.critic_units import CriticUnits, tell_idle_critic
from navi_core.learn.algorithms.gradient_steps import GradientSteps, UpdateStats
from navi_core.learn.algorithms.ppo import sequences_at_once, tell_parity
from navi_core.learn.algorithms.reference_policy import ReferencePolicy
from navi_core.learn.estimators.advantages import group_advantages
from navi_core.learn.estimators.losses import approximate_kl, reference_kl, surrogate
from navi_core.learn.estimators.noise import shuffled
from navi_core.learn.estimators.schedules import scheduled
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.attribution import stage_timer, timed_parts
from navi_core.learn.rollout.execution import evaluation
from navi_core.learn.rollout.segments import Segments, find_segments, on_sequences, segment_returns
from navi_core.learn.rollout.storage import Rollout

__all__ = ["GRPOLearner", "Groups", "form_groups", "grpo_loss"]

_LOG = logging.getLogger("navi.learn")
_MEANS = ("policy_loss", "entropy", "reference_kl", "total_loss", "rnd_loss", "approx_kl", "clip_fraction")
_PEAKS = ("parity_ratio",)


@dataclass(frozen=True)
class Groups:
    """Groups of exactly K segments.

    Attributes:
        segments: G·K segments, group after group.
        advantages: (G·K,) float64.
        returns: (G·K,) float64.
        silent: (G,) bool; groups without spread, from which nothing is learned.
        surplus: Segments left over.
    """

    segments: Segments
    advantages: Tensor
    returns: Tensor
    silent: np.ndarray
    surplus: int


def form_groups(segments: Segments, returns: Tensor, size: int, mode: Any, ages: np.ndarray | None = None) -> Groups:
    """Put segments into groups of exactly `size`; what is left over belongs to none.

    Args:
        segments: N segments.
        returns: (N,) what they earned.
        size: K.
        mode: As `group_advantages` takes it.
        ages: (N,) compare segments of like age; None compares those that began together.
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
    """Return a part's share of the loss: total, policy loss, mean entropy and mean divergence, scalars.

    Shares of parts add up to the loss of all of them.

    Args:
        log_prob: (S, L) log π of the actions under the weights that learn.
        old_log_prob: (S, L) log π of the acting policy; read where `clip` is set.
        entropy: (S, L).
        advantages: (S, L) that of the segment each decision belongs to, over its length where lengths are normalised.
        mask: (S, L) bool, decisions that belong to a segment.
        segments: Segments N of all parts.
        decisions: Decisions M of all parts.
        ent_coef: Weight of the entropy.
        clip: Ratio clip ε, or None.
        ref_kl_coef: Weight of the divergence.
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


class GRPOLearner:
    """Turns rollouts into weights by comparing segments.

    Args:
        policy: `NavigationPolicy`.
        shaper: `RewardShaper`; its RND predictor, if it has one, is trained on the update's embeddings.
        config: The run's configuration.
        device: Training device.
        workers: One process: groups are not shared out.

    Raises:
        ConfigError: The rollout has too few rows to fill a group, there are several processes, or a schedule ends at
            `total_steps`, which is not set.
    """

    def __init__(
        self, policy: Any, shaper: Any, config: TrainConfig, device: torch.device, workers: Workers = ALONE
    ) -> None:
        grpo = config.grpo
        if workers.size > 1:
            raise ConfigError(f"grpo learns in one process, not in {workers.size}; start it without torchrun")
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
        self.policy, self.shaper, self.config, self.device = policy, shaper, config, device
        self.settings(0)
        self.steps = GradientSteps(
            policy, shaper, grpo.learning_rate, device, _MEANS, _PEAKS, "grpo", replayed=config.execution == "graph"
        )
        self._evaluate = evaluation(policy, config, device)
        self.units = CriticUnits()
        tell_idle_critic(config.policy, "grpo")
        wanted = grpo.ref_kl_coef > 0 or "ref_kl_coef" in grpo.schedules
        self._wants_reference = wanted
        self.reference: ReferencePolicy | None = None
        self.group_updates = 0
        """Groups that made, or had a part in, a gradient step."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Adam."""
        return self.steps.optimizer

    def settings(self, steps: int) -> dict[str, float]:
        """Return the scheduled settings after `steps` decisions."""
        names = ("learning_rate", "ent_coef", "max_grad_norm", "ref_kl_coef", "gamma")
        return {name: scheduled(self.config, name, steps) for name in names}

    def update(self, rollout: Rollout, *, index: int, steps: int) -> UpdateStats:
        """Improve the policy on one rollout.

        Args:
            rollout: Filled by the collector.
            index: Number of this update; part of the order's seed.
            steps: Decisions before this rollout; sets what is scheduled.

        Raises:
            NonFiniteError: A loss, a gradient or a weight became NaN or infinite; it is named.
        """
        grpo, start = self.config.grpo, time.perf_counter()
        timer = stage_timer(self.device, self.config.profile)
        now = self.settings(steps)
        with timer("advantages"):
            groups, dropped = self._groups(rollout, now["gamma"])
        with timer("reference"):
            reference = self._reference_log_probs(rollout, now["ref_kl_coef"])
        self.steps.learning_rate(now["learning_rate"])
        speaking = np.flatnonzero(~groups.silent)
        eager = self.config.execution == "eager"
        with timed_parts(self.policy, timer, "policy_evaluation") if eager else nullcontext():
            for epoch in range(grpo.update_epochs if len(speaking) else 0):
                order = shuffled(self.config.seed, len(speaking), index, epoch).numpy()
                for first in range(0, len(order), grpo.groups_per_step):
                    chosen = speaking[order[first : first + grpo.groups_per_step]]
                    self._step(rollout, groups, chosen, reference, now, timer)
        self._sync(len(speaking))
        with timer("statistics"):
            metrics = self.steps.read(index)
            if "parity_ratio" in metrics and self.config.precision == "fp32":
                tell_parity(metrics, index)
        epochs = grpo.update_epochs if len(speaking) else 0
        metrics |= now | {"epochs": float(epochs), "groups": float(len(speaking))}
        metrics |= {"zero_variance_groups": float(groups.silent.sum()), "surplus_segments": float(groups.surplus)}
        metrics |= {f"dropped_{reason}": float(count) for reason, count in dropped.items()}
        if len(groups.returns):
            metrics |= {
                "segment_return": float(groups.returns.mean()),
                "segment_return_std": float(groups.returns.std(correction=0)),
                "segment_length": float(groups.segments.length.mean()),
            }
        return UpdateStats(metrics=metrics, seconds=time.perf_counter() - start, epochs=epochs, timer=timer)

    def _groups(self, rollout: Rollout, gamma: float) -> tuple[Groups, dict[str, int]]:
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
        return groups, found.dropped

    def _reference_log_probs(self, rollout: Rollout, coefficient: float) -> Tensor | None:
        """Return (T, B) log π_ref; None, and no forward pass, while the coefficient is 0."""
        if not self._wants_reference:
            return None
        if self.reference is None:
            # Not before the first update: only now the policy has the weights that the run begins with.
            self.reference = ReferencePolicy(self.policy)
        if coefficient == 0:
            self.reference.miss()
            return None
        return self.reference.log_probs(rollout)

    def _sync(self, groups: int) -> None:
        every = self.config.grpo.ref_sync_every_updates
        before, self.group_updates = self.group_updates, self.group_updates + groups
        if self.reference is not None and before // every != self.group_updates // every:
            self.reference.sync(self.policy)

    def _step(
        self,
        rollout: Rollout,
        groups: Groups,
        chosen: np.ndarray,
        reference: Tensor | None,
        now: dict[str, float],
        timer: Any,
    ) -> None:
        """Take one gradient step on some groups."""
        grpo, size = self.config.grpo, self.config.grpo.group_size
        with timer("minibatch_prep"):
            pick = (chosen[:, None] * size + np.arange(size)).reshape(-1)
            segments = groups.segments[pick]
            advantage = groups.advantages.numpy()[pick]
            if grpo.length_normalisation:
                advantage = advantage / segments.length
            step, row, number = segments.decisions()
            index, laid = on_sequences(rollout, step, row, advantage[number])
            _, marked = on_sequences(rollout, step, row, np.ones(len(step)))
            sequences, advantages = (torch.from_numpy(x).to(self.device) for x in (index, laid))
            mask = torch.from_numpy(marked > 0).to(self.device)
        self.steps.begin()
        for part in _pieces(len(sequences), sequences_at_once(grpo.microbatch, rollout, self.device)):
            with timer("minibatch_fetch"):
                batch = rollout.minibatch(sequences[part])
                told = None if reference is None else rollout.in_sequences(reference)[sequences[part]]
            with timer("policy_evaluation"):
                out = self._evaluate(batch.obs, batch.aux, batch.state, batch.reset, batch.actions)
            with timer("loss"):
                total, policy, entropy, divergence = grpo_loss(
                    out.log_prob,
                    batch.log_probs,
                    out.entropy,
                    advantages[part],
                    mask[part],
                    segments=len(segments),
                    decisions=len(step),
                    ent_coef=now["ent_coef"],
                    clip=grpo.clip,
                    ref_kl_coef=now["ref_kl_coef"],
                    reference_log_prob=told,
                    kl_estimator=grpo.kl_estimator,
                )
            with timer("backward"):
                total.backward()
            share = (part.stop - part.start) / len(sequences)
            with timer("rnd_step"):
                curiosity = self.shaper.learn(out.embedding.detach(), share)
            with timer("statistics"), torch.no_grad():
                here = mask[part]
                log_ratio = (out.log_prob - batch.log_probs)[here]
                off = (log_ratio.exp() - 1.0).abs()
                part_of_all = log_ratio.numel() / len(step)
                clipped = (off > (grpo.clip or 1.0)).float().mean()
                further = torch.stack((approximate_kl(log_ratio), clipped)) * part_of_all
                means = torch.stack((policy, entropy, divergence, total, curiosity * share)).detach()
                self.steps.add(torch.cat((means, further)), off.max()[None])
        self.steps.take(now["max_grad_norm"], timer)

    def state_dict(self) -> dict[str, Any]:
        """Return state besides the weights and the optimiser's: the reference, its clock, the critic's units."""
        reference = None if self.reference is None else self.reference.state_dict()
        return {"group_updates": self.group_updates, "reference": reference} | self.units.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.group_updates = int(state["group_updates"])
        self.units.take(state)
        self.reference = None
        if state["reference"] is not None:
            self.reference = ReferencePolicy(self.policy)
            self.reference.load_state_dict(state["reference"])

    def begin_from(self, state: dict[str, Any]) -> None:
        """Carry on the critic's units of another run, whose weights the policy has been given.

        Args:
            state: `state_dict` of its learner.
        """
        self.units.take(state)


def _pieces(count: int, size: int | None) -> Iterator[slice]:
    step = count if size is None else size
    for start in range(0, count, max(step, 1)):
        yield slice(start, min(start + step, count))
