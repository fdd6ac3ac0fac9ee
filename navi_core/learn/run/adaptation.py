"""Slow changes of the smoother and of the learning rate by what evaluations show.

Three rules, each a change of `rate` within its bounds: where the return oscillates, more smoothing over more neighbours
and a smaller learning rate; where temporal differences stand still, a larger trust region and learning rate; where they
fall steadily, less smoothing. After a change nothing moves for `min_dwell` evaluations.
"""

from __future__ import annotations

from dataclasses import replace

from navi_core.config import AdaptationConfig
from navi_core.learn.entities import AGMConfig, AGMMetrics
from navi_core.learn.events import AdaptationApplied, EventBus

__all__ = ["Adapter"]

_OSCILLATING, _STANDING = 0.5, 0.01


class Adapter:
    """Adapts what `AGMConfig` names.

    Args:
        config: Rate, bounds and dwell.
        events: Bus for every change.
    """

    def __init__(self, config: AdaptationConfig, events: EventBus | None = None) -> None:
        self.config = config
        self.events = events if events is not None else EventBus()
        self._rested = config.min_dwell

    def update(self, metrics: AGMMetrics, current: AGMConfig) -> AGMConfig:
        """Return the settings after an evaluation; `current` itself where nothing changes.

        Args:
            metrics: What the evaluation showed.
            current: Settings that were in force.
        """
        self._rested += 1
        if not self.config.enabled or self._rested <= self.config.min_dwell:
            return current
        reason, after = self._changed(metrics, current)
        if after == current:
            return current
        self._rested = 0
        self.events.publish(AdaptationApplied(current, after, reason))
        return after

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
        """Return the evaluations since the last change."""
        return {"rested": self._rested}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Undo `state_dict`."""
        self._rested = int(state["rested"])


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
