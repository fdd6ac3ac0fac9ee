"""Live reward of a version by whole episodes, in the order in which they began under it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["Cohort", "Episode"]

_TURNS, _SPARE = 8, 10
"""An episode is waited for while fewer than 8 others a drone, and 10, have begun after it."""


@dataclass(slots=True, eq=False)
class Episode:
    """What a drone earned since its episode began.

    Attributes:
        drone: Who flies it.
        earned: Sum of its rewards.
        decisions: How many they are.
        ended: Whether no more come.
        whole: Whether it was seen from its beginning.
    """

    drone: int
    whole: bool = True
    earned: float = 0.0
    decisions: int = 0
    ended: bool = False

    def mean(self) -> float:
        """Return the mean reward of a decision."""
        return self.earned / self.decisions


class Cohort:
    """Episodes that began while a version served, each counted once all that began before it are counted.

    In the order of their ends the first ones would be short ones, whatever the version: of 64 drones some lose at once
    what the others fly for a minute, and a lost episode is not paid as another is. The first ten that *began* are as
    short or as long as any ten.

    Args:
        window: Episodes that are kept.

    Attributes:
        first: Mean rewards of a decision in the first that began, at most `window`.
        latest: The same of the last that were counted, at most `window`.
    """

    def __init__(self, window: int) -> None:
        self.first: list[float] = []
        self.latest: deque[float] = deque(maxlen=window)
        self._window = window
        self._waiting: deque[Episode] = deque()

    def __len__(self) -> int:
        """Return how many wait to be counted."""
        return len(self._waiting)

    def begin(self, episode: Episode, drones: int) -> None:
        """Take an episode that begins.

        Args:
            episode: Has no decision yet.
            drones: Who fly now, it included.
        """
        self._waiting.append(episode)
        if len(self._waiting) > _TURNS * drones + _SPARE:
            # One that ends in hours, or never, must not hold the others for ever; left out, it would be the long ones
            # that are missed. So it counts as it stands: it is as long as eight of the others.
            self._count()
            self.settle()

    def settle(self) -> None:
        """Count what ended and waits for none before it."""
        while self._waiting and self._waiting[0].ended:
            self._count()

    def leave(self, drone: int) -> None:
        """Let go what waits of a drone that left amid an episode.

        The drones do not know of each other: what the others fly is the same sample without it. Had it only its last
        episode left out, its short ones would stay and its long ones be missed. Nothing is counted now: drones often
        leave together, and what the first of them held up may be of one that leaves next.
        """
        self._waiting = deque(episode for episode in self._waiting if episode.drone != drone)

    def close(self) -> Episode | None:
        """Let go what waits; returns the first of them, which is under way, None where none waits.

        Whoever stops counting before the first that has not ended, stops before a long one more often than not. With
        it the sample is right: that it stops there is known from those before it alone (Wald 1944).
        """
        self.settle()
        first = self._waiting[0] if self._waiting else None
        self._waiting.clear()
        return first

    def _count(self) -> None:
        mean = self._waiting.popleft().mean()
        self.latest.append(mean)
        if len(self.first) < self._window:
            self.first.append(mean)
