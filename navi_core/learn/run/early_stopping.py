"""Early stopping: a cost of three diagnostics, with patience and hysteresis.

cost = 0.3 · td_distortion + 0.5 · (1 − local_structure) + 0.2 · plateau_risk, all of them in [0, 1]. `td_distortion` is
v / (v + m² + ε), with m and v the moving averages of the temporal differences' mean and variance. `local_structure` is
the share of latent neighbours with similar targets. `plateau_risk` falls from 1 while the validation reward rises to 0
once it no longer does.
"""

import math
from collections.abc import Sequence
from typing import Any

from navi_core.config import EarlyStopConfig
from navi_core.errors import ConfigError
from navi_core.learn.events import CALLABLES, EarlyStopDecision, PopulationMetrics

_EPSILON = 1e-8
_WEIGHTS = (0.3, 0.5, 0.2)
_RISING = 1.6449
"""Normal quantile of a one-sided test at 5 %."""


def stop_cost(td_distortion: float, local_structure: float, plateau_risk: float) -> float:
    """Compute the early-stopping cost: weighted sum of three diagnostics in [0, 1]; low if learning has converged."""
    a, b, c = _WEIGHTS
    return a * td_distortion + b * (1.0 - local_structure) + c * plateau_risk


@CALLABLES.register("early_stop_check")
def early_stop_check(cost: float, count: int, config: EarlyStopConfig) -> int:
    """Update the patience counter: the number of consecutive evaluations in favour of stopping.

    A cost below the hysteresis band around the threshold increments the counter, above it resets it, within it keeps
    it.

    Args:
        cost: Cost of this evaluation.
        count: Counter before it.
        config: Threshold and hysteresis.
    """
    if cost < config.plateau_threshold * (1.0 - config.hysteresis_pct):
        return count + 1
    return 0 if cost > config.plateau_threshold * (1.0 + config.hysteresis_pct) else count


