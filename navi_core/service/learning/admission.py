"""Which version serves: the latest, or the last that passed; and back to the one before where live reward falls."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from navi_core.policy import NavigationPolicy
from navi_core.service.learning.version_returns import Cohort, Episode
from navi_core.service.timed_lock import TimedLock

__all__ = ["Admission", "Rollback", "ServingVersion"]

_FEWEST = 10
"""Episodes that a version is judged by at first; it is judged again at twice as many, and so on."""
_ONE_SIDED_99 = 2.821
"""Student's t, 9 degrees of freedom: strict, for there are several looks."""


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
        live_reward: Mean of the episodes that it was judged by, per decision.
        returned_to: The version that serves again.
    """

    fell: int
    live_reward: float
    returned_to: ServingVersion


class Admission:
    """Holds the version that inference uses; reading it is one look at an attribute, never a wait.

    Args:
        policy: Version 0.
        window: Most episodes of a version, and before it, that are compared.

    Attributes:
        serving: What inference uses.
        lock: Held while versions change.
    """

    def __init__(self, policy: NavigationPolicy, window: int) -> None:
        self.serving = ServingVersion(0, policy)
        self._window = max(window, _FEWEST)
        self._before: ServingVersion | None = None
        self._looked = 0
        self._flown = Cohort(self._window)
        self._earlier: deque[float] = deque(maxlen=self._window)
        # Of each drone the episode that it is in, and who are in one that counts among those before.
        self._under_way: dict[int, Episode] = {}
        self._late: set[int] = set()
        # Who fly, also while nothing of theirs is under way: drones in step end their episodes in one tick.
        self._drones: set[int] = set()
        # Whoever flew them: where a version comes every second, no episode is of one alone.
        self._ended: deque[float] = deque(maxlen=self._window)
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
            last = self._flown.close()
            self._earlier.extend(self._flown.latest)
            if last is not None:
                self._late.add(last.drone)
            self._flown, self._looked = Cohort(self._window), 0
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
            # The drones fly on: what is left of their episodes is no episode of these weights.
            self._flown, self._looked = Cohort(self._window), 0
            self._earlier.clear()
            self._late.clear()
        return gone

    def observe(self, version: int, reward: float, drone: int, ends: bool) -> None:
        """Take the live reward of a decision.

        Early decisions of an episode earn more than late ones, and drones that began together are in step: what is
        compared are whole episodes, each of the version under which it began.

        Args:
            version: Whose decision it was.
            reward: That came.
            drone: Who flew it.
            ends: Whether the episode ended with it.
        """
        with self.lock.held():
            self._drones.add(drone)
            episode = self._under_way.get(drone)
            if episode is None:
                episode = self._under_way[drone] = Episode(drone)
                # An answer may come after its version went.
                if version == self.serving.version:
                    self._flown.begin(episode, len(self._drones))
            episode.earned += reward
            episode.decisions += 1
            if not ends:
                return
            del self._under_way[drone]
            episode.ended = True
            if episode.whole:
                self._ended.append(episode.mean())
            self._flown.settle()
            if drone in self._late:
                self._late.remove(drone)
                self._earlier.append(episode.mean())

    def meet(self, drone: int) -> None:
        """Count nothing of the episode that a drone is in: it was met amid it, and the rest of one is none."""
        with self.lock.held():
            self._under_way.setdefault(drone, Episode(drone, whole=False))

    def forget(self, drone: int) -> None:
        """Count nothing of the episode that a drone was in: it is gone, or began another before it ended."""
        with self.lock.held():
            self._drones.discard(drone)
            if self._under_way.pop(drone, None) is not None:
                self._late.discard(drone)
                self._flown.leave(drone)

    def live_mean(self) -> float:
        """Return the mean live reward of a decision in the episodes that ended last, NaN before the first."""
        with self.lock.held():
            rewards = list(self._ended)
        return float(np.mean(rewards)) if rewards else float("nan")

    def roll_back(self) -> Rollback | None:
        """Return to the version before where episodes earn less than those before it came; else None.

        A version is looked at when the first 10, 20, 40, … episodes that began under it have ended, by a one-sided
        99 % test: so many looks at one that is as good as the other send it back in a few of a hundred cases.
        """
        with self.lock.held():
            serving, before, look = self.serving, self._before, self._due()
            if before is None or look <= self._looked or len(self._earlier) < _FEWEST:
                return None
            self._looked = look
            flown, earlier = np.array(self._flown.first[:look]), np.array(self._earlier)
        # False where one of them is no number: such a fall is none.
        if not flown.mean() < earlier.mean() - _ONE_SIDED_99 * _error(flown, earlier):
            return None
        with self.lock.held():
            if self.serving is not serving:
                return None
            self.serving, self._before = before, None
            # What is under way was begun by the one that fell: it is of neither.
            self._flown, self._looked = Cohort(self._window), 0
        return Rollback(serving.version, float(flown.mean()), before)

    def _due(self) -> int:
        """Return the most of 10, 20, 40, … episodes that there are, 0 where there are fewer."""
        look, there = 0, len(self._flown.first)
        while (following := max(_FEWEST, 2 * look)) <= there:
            look = following
        return look


def _error(flown: np.ndarray, earlier: np.ndarray) -> float:
    """Return the standard error of the difference of the means of two samples, (n,) and (m,).

    The greater of Welch's (1947) and that of a common variance: where one episode in ten is paid far more, ten of them
    often have none, and their own variance does not tell that there are such.
    """
    n, m = len(flown), len(earlier)
    own, other = flown.var(ddof=1), earlier.var(ddof=1)
    common = ((n - 1) * own + (m - 1) * other) / (n + m - 2)
    return float(np.sqrt(np.maximum(own / n + other / m, common / n + common / m)))
