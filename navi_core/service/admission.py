"""Which version serves: the latest, or the last that passed; and back to the one before where live reward falls."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from navi_core.policy import NavigationPolicy
from navi_core.service.timed_lock import TimedLock

__all__ = ["Admission", "Rollback", "ServingVersion"]

_FEWEST = 10
"""Episodes that a version is judged by at first; it is judged again at twice as many, and so on."""
_ONE_SIDED_99 = 2.821
"""Student's t, 9 degrees of freedom: strict, for there are several looks."""
_VERSIONS = 8
"""Versions of one episode that are counted apart; an episode may never end, and a version comes every second."""


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
        live_reward: Mean of its episodes, per decision.
        returned_to: The version that serves again.
    """

    fell: int
    live_reward: float
    returned_to: ServingVersion


@dataclass
class _Episode:
    """An episode under way: what a drone earned, and who decided how often."""

    earned: float = 0.0
    decisions: int = 0
    decided: dict[int, int] = field(default_factory=dict)
    """Version → decisions, the one that decided last at the end."""

    def count(self, version: int, reward: float) -> None:
        """Take one decision."""
        self.earned += reward
        self.decisions += 1
        self.decided[version] = self.decided.pop(version, 0) + 1
        if len(self.decided) > _VERSIONS:
            # Who served so long ago, and less than another, decides no more: it will not be the one that decided most.
            most = self.most()
            del self.decided[next(version for version in self.decided if version != most)]

    def most(self) -> int:
        """Return the version that decided most, of equal ones the earliest."""
        return max(self.decided, key=lambda version: self.decided[version])


class Admission:
    """Holds the version that inference uses; reading it is one look at an attribute, never a wait.

    Args:
        policy: Version 0.
        window: Episodes of a version, and before it, that are compared.

    Attributes:
        serving: What inference uses.
        lock: Held while versions change.
    """

    def __init__(self, policy: NavigationPolicy, window: int) -> None:
        self.serving = ServingVersion(0, policy)
        self._window = max(window, _FEWEST)
        self._before: ServingVersion | None = None
        self._look = _FEWEST
        self._flown: deque[float] = deque(maxlen=self._window)
        self._earlier: deque[float] = deque(maxlen=self._window)
        self._under_way: dict[int, _Episode] = {}
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
            gone = self._before
            self._before, self.serving = self.serving, ServingVersion(version, policy)
            self._earlier.extend(self._flown)
            self._flown.clear()
            self._look = _FEWEST
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
            gone = self.serving, self._before
            self.serving, self._before = ServingVersion(version, policy), None
            self._flown.clear()
            self._earlier.clear()
            self._under_way.clear()
            self._look = _FEWEST
        return gone

    def observe(self, version: int, reward: float, drone: int, ends: bool) -> None:
        """Take the live reward of a decision.

        Early decisions of an episode earn more than late ones, and drones that began together are in step: what is
        compared are whole episodes, each of the version that decided most of it.

        Args:
            version: Whose decision it was.
            reward: That came.
            drone: Who flew it.
            ends: Whether the episode ended with it.
        """
        with self.lock.held():
            episode = self._under_way.setdefault(drone, _Episode())
            episode.count(version, reward)
            if not ends:
                return
            del self._under_way[drone]
            kept = self._flown if episode.most() == self.serving.version else self._earlier
            kept.append(episode.earned / episode.decisions)

    def forget(self, drone: int) -> None:
        """Count nothing of the episode that a drone was in: it is gone."""
        with self.lock.held():
            self._under_way.pop(drone, None)

    def live_mean(self) -> float:
        """Return the mean live reward of a decision in episodes of the version in service, NaN before the first."""
        with self.lock.held():
            rewards = list(self._flown)
        return float(np.mean(rewards)) if rewards else float("nan")

    def roll_back(self) -> Rollback | None:
        """Return to the version before where episodes earn less than those before it came; else None.

        A version is looked at after 10, 20, 40, … episodes, by a one-sided 99 % test (Welch 1947): so many looks at
        one that is as good as the other send it back in a few of a hundred cases.
        """
        with self.lock.held():
            serving, before, look = self.serving, self._before, self._look
            flown, earlier = np.array(self._flown), np.array(self._earlier)
            if before is None or look > self._window or len(flown) < look or len(earlier) < _FEWEST:
                return None
            while self._look <= len(flown):
                self._look *= 2
        error = float(np.sqrt(flown.var(ddof=1) / len(flown) + earlier.var(ddof=1) / len(earlier)))
        # False where one of them is no number: such a fall is none.
        if not flown.mean() < earlier.mean() - _ONE_SIDED_99 * error:
            return None
        with self.lock.held():
            if self.serving is not serving:
                return None
            self.serving, self._before = before, None
            self._flown.clear()
        return Rollback(serving.version, float(flown.mean()), before)
