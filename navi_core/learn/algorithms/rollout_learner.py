"""Base classes of rollout learners (PPO, GRPO, DPO), and the frozen reference policy of GRPO and DPO."""

import copy
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError
from navi_core.learn.algorithms.gradient_steps import GradientSteps, UpdateStats
from navi_core.learn.estimators.noise import scheduled
from navi_core.learn.estimators.normalisation import CriticUnits
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.execution import carried_out, stage_timer, timed_parts
from navi_core.learn.rollout.storage import Minibatch, Rollout
from navi_core.policy import EvaluateOutput, NavigationPolicy, RewardShaper
from navi_core.record import StageTimer

_LOG = logging.getLogger("navi.learn")
_LARGE, _AT_ONCE = 2**14, 64
"""Least observation size at which a CPU gets micro-batches of 64 observations: malloc maps blocks above 32 MB anew each
time, and 128 observations take about a tenth longer by the page faults."""
_PARITY = 1e-2
"""Ratio error before the first step above which a warning says that acting and learning policy differ."""


def pieces(count: int, microbatch: int | None, rollout: Rollout, device: torch.device) -> Iterator[slice]:
    """Split the `count` sequences of a minibatch into slices of one micro-batch each."""
    if microbatch is None and device.type == "cpu" and rollout.observations.numbers >= _LARGE:
        microbatch = max(1, _AT_ONCE // rollout.bptt)
    step = max(1, microbatch or count)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


@dataclass(frozen=True)
class MicroBatch:
    """Micro-batch: the training sequences of one forward and backward pass.

    Attributes:
        sequences: (S, L) training sequences.
        share: Fraction of the minibatch's sequences.
    """

    sequences: Minibatch
    share: float


Data = TypeVar("Data")
Micro = TypeVar("Micro", bound=MicroBatch)


class RolloutLearner(ABC, Generic[Data, Micro]):
    """Abstract learner on rollouts: epochs of gradient steps on micro-batches.

    A subclass prepares the rollout, draws minibatches and computes the loss of a micro-batch.

    Args:
        policy: `NavigationPolicy`.
        shaper: `RewardShaper`; its RND predictor, if it has one, is trained on the update's embeddings.
        config: The run's configuration.
        device: Training device.
        workers: Data-parallel processes of the run; each contributes the rollout of its rows.

    Raises:
        ConfigError: A schedule ends at `total_steps`, which is not set.
    """

    section: str
    """The learner's section of the configuration."""
    schedules: tuple[str, ...]
    """Scheduled settings that are reported as metrics."""
    means: Sequence[str]
    """Names of statistics that are averaged over the minibatches, besides the RND loss."""
    peaks: Sequence[str] = ()
    """Names of statistics of the first minibatch that are reported as maxima."""

    def __init__(
        self,
        policy: NavigationPolicy,
        shaper: RewardShaper,
        config: TrainConfig,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        self.policy, self.shaper, self.config, self.device, self.workers = policy, shaper, config, device, workers
        settings = self.settings(0)
        graph = config.execution == "graph"
        self.steps = GradientSteps(
            policy, shaper, settings["learning_rate"], device, (*self.means, "rnd_loss"), self.peaks, self.section,
            workers, replayed=graph,
        )  # fmt: skip
        self._evaluate = carried_out(policy.evaluate, config, device)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Adam optimiser of the policy."""
        return self.steps.optimizer

    def settings(self, steps: int) -> dict[str, float]:
        """Return the scheduled settings after `steps` decisions."""
        return {name: scheduled(self.config, name, steps) for name in self.schedules}

    def update(self, rollout: Rollout, *, index: int, steps: int) -> UpdateStats:
        """Update the policy on one rollout: epochs of minibatch gradient steps.

        Args:
            rollout: Filled by the collector.
            index: Number of this update; part of the shuffle's seed.
            steps: Decisions before this rollout; determines the scheduled settings.

        Raises:
            NonFiniteError: A loss, a gradient or a weight became NaN or infinite; it is named.
        """
        start, timer, now = time.perf_counter(), stage_timer(self.device, self.config.profile), self.settings(steps)
        max_grad_norm = scheduled(self.config, "max_grad_norm", steps)
        data = self.prepare(rollout, index, now, timer)
        self.steps.learning_rate(now["learning_rate"])
        planned, epochs = self.epochs(data), 0
        # Module hooks would cause graph breaks in a compiled program.
        eager = self.config.execution == "eager"
        with timed_parts(self.policy, timer, "policy_evaluation") if eager else nullcontext():
            while epochs < planned:
                first = len(self.steps.rows)
                for micro_batches in self.batches(rollout, data, index, epochs, timer):
                    self.steps.zero_grad()
                    for batch in micro_batches:
                        self._backward(batch, now, timer)
                    self.steps.step(max_grad_norm, timer)
                epochs += 1
                # Between epochs only: the first epoch always runs, and parity is measured before it.
                if epochs < planned and self.stops_early(first):
                    break
        with timer("statistics"):
            metrics = self.steps.pop_metrics(index, self.tensor_metrics(data))
            if self.config.precision == "fp32" and metrics.get("parity_ratio", 0.0) > _PARITY:
                _LOG.warning(
                    "before the first step of update %d the policy's ratio to the one that acted is off by %.2g: the "
                    "update learns from another policy's data",
                    index,
                    metrics["parity_ratio"],
                )
            metrics |= now | {"epochs": float(epochs)} | self.finish(data, now)
        return UpdateStats(metrics=metrics, seconds=time.perf_counter() - start, epochs=epochs, timer=timer)

    def _backward(self, batch: Micro, now: dict[str, float], timer: StageTimer) -> None:
        """Evaluate one micro-batch, backpropagate its loss, and accumulate its statistics."""
        s = batch.sequences
        with timer("policy_evaluation"):
            out = self._evaluate(s.obs, s.aux, s.state, s.reset, s.actions)
        with timer("loss"):
            loss, means, peaks = self.loss(batch, out, now)
        with timer("backward"):
            loss.backward()
        with timer("rnd_step"):
            curiosity = self.shaper.learn(out.embedding.detach(), batch.share) * batch.share
        with timer("statistics"):
            self.steps.accumulate(torch.cat((torch.stack(means).detach(), curiosity[None])), peaks)

    @abstractmethod
    def prepare(self, rollout: Rollout, index: int, now: dict[str, float], timer: StageTimer) -> Data:
        """Preprocess a rollout for the loss: advantages, groups or pairs, reference log-probabilities.

        Args:
            rollout: Filled by the collector.
            index: Number of the update.
            now: Scheduled settings.
            timer: Stage timings.
        """

    @abstractmethod
    def epochs(self, data: Data) -> int:
        """Return the number of epochs; 0 if there is nothing to learn from."""

    @abstractmethod
    def batches(
        self, rollout: Rollout, data: Data, index: int, epoch: int, timer: StageTimer
    ) -> Iterator[Iterable[Micro]]:
        """Yield the micro-batches of every minibatch of an epoch; one gradient step per minibatch."""

    @abstractmethod
    def loss(self, batch: Micro, out: EvaluateOutput, now: dict[str, float]) -> tuple[Tensor, list[Tensor], Tensor]:
        """Compute a micro-batch's contribution to the loss and to each of `means`, scalars, and its `peaks` (P,).

        Args:
            batch: The sequences.
            out: Output of the policy's `evaluate` on them.
            now: Scheduled settings.
        """

    def stops_early(self, _first: int) -> bool:
        """Return whether to stop the update after an epoch; its statistics start at row `_first` of `steps.rows`."""
        return False

    def tensor_metrics(self, _data: Data) -> dict[str, Tensor]:
        """Return further scalar metrics on the device, to be read with the statistics."""
        return {}

    def finish(self, _data: Data, _now: dict[str, float]) -> dict[str, float]:
        """Hook after the last gradient step; return further metrics."""
        return {}


class ReferencePolicy:
    """Frozen copy of the policy at its last synchronisation (reference policy π_ref).

    It carries its own recurrent state from rollout to rollout. After a skipped rollout it takes the acting policy's
    state at the start of the next one.

    Args:
        policy: The policy to be copied.
    """

    def __init__(self, policy: NavigationPolicy) -> None:
        self.policy = copy.deepcopy(policy).requires_grad_(False).eval()
        self._state: tuple[Tensor, ...] | None = None

    def sync(self, policy: NavigationPolicy) -> None:
        """Copy the weights of `policy`, and reset the recurrent state to the acting policy's."""
        self.policy.load_state_dict(policy.state_dict())
        self._state = None

    def skip(self) -> None:
        """Skip a rollout: discard the recurrent state of the reference policy."""
        self._state = None

    @torch.no_grad()
    def log_probs(self, rollout: Rollout) -> Tensor:
        """Compute log π_ref (T, B) of a rollout's actions; call once per rollout, in order."""
        state = self._state if self._state is not None else tuple(x[0] for x in rollout.chunk_state)
        parts = []
        for chunk in range(rollout.chunks):
            batch = rollout.minibatch(slice(chunk * rollout.rows, (chunk + 1) * rollout.rows))
            out = self.policy.evaluate(batch.obs, batch.aux, state, batch.reset, batch.actions)
            state = out.state
            parts.append(out.log_prob.transpose(0, 1))
        self._state = tuple(x.clone() for x in state)
        return torch.cat(parts)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the recurrent state."""
        return {
            "policy": {name: x.clone() for name, x in self.policy.state_dict().items()},
            "state": None if self._state is None else [x.clone() for x in self._state],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore weights and recurrent state from a `state_dict`."""
        self.policy.load_state_dict(state["policy"])
        device = next(self.policy.parameters()).device
        self._state = None if state["state"] is None else tuple(x.to(device) for x in state["state"])


class ReferenceLearner(RolloutLearner[Data, Micro]):
    """Abstract single-process learner with a reference policy and without a critic (GRPO, DPO).

    Raises:
        ConfigError: There are several processes, or a schedule ends at `total_steps`, which is not set.
    """

    clock: str
    """Key of the update counter in checkpoints."""

    def __init__(
        self,
        policy: NavigationPolicy,
        shaper: RewardShaper,
        config: TrainConfig,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        if workers.size > 1:
            raise ConfigError(f"{self.section} learns in one process, not in {workers.size}; start it without torchrun")
        super().__init__(policy, shaper, config, device)
        self.reference: ReferencePolicy | None = None
        """Reference policy; created at the first update, when the policy has the run's initial weights."""
        self.units = CriticUnits()
        self.updates = 0
        """Number of updates, or of groups, trained on so far."""

    def reference_policy(self) -> ReferencePolicy:
        """Return the reference policy, created at the first call as a copy of the policy."""
        if self.reference is None:
            self.reference = ReferencePolicy(self.policy)
        return self.reference

    def count(self, updates: int) -> None:
        """Add to the update counter, and synchronise the reference policy at its interval."""
        every = self.config.rule.ref_sync_every_updates
        before, self.updates = self.updates, self.updates + updates
        if every and self.reference is not None and before // every != self.updates // every:
            self.reference.sync(self.policy)

    def state_dict(self) -> dict[str, Any]:
        """Return the learner's state: reference policy, update counter, and the critic's normalisation state."""
        reference = None if self.reference is None else self.reference.state_dict()
        return {self.clock: self.updates, "reference": reference} | self.units.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore reference policy, update counter and the critic's normalisation state from a `state_dict`."""
        self.units.load_state_dict(state)
        self.updates, self.reference = int(state[self.clock]), None
        if state["reference"] is not None:
            self.reference_policy().load_state_dict(state["reference"])

    def begin_from(self, state: dict[str, Any]) -> None:
        """Load the critic's normalisation state of the run whose weights the policy starts from.

        Args:
            state: `state_dict` of that run's learner.
        """
        self.units.load_state_dict(state)
