"""Behaviour cloning (Pomerleau 1989): make the teacher's actions likely.

L = −E[log π(a|o)] − β·H over sequences of demonstrations, with the recurrent core and its resets. log_std is frozen:
its maximum-likelihood value would shrink to the clone's error and leave a policy that explores nothing when
reinforcement learning takes over. The critic is not trained; demonstrations know no reward.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError, NonFiniteError
from navi_core.learn.algorithms.gradient_steps import UpdateStats
from navi_core.learn.demonstrations import DemoFeed, SequenceBatch
from navi_core.learn.estimators.normalisation import CriticUnits
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.rollout.execution import carried_out
from navi_core.policy import NavigationPolicy, RewardShaper
from navi_core.policy.navigation_policy import AUX_INPUTS
from navi_core.record import StageTimer


class EpochInterrupted(Exception):  # noqa: N818 - a stop that was asked for is no error
    """An epoch was given up because the run is to stop."""


def cloning_loss(log_prob: Tensor, entropy: Tensor, mask: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Return L = −mean(log π) − β·mean(H) over the decisions that count, and −mean(log π) alone.

    Args:
        log_prob: Log densities of the teacher's actions, (S, L) [nat].
        entropy: Entropies, (S, L) [nat].
        mask: Which decisions count, (S, L) bool.
        beta: β.
    """
    weight = mask.to(log_prob.dtype)
    count = weight.sum().clamp_min(1.0)
    nll = -(log_prob * weight).sum() / count
    return nll - beta * (entropy * weight).sum() / count, nll


class CloningLearner:
    """Turns demonstrations into weights.

    Args:
        policy: `NavigationPolicy`.
        shaper: Unused: demonstrations have no rewards. Part of the signature that all learners share.
        config: The run's configuration.
        device: Training device.
        workers: One process; demonstrations are not shared out.

    Raises:
        ConfigError: The policy chooses among motion primitives, there are several processes, or the device cannot
            capture graphs.
    """

    def __init__(
        self,
        policy: NavigationPolicy,
        _shaper: RewardShaper,
        config: TrainConfig,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        if workers.size > 1:
            raise ConfigError(f"bc learns in one process, not in {workers.size}; start it without torchrun")
        self.policy, self.config, self.device = policy, config, device
        if policy.config.distribution == "discrete":
            raise ConfigError(
                "policy.distribution discrete cannot be cloned: demonstrations answer with any action, not with motion "
                "primitives; use gaussian or beta"
            )
        self._score = carried_out(policy.evaluate, config, device)
        self.units = CriticUnits()
        kept = ("heads.log_std", "heads.critic.", "critic_trunk.")
        self.parameters = [p for name, p in policy.named_parameters() if not name.startswith(kept)]
        self.optimizer = torch.optim.Adam(self.parameters, lr=config.bc.learning_rate, eps=1e-5, fused=True)

    def update(
        self, feed: DemoFeed, /, *, index: int, steps: int, stop: Callable[[], bool] | None = None
    ) -> UpdateStats:
        """Make one epoch.

        Args:
            feed: The demonstrations.
            index: Number of the epoch; decides the order.
            steps: Decisions learned from before; unused.
            stop: Called before every minibatch.

        Raises:
            NonFiniteError: The loss, the gradient or a weight became NaN or infinite.
            EpochInterrupted: `stop` returned True; weights are those of the middle of the epoch.
        """
        del steps  # nothing is scheduled
        bc, timer, start = self.config.bc, StageTimer(), time.perf_counter()
        state = self.policy.initial_state(feed.lanes, self.device)
        rows: list[Tensor] = []
        batches = feed.epoch(index, self.device)
        while True:
            if stop is not None and stop():
                raise EpochInterrupted
            with timer("minibatch_fetch"):
                batch = next(batches, None)
            if batch is None:
                break
            with timer("policy_evaluation"):
                log_prob, entropy, state = self._evaluate(batch, state)
                total, nll = cloning_loss(log_prob, entropy, batch.mask, bc.entropy_coefficient)
            with timer("backward"):
                # The critic's, too: a compiled evaluation makes zeros of them, which would add up in a graph's memory.
                self.policy.zero_grad(set_to_none=True)
                total.backward()
            with timer("gradient_clip"):
                norm = torch.nn.utils.clip_grad_norm_(self.parameters, bc.max_grad_norm)
            with timer("optimizer_step"):
                self.optimizer.step()
            spread = (entropy * batch.mask).sum()
            rows.append(torch.stack((nll, total, norm, spread, batch.mask.sum())).detach())
        with timer("statistics"):
            metrics = self._metrics(rows, index)
        metrics["learning_rate"] = bc.learning_rate
        return UpdateStats(metrics=metrics, seconds=time.perf_counter() - start, epochs=1, timer=timer)

    @torch.no_grad()
    def validate(self, feed: DemoFeed) -> float:
        """Return the negative log-likelihood of the held-out decisions [nat per decision]."""
        state = self.policy.initial_state(feed.lanes, self.device)
        total, count = torch.zeros((), dtype=torch.float64), 0
        for batch in feed.validation(self.device):
            log_prob, _, state = self._evaluate(batch, state)
            total -= (log_prob.double() * batch.mask).sum().cpu()
            count += int(batch.mask.sum())
        return float(total) / count

    def _evaluate(self, batch: SequenceBatch, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Score the teacher's actions; also return the states with this batch's lanes moved on."""
        # Of the auxiliary input a recording has the features of the occupancy map alone.
        aux = torch.cat((torch.zeros(*batch.mask.shape, AUX_INPUTS, device=self.device), batch.places), dim=-1)
        before = tuple(x.index_select(0, batch.lanes) for x in state)
        out = self._score(batch.obs, aux, before, batch.reset, batch.actions)
        # Truncated backpropagation: what comes before a sequence is known to it, but not changed by it.
        after = tuple(x.index_copy(0, batch.lanes, new.detach()) for x, new in zip(state, out.state, strict=True))
        return out.log_prob, out.entropy, after

    def _metrics(self, rows: list[Tensor], index: int) -> dict[str, float]:
        weights = torch.stack([p.detach().abs().sum() for p in self.parameters]).sum()
        table = torch.stack(rows).double()
        nll, total, norm, entropy, count = (column.tolist() for column in table.unbind(1))
        for name, values in (("nll", nll), ("total_loss", total), ("grad_norm", norm)):
            for number, value in enumerate(values):
                if not math.isfinite(value):
                    raise NonFiniteError(
                        name,
                        f"{name} is {value} in minibatch {number} of epoch {index}; the last good checkpoint is kept. "
                        "A lower bc.learning_rate or bc.max_grad_norm may help",
                    )
        if not math.isfinite(float(weights)):
            name = next(n for n, p in self.policy.named_parameters() if not torch.isfinite(p).all())
            raise NonFiniteError(name, f"weight {name} is not finite after epoch {index}")
        decisions = sum(count)
        return {
            "nll": sum(a * n for a, n in zip(nll, count, strict=True)) / decisions,
            "total_loss": sum(a * n for a, n in zip(total, count, strict=True)) / decisions,
            "grad_norm": sum(norm) / len(norm),
            "entropy": sum(entropy) / decisions,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return state besides the policy's weights and the optimiser's: the critic's units."""
        return self.units.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.units.load_state_dict(state)

    def begin_from(self, state: dict[str, Any]) -> None:
        """Carry on the critic's units of another run, whose weights the policy has been given.

        Args:
            state: `state_dict` of its learner.
        """
        self.units.load_state_dict(state)
