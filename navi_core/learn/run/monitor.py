"""Training monitor: periodic early-stopping evaluation and adaptation of settings, at intervals of decisions.

A learner that computes temporal differences (DQN) reports them. For the others they are returns minus the critic's
values in a rollout, or, without a critic, returns-to-go minus their mean.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from navi_core.config import AdaptationConfig, TrainConfig
from navi_core.learn.algorithms.dqn import DQNLearner
from navi_core.learn.events import AdaptationApplied, AGMConfig, AGMMetrics, EarlyStopDecision, EarlyStopTriggered
from navi_core.learn.parallel import Workers
from navi_core.learn.rollout.diagnostics import rollout_diagnostics
from navi_core.learn.rollout.storage import Rollout
from navi_core.learn.run.early_stopping import EarlyStopController
from navi_core.policy import NavigationPolicy
from navi_core.record.events import EvaluationMade, EventBus

_OSCILLATING, _STANDING = 0.5, 0.01


class Adapter:
    """Adaptation rule of smoothing and learning-rate settings (`AGMConfig`), driven by learning progress.

    Args:
        config: Rate, bounds and minimum dwell (evaluations between changes).
    """

    def __init__(self, config: AdaptationConfig) -> None:
        self.config = config
        self._rested = config.min_dwell

    def update(self, metrics: AGMMetrics, current: AGMConfig) -> tuple[str, AGMConfig] | None:
        """Return the reason and the adapted settings after an evaluation; None if nothing changes.

        Args:
            metrics: Metrics of the evaluation.
            current: Settings before it.
        """
        self._rested += 1
        if not self.config.enabled or self._rested <= self.config.min_dwell:
            return None
        reason, after = self._changed(metrics, current)
        if after == current:
            return None
        self._rested = 0
        return reason, after

    def _changed(self, metrics: AGMMetrics, now: AGMConfig) -> tuple[str, AGMConfig]:
        config = self.config
        up, down = 1.0 + config.rate, 1.0 - config.rate
        if metrics.oscillation_strength >= _OSCILLATING:
            more = max(now.k + 1, round(now.k * up))
            return "oscillation", replace(
                now,
                alpha_step=_within(now.alpha_step * up, config.alpha_step_bounds),
                k=int(_within(more, config.k_bounds)),
                learning_rate=_within(now.learning_rate * down, config.learning_rate_bounds),
            )
        if abs(metrics.convergence_rate) < _STANDING:
            return "standstill", replace(
                now,
                trust_region_tau=_within(now.trust_region_tau * up, config.tau_bounds),
                learning_rate=_within(now.learning_rate * up, config.learning_rate_bounds),
            )
        if metrics.convergence_rate > 0:
            return "convergence", replace(now, alpha_step=_within(now.alpha_step * down, config.alpha_step_bounds))
        return "nothing", now

    def state_dict(self) -> dict[str, int]:
        """Return the adapter's state: evaluations since the last change."""
        return {"rested": self._rested}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the count of evaluations since the last change from a `state_dict`."""
        self._rested = int(state["rested"])


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])


_SIGNS = ("td_mean", "td_var", "local_structure")
_NOISE = 0.01


class RunWatch:
    """Run monitor: averages the metrics of updates and evaluates them every `early_stopping.eval_interval` decisions.

    Args:
        config: The run's configuration.
        events: Event bus for evaluations, stops and adaptations.
    """

    def __init__(self, config: TrainConfig, events: EventBus) -> None:
        self.config, self.events = config, events
        self.controller = EarlyStopController(config.early_stopping)
        self.adapter = Adapter(config.adaptation)
        self._sums: dict[str, list[float]] = {}
        self._evaluated = 0
        self._rewards: list[float] = []
        self._before: dict[str, float] = {}

    @property
    def on(self) -> bool:
        """Whether early stopping or online adaptation of hyperparameters is enabled."""
        adapts = self.config.adaptation.enabled and self.config.algorithm == "dqn"
        return self.config.early_stopping.enabled or adapts

    @property
    def stopped(self) -> EarlyStopDecision | None:
        """Early-stopping decision that ended the run; None if there was none."""
        return self.controller.stopped if self.config.early_stopping.enabled else None

    def diagnostics(
        self, policy: NavigationPolicy, rollout: Rollout, update: int, workers: Workers
    ) -> dict[str, float]:
        """Compute early-stopping diagnostics of a rollout over all processes; empty if off or for DQN."""
        if not self.on or self.config.algorithm == "dqn":
            return {}
        critic = self.config.algorithm == "ppo"
        return rollout_diagnostics(
            policy, rollout, critic=critic, seed=self.config.seed, update=update, workers=workers
        )

    def after(
        self,
        steps: int,
        metrics: dict[str, float],
        learner: object,
        population: Callable[[], Sequence[tuple[float, float, float, float]]] | None = None,
    ) -> EarlyStopDecision | None:
        """Add an update's metrics; if an evaluation is due, run it and return the early-stopping decision.

        Args:
            steps: Decisions so far.
            metrics: Metrics of the update; the stopping cost and the patience left are added.
            learner: The learner; only a `DQNLearner` is adapted.
            population: Returns the reports of several actors at an evaluation, each as the arguments of
                `EarlyStopController.update`; the controller then uses their median or trimmed mean.
        """
        if not self.on:
            return None
        reward = metrics.get("episode_return", math.nan)
        for name, value in (*((name, metrics.get(name, math.nan)) for name in (*_SIGNS, "q_mean")), ("reward", reward)):
            if math.isfinite(value):
                self._sums.setdefault(name, []).append(value)
        stopping = self.config.early_stopping
        if steps // stopping.eval_interval == self._evaluated // stopping.eval_interval:
            return None
        if any(name not in self._sums for name in (*_SIGNS, "reward")):
            return None  # nothing has been learned, or no episode has ended: there is nothing to judge yet
        reports = None if population is None else population()
        if reports is not None and not reports:
            return None
        self._evaluated = steps
        seen = {name: sum(values) / len(values) for name, values in self._sums.items()}
        self._sums = {}
        self._adapt(steps, seen, metrics, learner)
        if reports is None:
            decision = self.controller.update(seen["td_mean"], seen["td_var"], seen["local_structure"], seen["reward"])
        else:
            decision = self.controller.update_population(reports)
        judged = {"stop_cost": decision.metrics["cost"], "patience_left": float(decision.patience_left)}
        metrics |= judged
        subject = self.events.subject
        self.events.publish(EvaluationMade(subject, steps, "progress", seen | judged))
        if stopping.enabled and decision.should_stop:
            self.events.publish(EarlyStopTriggered(subject, steps, decision, self.controller.evaluations))
        return decision if stopping.enabled else None

    def _adapt(self, steps: int, seen: dict[str, float], metrics: dict[str, float], learner: object) -> None:
        # Slope of the smoothed return: the slope of raw evaluations changes its sign two times in three by noise alone.
        beta, reward = self.config.early_stopping.reward_ema_beta, seen["reward"]
        average = beta * self._rewards[-1] + (1.0 - beta) * reward if self._rewards else reward
        self._rewards = [*self._rewards, average][-(self.config.early_stopping.window + 2) :]
        before, self._before = self._before, seen
        if not self.config.adaptation.enabled or not before or not isinstance(learner, DQNLearner):
            return
        q, earlier = seen.get("q_mean", 0.0), before.get("q_mean", 0.0)
        now = learner.settings_now()
        entity = AGMMetrics(
            convergence_rate=(before["td_var"] - seen["td_var"]) / max(before["td_var"], 1e-12),
            mean_spread=metrics.get("smoothing_disagreement", 0.0),
            oscillation_strength=sign_changes(self._rewards),
            iterations_used=self.config.kernel_smoothing.iterations,
            timestamp=time.time(),
            td_mean=seen["td_mean"],
            td_var=seen["td_var"],
            q_rel_change=abs(q - earlier) / max(abs(earlier), 1e-12),
            val_reward=seen["reward"],
        )
        changed = self.adapter.update(entity, now)
        if changed is not None:
            reason, after = changed
            learner.adopt(after)
            self.events.publish(AdaptationApplied(self.events.subject, steps, now, after, reason, before, seen))

    def state_dict(self) -> dict[str, Any]:
        """Return the monitor's full state (controller, adapter, running averages), as plain data."""
        return {
            "controller": self.controller.state_dict(),
            "adapter": self.adapter.state_dict(),
            "sums": {name: list(values) for name, values in self._sums.items()},
            "evaluated": self._evaluated,
            "rewards": list(self._rewards),
            "before": dict(self._before),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore controller, adapter and running averages from a `state_dict`."""
        self.controller.load_state_dict(state["controller"])
        self.adapter.load_state_dict(state["adapter"])
        self._sums = {name: list(values) for name, values in state["sums"].items()}
        self._evaluated, self._rewards = int(state["evaluated"]), list(state["rewards"])
        self._before = dict(state["before"])


def sign_changes(values: list[float], floor: float = _NOISE) -> float:
    """Return the oscillation rate of a curve: sign changes of its slope per inner value.

    A change of less than `floor` times the curve's range counts as noise and keeps the previous sign.

    Args:
        values: Values of the curve in order.
        floor: Noise floor, a fraction of the curve's range.
    """
    if len(values) < 3:
        return 0.0
    least = floor * (max(values) - min(values))
    signs = [1 if b - a > 0 else -1 for a, b in pairwise(values) if abs(b - a) > least]
    return sum(a != b for a, b in pairwise(signs)) / (len(values) - 2)
