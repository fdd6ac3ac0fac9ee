"""Which version serves: the latest, or the last that passed; and back to the one before where live reward falls."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from navi_core.policy import NavigationPolicy
from navi_core.service.timed_lock import TimedLock

__all__ = ["Admission", "Rollback", "ServingVersion"]

_BLOCKS = 10
_ONE_SIDED_95 = 1.833
"""Student's t, 9 degrees of freedom: what ten block means are judged by."""


@dataclass(frozen=True)
class ServingVersion:
    """A version in service.

    Attributes:
        version: Its number.
        policy: Its weights, which nobody changes any more.
    """

    version: int
    policy: NavigationPolicy


@dataclass(frozen=True)
class Rollback:
    """A return to the version before.

    Attributes:
        fell: The version that gave way.
        live_reward: Its mean.
        returned_to: The version that serves again.
    """

    fell: int
    live_reward: float
    returned_to: ServingVersion


class Admission:
    """Holds the version that inference uses; reading it is one look at an attribute, never a wait.

    Args:
        policy: Version 0.
        window: Live rewards of a version that are compared.

    Attributes:
        serving: What inference uses.
        lock: Held while versions change.
    """

    def __init__(self, policy: NavigationPolicy, window: int) -> None:
        self.serving = ServingVersion(0, policy)
        self._window = max(window, _BLOCKS)
        self._before: ServingVersion | None = None
        self._live: dict[int, deque[float]] = {0: deque(maxlen=self._window)}
        self.lock = TimedLock()

    def admit(self, version: int, policy: NavigationPolicy) -> object:
        """Let an update of the version in service serve from the next decision on.

        Args:
            version: Its number.
            policy: Its weights.

        Returns:
            What went, to be let go where no lock is held: freeing a network takes a millisecond.
        """
        with self.lock.held():
            gone = self._before, self._live
            self._before, self.serving = self.serving, ServingVersion(version, policy)
            kept = {v: self._live[v] for v in (self._before.version,) if v in self._live}
            self._live = kept | {version: deque(maxlen=self._window)}
        return gone

    def begin_anew(self, version: int, policy: NavigationPolicy) -> object:
        """Let weights that were promoted elsewhere serve; no fall of their live reward leads back to those before.

        Args:
            version: Its number.
            policy: Its weights.

        Returns:
            What went, as `admit` does.
        """
        with self.lock.held():
            gone = self.serving, self._before, self._live
            self.serving, self._before = ServingVersion(version, policy), None
            self._live = {version: deque(maxlen=self._window)}
        return gone

    def observe(self, version: int, reward: float) -> None:
        """Take the live reward of a decision of a version."""
        with self.lock.held():
            if version in self._live:
                self._live[version].append(reward)

    def live_mean(self) -> float:
        """Return the mean live reward of the version in service, NaN before the first."""
        with self.lock.held():
            rewards = list(self._live[self.serving.version])
        return float(np.mean(rewards)) if rewards else float("nan")

    def roll_back(self) -> Rollback | None:
        """Return to the version before where the live reward is below its, by a one-sided 95 % test; else None.

        Rewards of neighbouring decisions resemble one another, so means of ten blocks are compared, not decisions.
        """
        with self.lock.held():
            serving, before = self.serving, self._before
            if before is None:
                return None
            old = self._live.get(before.version, deque())
            rewards = list(self._live[serving.version]), list(old)
        if len(rewards[0]) < self._window or len(rewards[1]) < self._window // 2:
            return None
        means = [np.array([part.mean() for part in np.array_split(np.array(x), _BLOCKS)]) for x in rewards]
        error = float(np.sqrt(sum(m.var(ddof=1) / _BLOCKS for m in means)))
        if means[0].mean() >= means[1].mean() - _ONE_SIDED_95 * error:
            return None
        with self.lock.held():
            if self.serving is not serving:
                return None
            self.serving, self._before = before, None
            self._live = {before.version: old}
        return Rollback(serving.version, float(np.mean(rewards[0])), before)