def rising_trend(values: Sequence[float]) -> bool:
    """Test for a rising trend of values: Mann–Kendall, one-sided at 5 %.

    S = Σ_{i<j} sign(x_j − x_i), its variance n(n−1)(2n+5)/18 less the ties', z = (S − 1)/√var (Kendall 1975).
    """
    n = len(values)
    if n < 4:
        return False
    score = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    ties = [values.count(x) for x in set(values)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18.0
    return score > 1 and variance > 0 and (score - 1) / math.sqrt(variance) > _RISING


def aggregate(values: Sequence[float], config: EarlyStopConfig) -> float:
    """Aggregate several workers' values by median or trimmed mean.

    Raises:
        ConfigError: There is no value.
    """
    ordered = sorted(float(x) for x in values)
    if not ordered:
        raise ConfigError("no worker has reported; nothing can be aggregated")
    n = len(ordered)
    if config.aggregate == "median":
        return 0.5 * (ordered[(n - 1) // 2] + ordered[n // 2])
    cut = min(int(config.trim * n), (n - 1) // 2)
    kept = ordered[cut : n - cut]
    return sum(kept) / len(kept)


class EarlyStopController:
    """Early-stopping controller: decides after every evaluation whether the run may end; a stop is final.

    Args:
        config: Settings.

    Attributes:
        evaluations: Evaluations so far.
    """

    def __init__(self, config: EarlyStopConfig | None = None) -> None:
        self.config = config if config is not None else EarlyStopConfig()
        self._mean = self._variance = self._reward = math.nan
        self._rewards: list[float] = []
        # The trend test wants independent values: a moving average creeps upward long after what it averages is flat.
        self._unsmoothed: list[float] = []
        self._best, self._first = -math.inf, math.nan
        self._count = self._idle = self.evaluations = 0
        self._stopped: EarlyStopDecision | None = None

    def update(self, td_mean: float, td_var: float, local_structure: float, reward: float) -> EarlyStopDecision:
        """Add one evaluation and return the early-stopping decision.

        Args:
            td_mean: Mean temporal difference since the last one.
            td_var: Variance of the temporal differences, not negative.
            local_structure: Share of latent neighbours with similar targets, in [0, 1].
            reward: Validation reward.

        Raises:
            ConfigError: A number is not finite or out of range.
        """
        numbers = {"td_mean": td_mean, "td_var": td_var, "local_structure": local_structure, "reward": reward}
        if not all(map(math.isfinite, numbers.values())) or td_var < 0 or not 0 <= local_structure <= 1:
            raise ConfigError(f"an evaluation of {numbers}; allowed: finite, td_var ≥ 0, local_structure 0 … 1")
        if self._stopped is not None:
            return self._stopped
        config = self.config
        self.evaluations += 1
        self._mean = _moved(self._mean, td_mean, config.td_ema_beta)
        self._variance = _moved(self._variance, td_var, config.td_ema_beta)
        self._reward = _moved(self._reward, reward, config.reward_ema_beta)
        self._first = self._reward if math.isnan(self._first) else self._first
        self._rewards = [*self._rewards, self._reward][-(config.window + 1) :]
        self._unsmoothed = [*self._unsmoothed, reward][-(config.window + 1) :]
        improved = self._reward > self._best
        self._best = max(self._best, self._reward)
        parts = {
            "td_distortion": self._variance / (self._variance + self._mean**2 + _EPSILON),
            "local_structure": local_structure,
            "plateau_risk": self._plateau_risk(),
        }
        cost = stop_cost(*parts.values())
        self._count = early_stop_check(cost, self._count, config)
        idle = self._variance <= config.td_var_floor and not improved
        self._idle = self._idle + 1 if idle else 0
        return self._decide(cost, parts)

    @property
    def stopped(self) -> EarlyStopDecision | None:
        """Final decision to stop; None before."""
        return self._stopped

    def update_population(self, reports: Sequence[tuple[float, float, float, float]]) -> EarlyStopDecision:
        """Add one evaluation of several workers (`update`'s arguments each), aggregated by median or trimmed mean.

        Raises:
            ConfigError: There is no report, or the aggregate is not finite or out of range.
        """
        columns = list(zip(*reports)) if reports else [()]
        values = [aggregate(column, self.config) for column in columns]
        seen = PopulationMetrics(len(reports), *values)
        return self.update(seen.td_mean, seen.td_var, seen.local_structure, seen.val_reward)

    def _plateau_risk(self) -> float:
        """Return the plateau risk in [0, 1]: the smoothed reward's rise over the window, scaled by the hysteresis."""
        if len(self._rewards) < 2:
            return 1.0
        rise = self._rewards[-1] - self._rewards[0]
        return min(max(rise / (self.config.hysteresis_pct * abs(self._best) + _EPSILON), 0.0), 1.0)

    def _decide(self, cost: float, parts: dict[str, float]) -> EarlyStopDecision:
        config = self.config
        left = max(0, config.patience - max(self._count, self._idle))
        reason = "learning goes on" if left == config.patience else "waiting"
        stop = left == 0
        best, first = self._best, self._first
        going_on = {
            "the reward still has a rising trend": config.trend and rising_trend(self._unsmoothed),
            "the reward has not risen yet": config.rise is not None and best <= first + config.rise * abs(first),
            "the reward is in a slump": config.slump is not None and self._reward < best - config.slump * abs(best),
        }
        against = [words for words, holds in going_on.items() if holds]
        if stop and against:
            stop, left, reason = False, 1, against[0]
        if stop:
            reason = "plateau" if self._count >= config.patience else "td variance at its floor without improvement"
        metrics = {"cost": cost, **parts, "smoothed_reward": self._reward}
        decision = EarlyStopDecision(stop, reason, left, metrics)
        if stop:
            self._stopped = decision
        return decision

    def state_dict(self) -> dict[str, Any]:
        """Return the controller's full state, as plain data."""
        stopped = self._stopped
        return {
            "averages": [self._mean, self._variance, self._reward, self._best],
            "rewards": list(self._rewards),
            "unsmoothed": list(self._unsmoothed),
            "first": self._first,
            "counts": [self._count, self._idle, self.evaluations],
            "stopped": None if stopped is None else [stopped.reason, dict(stopped.metrics)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore moving averages, counters and the decision from a `state_dict`."""
        self._mean, self._variance, self._reward, self._best = (float(x) for x in state["averages"])
        self._rewards = [float(x) for x in state["rewards"]]
        self._unsmoothed = [float(x) for x in state["unsmoothed"]]
        # Older states have no first reward: use the current average.
        self._first = float(state.get("first", self._reward))
        self._count, self._idle, self.evaluations = (int(x) for x in state["counts"])
        stopped = state["stopped"]
        self._stopped = None if stopped is None else EarlyStopDecision(True, stopped[0], 0, stopped[1])


def _moved(average: float, value: float, beta: float) -> float:
    """Update an exponential moving average; the first value sets it."""
    return value if average != average else beta * average + (1.0 - beta) * value
