"""Direct preference optimisation (Rafailov et al. 2023): of two segments, make the better one the likelier.

With Δ(s) = Σ_t log π(a_t) − Σ_t log π_ref(a_t) over a segment s, the loss of a pair is

    −log σ(β · (Δ(winner) − Δ(loser)))

which is ln 2 where policy and reference agree. Pairs are neighbouring segments of a rollout, of which the one with
the greater return wins, or those of a file; then the rollouts only measure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from navi_core.config import TrainConfig
from navi_core.demos.pairs import Pairs, read_pairs
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.critic_units import CriticUnits, tell_idle_critic
from navi_core.learn.algorithms.gradient_steps import GradientSteps, UpdateStats
from navi_core.learn.algorithms.reference_policy import ReferencePolicy
from navi_core.learn.demos.compatibility import require_alike
from navi_core.learn.estimators.noise import shuffled
from navi_core.learn.estimators.schedules import scheduled
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.attribution import stage_timer, timed_parts
from navi_core.learn.rollout.execution import evaluation
from navi_core.learn.rollout.segments import find_segments, on_sequences, segment_returns
from navi_core.learn.rollout.storage import Minibatch, Rollout

__all__ = ["DPOLearner", "dpo_loss"]

_LOG = logging.getLogger("navi.learn")
_MEANS = ("dpo_loss", "preference_accuracy", "preference_margin", "entropy", "rnd_loss")


def dpo_loss(winner: Tensor, loser: Tensor, beta: float) -> Tensor:
    """Return −log σ(β(Δ(winner) − Δ(loser))) of every pair.

    Args:
        winner: (P,) Δ = log π − log π_ref of the preferred segments.
        loser: (P,) that of the others.
        beta: β.
    """
    return -F.logsigmoid(beta * (winner - loser))


@dataclass(frozen=True)
class _Batch:
    """P pairs as training sequences.

    Attributes:
        sequences: (S, L) observations, actions, resets and the state before each.
        number: (S, L) int64, 2·pair + side (0 the winner) of each decision, −1 where it is in none.
        pairs: P.
        reference: (S, L) log π_ref, None where it is to be asked for.
    """

    sequences: Minibatch
    number: Tensor
    pairs: int
    reference: Tensor | None


class DPOLearner:
    """Turns preferences into weights.

    Args:
        policy: `NavigationPolicy`.
        shaper: `RewardShaper`; its RND predictor, if it has one, is trained on the update's embeddings.
        config: The run's configuration.
        device: Training device.
        workers: One process: pairs are not shared out.

    Raises:
        ConfigError: There are several processes, a schedule ends at `total_steps`, which is not set, or the file of
            pairs was flown otherwise than the run flies.
        DemoError: The file of pairs breaks its format.
    """

    def __init__(
        self, policy: Any, shaper: Any, config: TrainConfig, device: torch.device, workers: Workers = ALONE
    ) -> None:
        if workers.size > 1:
            raise ConfigError(f"dpo learns in one process, not in {workers.size}; start it without torchrun")
        self.policy, self.shaper, self.config, self.device = policy, shaper, config, device
        self.settings(0)
        self.steps = GradientSteps(
            policy, shaper, config.dpo.learning_rate, device, _MEANS, (), "dpo", replayed=config.execution == "graph"
        )
        self._evaluate = evaluation(policy, config, device)
        self.units = CriticUnits()
        tell_idle_critic(config.policy, "dpo")
        self.reference: ReferencePolicy | None = None
        self.updates = 0
        self.pairs: Pairs | None = None
        self._start: Tensor | None = None
        if config.dpo.pairs is not None:
            self.pairs, _ = read_pairs(config.dpo.pairs)
            _require_fit(config, self.pairs)
            count = max(1, round(config.dpo.held_out * len(self.pairs)))
            order = shuffled(config.seed, len(self.pairs)).numpy()
            self._held_out, self._training = order[:count], order[count:]

    def use_vocabulary(self, vocabulary: Mapping[str, int]) -> None:
        """Have the file's surfaces told by the semantic ids of what is flown, whose ids the policy knows.

        Args:
            vocabulary: Semantic id by name; empty where there is none.
        """
        if self.pairs is not None and vocabulary:
            self.pairs = self.pairs.remapped(vocabulary)

    def scenes_of_data(self) -> list[str]:
        """Return the content and source hashes of the file's scenes; none where it does not tell them."""
        return [] if self.pairs is None else self.pairs.scenes

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Adam."""
        return self.steps.optimizer

    def settings(self, steps: int) -> dict[str, float]:
        """Return the scheduled settings after `steps` decisions."""
        return {name: scheduled(self.config, name, steps) for name in ("learning_rate", "max_grad_norm", "beta")}

    def update(self, rollout: Rollout, *, index: int, steps: int) -> UpdateStats:
        """Improve the policy on the pairs of one rollout, or on some of the file's.

        Args:
            rollout: Filled by the collector.
            index: Number of this update; part of the order's seed.
            steps: Decisions before this rollout; sets what is scheduled.

        Raises:
            NonFiniteError: The loss, a gradient or a weight became NaN or infinite; it is named.
        """
        dpo, start = self.config.dpo, time.perf_counter()
        timer, now = stage_timer(self.device, self.config.profile), self.settings(steps)
        if self.reference is None:
            # Not before the first update: only now the policy has the weights that the run begins with.
            self.reference = ReferencePolicy(self.policy)
        metrics: dict[str, float] = dict(now)
        if self.pairs is not None and self._start is None:
            self._start = self._margins(self._held_out)
        with timer("advantages"):
            chosen, counts = self._choose(rollout, index)
        metrics |= counts
        reference = None
        if self.pairs is None:
            with timer("reference"):
                reference = self.reference.log_probs(rollout)
        self.steps.learning_rate(now["learning_rate"])
        eager = self.config.execution == "eager"
        with timed_parts(self.policy, timer, "policy_evaluation") if eager else nullcontext():
            for epoch in range(dpo.update_epochs if len(chosen) else 0):
                order = shuffled(self.config.seed, len(chosen), index, epoch).numpy()
                for first in range(0, len(order), dpo.minibatch):
                    with timer("minibatch_fetch"):
                        some = chosen[order[first : first + dpo.minibatch]]
                        batch = self._file_batch(some) if self.pairs else self._rollout_batch(rollout, some, reference)
                    self._step(batch, now, timer)
        self.updates += 1
        if dpo.ref_sync_every_updates and self.updates % dpo.ref_sync_every_updates == 0:
            self.reference.sync(self.policy)
        with timer("statistics"):
            metrics |= self.steps.read(index)
            if self._start is not None:
                moved = self._margins(self._held_out) - self._start
                metrics["held_out_accuracy"] = float((moved > 0).double().mean())
                metrics["held_out_margin"] = float(moved.mean())
        epochs = dpo.update_epochs if len(chosen) else 0
        metrics["epochs"] = float(epochs)
        return UpdateStats(metrics=metrics, seconds=time.perf_counter() - start, epochs=epochs, timer=timer)

    def _choose(self, rollout: Rollout, index: int) -> tuple[np.ndarray, dict[str, float]]:
        """Return the pairs of an update: (P,) numbers in the file, or (P, 2, 3) row, start and length of segments."""
        dpo = self.config.dpo
        if self.pairs is not None:
            order = shuffled(self.config.seed, len(self._training), index, 1 << 20).numpy()
            return self._training[order[: dpo.pair_buffer]], {"pairs": float(min(dpo.pair_buffer, len(order)))}
        found = find_segments(rollout.terminated, rollout.truncated, dpo.segment_steps, dpo.min_steps)
        returns = segment_returns(rollout.rewards, found).numpy()
        count = len(found) // 2
        # Those that began together, so that neither had more time than the other.
        order = np.arange(2 * count).reshape(count, 2)
        apart = returns[order[:, 0]] != returns[order[:, 1]]
        order = order[apart]
        # Segments come in the order of their beginnings; a buffer that is full must not hold those of the start alone.
        drawn = shuffled(self.config.seed, len(order), index, 1 << 20).numpy()
        kept = order[np.sort(drawn[: dpo.pair_buffer])]
        swap = returns[kept[:, 0]] < returns[kept[:, 1]]
        kept[swap] = kept[swap][:, ::-1]
        places = np.stack((found.row, found.start, found.length), axis=1)[kept]
        counts = {f"dropped_{reason}": float(n) for reason, n in found.dropped.items()}
        counts |= {"pairs": float(len(kept)), "tied_pairs": float((~apart).sum())}
        if not len(kept):
            _LOG.warning("a rollout had %d segments and no pair of different returns: nothing was learned", len(found))
        return places, counts

    def _rollout_batch(self, rollout: Rollout, places: np.ndarray, reference: Tensor | None) -> _Batch:
        row, start, length = places.reshape(-1, 3).T
        number = np.repeat(np.arange(len(row)), length)
        first = np.cumsum(length) - length
        step = np.arange(len(number)) - first[number] + start[number]
        sequences, marks = on_sequences(rollout, step, row[number], number + 1.0)
        index = torch.from_numpy(sequences).to(self.device)
        told = None if reference is None else rollout.in_sequences(reference)[index]
        numbers = torch.from_numpy(marks.astype(np.int64) - 1).to(self.device)
        return _Batch(rollout.minibatch(index), numbers, len(places), told)

    def _file_batch(self, chosen: np.ndarray) -> _Batch:
        assert self.pairs is not None
        index = torch.from_numpy(chosen)
        obs = self.pairs.observations[index].flatten(0, 1).float().to(self.device)
        actions = self.pairs.actions[index].flatten(0, 1).to(self.device)
        lengths = self.pairs.lengths[index].flatten().to(self.device)
        rows, steps = obs.shape[:2]
        counts = torch.arange(steps, device=self.device) < lengths[:, None]
        number = torch.where(counts, torch.arange(rows, device=self.device)[:, None], -1)
        reset = torch.zeros((rows, steps), dtype=torch.bool, device=self.device)
        reset[:, 0] = True
        blank = obs.new_zeros(rows, steps)
        aux, state = obs.new_zeros(rows, steps, 3), self.policy.initial_state(rows, self.device)
        sequences = Minibatch(obs, aux, reset, actions, blank, blank, blank, blank, state)
        return _Batch(sequences, number, len(chosen), None)

    def _sums(self, log_prob: Tensor, batch: _Batch) -> Tensor:
        """Return (P, 2) sums of log-probabilities over each pair's segments."""
        here = batch.number >= 0
        sums = log_prob.new_zeros(2 * batch.pairs).index_add(0, batch.number[here], log_prob[here])
        return sums.view(batch.pairs, 2)

    def _step(self, batch: _Batch, now: dict[str, float], timer: Any) -> None:
        s = batch.sequences
        self.steps.begin()
        told = batch.reference
        if told is None:
            assert self.reference is not None
            with timer("reference"), torch.no_grad():
                told = self.reference.policy.evaluate(s.obs, s.aux, s.state, s.reset, s.actions).log_prob
        with timer("policy_evaluation"):
            out = self._evaluate(s.obs, s.aux, s.state, s.reset, s.actions)
        with timer("loss"):
            moved = self._sums(out.log_prob - told, batch)
            loss = dpo_loss(moved[:, 0], moved[:, 1], now["beta"]).mean()
        with timer("backward"):
            loss.backward()
        with timer("rnd_step"):
            curiosity = self.shaper.learn(out.embedding.detach())
        with timer("statistics"), torch.no_grad():
            margin = now["beta"] * (moved[:, 0] - moved[:, 1])
            parts = (loss, (margin > 0).float().mean(), margin.mean(), out.entropy.mean(), curiosity)
            self.steps.add(torch.stack([x.detach() for x in parts]), torch.zeros(0, device=self.device))
        self.steps.take(now["max_grad_norm"], timer)

    @torch.no_grad()
    def _margins(self, chosen: np.ndarray) -> Tensor:
        """Return log π(winner) − log π(loser) of pairs of the file, (P,) float64."""
        parts = []
        for first in range(0, len(chosen), self.config.dpo.minibatch):
            batch = self._file_batch(chosen[first : first + self.config.dpo.minibatch])
            s = batch.sequences
            sums = self._sums(self.policy.evaluate(s.obs, s.aux, s.state, s.reset, s.actions).log_prob, batch)
            parts.append((sums[:, 0] - sums[:, 1]).double().cpu())
        return torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        """Return state besides the weights and the optimiser's: reference, where the run began, the critic's units."""
        reference = None if self.reference is None else self.reference.state_dict()
        return {"updates": self.updates, "reference": reference, "start": self._start} | self.units.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.updates, self._start, self.reference = int(state["updates"]), state["start"], None
        self.units.take(state)
        if state["reference"] is not None:
            self.reference = ReferencePolicy(self.policy)
            self.reference.load_state_dict(state["reference"])

    def begin_from(self, state: dict[str, Any]) -> None:
        """Carry on the critic's units of another run, whose weights the policy has been given.

        Args:
            state: `state_dict` of its learner.
        """
        self.units.take(state)


def _require_fit(config: TrainConfig, pairs: Pairs) -> None:
    """Refuse pairs that were flown otherwise than the run flies; what the file does not say is not asked."""
    if config.task is not None:
        return
    if config.policy.distribution == "discrete":
        raise ConfigError(
            "policy.distribution discrete cannot learn from dpo.pairs: their flights answer with any action, not with "
            "motion primitives; use gaussian or beta"
        )
    env, d = config.env, config.env.dynamics
    told = {"observation": list(pairs.observations.shape[3:]), "action_axes": pairs.actions.shape[-1]} | pairs.metadata
    facts = (
        ("env: observation", "observation", [3, env.azimuth_bins, env.elevation_bins]),
        ("actions", "action_axes", 4),
        ("env.max_distance", "max_distance", env.max_distance),
        ("env.dynamics: decisions per second", "decision_hz", d.decision_hz),
        ("env.dynamics: speed limits", "limits", [*d.max_speed, d.max_yaw_rate]),
    )
    rows = [(name, here, told.get(key, here)) for name, key, here in facts]
    require_alike(rows, "pairs", "set it alike, or make other pairs")
