"""Direct preference optimisation (DPO, Rafailov et al. 2023) on pairs of flight segments.

With Δ(s) = Σ_t log π(a_t) − Σ_t log π_ref(a_t) over a segment s, the loss of a pair is

    −log σ(β · (Δ(winner) − Δ(loser)))

which is ln 2 where policy and reference agree. Pairs are neighbouring segments of a rollout, where the greater return
wins, or preference pairs of a file; then rollouts only provide metrics.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from navi_core.config import TrainConfig
from navi_core.demos.pairs import Pairs, read_pairs
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.cloning import require_alike
from navi_core.learn.algorithms.rollout_learner import MicroBatch, ReferenceLearner
from navi_core.learn.estimators.noise import shuffled
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.minibatches import Segments, find_segments, on_sequences, segment_returns
from navi_core.learn.rollout.storage import Minibatch, Rollout
from navi_core.policy import EvaluateOutput, NavigationPolicy, RewardShaper
from navi_core.record import StageTimer

_LOG = logging.getLogger("navi.learn")


def dpo_loss(winner: Tensor, loser: Tensor, beta: float) -> Tensor:
    """Compute the DPO loss −log σ(β(Δ(winner) − Δ(loser))) of every pair.

    Args:
        winner: (P,) Δ = log π − log π_ref of the preferred segments.
        loser: (P,) Δ of the other segments.
        beta: β.
    """
    return -F.logsigmoid(beta * (winner - loser))


@dataclass(frozen=True)
class _Update:
    """Data of one DPO update: pairs, their metrics, reference log-probabilities.

    Attributes:
        pairs: (P,) indices in the file, or (P, 2, 3) row, start and length of segments.
        counts: Metrics of the pair selection.
        reference: (T, B) log π_ref of the rollout; None for pairs of a file.
    """

    pairs: np.ndarray
    counts: dict[str, float]
    reference: Tensor | None


@dataclass(frozen=True)
class _MicroBatch(MicroBatch):
    """DPO micro-batch: P pairs as training sequences.

    Attributes:
        number: (S, L) int64, 2·pair + side (0 is the winner) of each decision, −1 outside of all pairs.
        pairs: Number of pairs P.
        reference: (S, L) log π_ref; None where it is evaluated per minibatch.
    """

    number: Tensor
    pairs: int
    reference: Tensor | None


class DPOLearner(ReferenceLearner[_Update, _MicroBatch]):
    """Learner of direct preference optimisation (DPO), with a frozen reference policy.

    Args:
        policy: `NavigationPolicy`.
        shaper: `RewardShaper`; its RND predictor, if it has one, is trained on the update's embeddings.
        config: The run's configuration.
        device: Training device.
        workers: A single process: pairs are not distributed.

    Raises:
        ConfigError: There are several processes, a schedule ends at `total_steps`, which is not set, or the file of
            pairs was recorded with other settings than the run's.
        DemoError: The file of pairs breaks its format.
    """

    section = "dpo"
    schedules = ("learning_rate", "max_grad_norm", "beta")
    means = ("dpo_loss", "preference_accuracy", "preference_margin", "entropy")
    clock = "updates"

    def __init__(
        self,
        policy: NavigationPolicy,
        shaper: RewardShaper,
        config: TrainConfig,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        super().__init__(policy, shaper, config, device, workers)
        self.pairs: Pairs | None = None
        self._start: Tensor | None = None
        if config.dpo.pairs is not None:
            self.pairs, _ = read_pairs(config.dpo.pairs)
            _require_fit(config, self.pairs)
            count = max(1, round(config.dpo.held_out * len(self.pairs)))
            order = shuffled(config.seed, len(self.pairs)).numpy()
            self._held_out, self._training = order[:count], order[count:]

    def use_vocabulary(self, vocabulary: Mapping[str, int]) -> None:
        """Remap the semantic ids of the preference file to the corpus vocabulary that the policy was trained on.

        Args:
            vocabulary: Semantic id by name; empty for no remapping.
        """
        if self.pairs is not None and vocabulary:
            self.pairs = self.pairs.remapped(vocabulary)

    def scenes_of_data(self) -> list[str]:
        """Return the content and source hashes of the preference file's scenes; empty without a file."""
        return [] if self.pairs is None else self.pairs.scenes

    def prepare(self, rollout: Rollout, index: int, _now: dict[str, float], timer: StageTimer) -> _Update:
        """Select the preference pairs of the file, or of the rollout with log-probabilities of the reference policy."""
        reference = self.reference_policy()
        if self.pairs is not None:
            if self._start is None:
                self._start = self._margins(self._held_out)
            with timer("advantages"):
                order = shuffled(self.config.seed, len(self._training), index, 1 << 20).numpy()
                chosen = self._training[order[: self.config.dpo.pair_buffer]]
            return _Update(chosen, {"pairs": float(len(chosen))}, None)
        with timer("advantages"):
            pairs, counts = self._choose(rollout, index)
        with timer("reference"):
            return _Update(pairs, counts, reference.log_probs(rollout))

    def epochs(self, data: _Update) -> int:
        """Return the number of epochs: the configured one, or 0 without pairs."""
        return self.config.dpo.update_epochs if len(data.pairs) else 0

    def finish(self, data: _Update, _now: dict[str, float]) -> dict[str, float]:
        """Synchronise the reference policy if due, and return metrics of the pairs, held-out ones included."""
        self.count(1)
        if self._start is None:
            return data.counts
        moved = self._margins(self._held_out) - self._start
        accuracy = float((moved > 0).double().mean())
        return data.counts | {"held_out_accuracy": accuracy, "held_out_margin": float(moved.mean())}

    def _choose(self, rollout: Rollout, index: int) -> tuple[np.ndarray, dict[str, float]]:
        """Build (winner, loser) preference pairs of rollout segments, (P, 2, 3) row, start, length; also metrics."""
        dpo = self.config.dpo
        found = find_segments(rollout.terminated, rollout.truncated, dpo.segment_steps, dpo.min_steps)
        returns = segment_returns(rollout.rewards, found).numpy()
        count = len(found) // 2
        # Pair segments with equal or neighbouring starts, so neither had more time than the other.
        order = np.arange(2 * count).reshape(count, 2)
        apart = returns[order[:, 0]] != returns[order[:, 1]]
        order = order[apart]
        # Segments are ordered by start; a full buffer must not hold only those from the start of the rollout.
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

    def _rollout_batch(self, rollout: Rollout, places: np.ndarray, reference: Tensor | None) -> _MicroBatch:
        rows, start, length = places.reshape(-1, 3).T
        step, row, number = Segments(rows, start, length, {}).decisions()
        sequences, marks = on_sequences(rollout, step, row, number + 1.0)
        index = torch.from_numpy(sequences).to(self.device)
        log_probs = None if reference is None else rollout.in_sequences(reference)[index]
        numbers = torch.from_numpy(marks.astype(np.int64) - 1).to(self.device)
        return _MicroBatch(rollout.minibatch(index), 1.0, numbers, len(places), log_probs)

    def _file_batch(self, chosen: np.ndarray) -> _MicroBatch:
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
        return _MicroBatch(sequences, 1.0, number, len(chosen), None)

    def _sums(self, log_prob: Tensor, batch: _MicroBatch) -> Tensor:
        """Sum log-probabilities over each pair's two segments, (P, 2)."""
        here = batch.number >= 0
        sums = log_prob.new_zeros(2 * batch.pairs).index_add(0, batch.number[here], log_prob[here])
        return sums.view(batch.pairs, 2)

    def batches(
        self, rollout: Rollout, data: _Update, index: int, epoch: int, timer: StageTimer
    ) -> Iterator[list[_MicroBatch]]:
        """Yield shuffled minibatches of pairs, each as one micro-batch."""
        order, size = shuffled(self.config.seed, len(data.pairs), index, epoch).numpy(), self.config.dpo.minibatch
        for first in range(0, len(order), size):
            with timer("minibatch_fetch"):
                chosen = data.pairs[order[first : first + size]]
                if self.pairs is None:
                    batch = self._rollout_batch(rollout, chosen, data.reference)
                else:
                    batch = self._file_batch(chosen)
            if batch.reference is None:
                s = batch.sequences
                with timer("reference"), torch.no_grad():
                    out = self.reference_policy().policy.evaluate(s.obs, s.aux, s.state, s.reset, s.actions)
                    batch = replace(batch, reference=out.log_prob)
            yield [batch]

    def loss(
        self, batch: _MicroBatch, out: EvaluateOutput, now: dict[str, float]
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Compute a minibatch's mean DPO loss and its metrics: loss, preference accuracy, margin and entropy."""
        assert batch.reference is not None
        moved = self._sums(out.log_prob - batch.reference, batch)
        loss = dpo_loss(moved[:, 0], moved[:, 1], now["beta"]).mean()
        with torch.no_grad():
            margin = now["beta"] * (moved[:, 0] - moved[:, 1])
            means = [loss, (margin > 0).float().mean(), margin.mean(), out.entropy.mean()]
        return loss, means, torch.zeros(0, device=self.device)

    @torch.no_grad()
    def _margins(self, chosen: np.ndarray) -> Tensor:
        """Compute the log-probability margins log π(winner) − log π(loser) of pairs of the file, (P,) float64."""
        parts = []
        for first in range(0, len(chosen), self.config.dpo.minibatch):
            batch = self._file_batch(chosen[first : first + self.config.dpo.minibatch])
            s = batch.sequences
            sums = self._sums(self.policy.evaluate(s.obs, s.aux, s.state, s.reset, s.actions).log_prob, batch)
            parts.append((sums[:, 0] - sums[:, 1]).double().cpu())
        return torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        """Return the learner's state: reference policy, held-out margins, and the critic's normalisation state."""
        return {"start": self._start} | super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore reference policy, held-out margins and the critic's normalisation state from a `state_dict`."""
        super().load_state_dict(state)
        self._start = state["start"]


def _require_fit(config: TrainConfig, pairs: Pairs) -> None:
    """Validate that the preference file was recorded with the run's settings; unstated ones are not checked."""
    if config.task is not None:
        return
    if config.policy.distribution == "discrete":
        raise ConfigError(
            "policy.distribution discrete cannot learn from dpo.pairs: their flights answer with any action, not with "
            "motion primitives; use gaussian or beta"
        )
    env, d = config.env, config.env.dynamics
    recorded = {
        "observation": list(pairs.observations.shape[3:]),
        "action_axes": pairs.actions.shape[-1],
    } | pairs.metadata
    facts = (
        ("env: observation", "observation", [3, env.azimuth_bins, env.elevation_bins]),
        ("actions", "action_axes", 4),
        ("env.max_distance", "max_distance", env.max_distance),
        ("env.dynamics: decisions per second", "decision_hz", d.decision_hz),
        ("env.dynamics: speed limits", "limits", [*d.max_speed, d.max_yaw_rate]),
    )
    rows = [(name, here, recorded.get(key, here)) for name, key, here in facts]
    require_alike(rows, "pairs", "set it alike, or make other pairs")
