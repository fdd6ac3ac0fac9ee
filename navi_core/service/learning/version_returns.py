"""Returns of a served version by whole episodes, in the order in which they began."""

from collections import deque
from dataclasses import dataclass

_EPISODES_PER_DRONE, _EXTRA_EPISODES = 8, 10
"""Once 8 · drones + 10 episodes wait, the oldest is counted unfinished."""


@dataclass(slots=True, eq=False)
class Episode:
    """Reward of a drone since its episode began.

    Attributes:
        drone: Number of the drone.
        reward: Sum of its rewards.
        decisions: Number of its decisions.
        ended: Whether it is over.
        whole: Whether it was seen from its beginning.
    """

    drone: int
    whole: bool = True
    reward: float = 0.0
    decisions: int = 0
    ended: bool = False

    def mean(self) -> float:
        """Return the mean reward of a decision."""
        return self.reward / self.decisions


class VersionReturns:
    """Mean rewards of the episodes that began under a version, counted in the order of their beginnings.

    In the order of their ends, the first episodes would be the short ones whatever the version, and short episodes earn
    other rewards than long ones. The first ten that *began* are an unbiased sample.

    Args:
        window: Episodes that are kept.

    Attributes:
        first: Mean reward per decision of the first episodes, at most `window`.
        latest: The same of the last counted ones, at most `window`.
    """

    def __init__(self, window: int) -> None:
        self.first: list[float] = []
        self.latest: deque[float] = deque(maxlen=window)
        self._window = window
        self._waiting: deque[Episode] = deque()

    def __len__(self) -> int:
        """Return the number of episodes that wait to be counted."""
        return len(self._waiting)

    def begin(self, episode: Episode, drones: int) -> None:
        """Add an episode that begins.

        Args:
            episode: Without a decision yet.
            drones: Number of drones that fly now.
        """
        self._waiting.append(episode)
        if len(self._waiting) > _EPISODES_PER_DRONE * drones + _EXTRA_EPISODES:
            # An endless episode must not block the others, and leaving it out would bias the sample towards short
            # ones. It is counted unfinished, as long as eight of the others.
            self._count()
            self.count_ended()

    def count_ended(self) -> None:
        """Count the ended episodes before the first unfinished one."""
        while self._waiting and self._waiting[0].ended:
            self._count()

    def drop(self, drone: int) -> None:
        """Drop all waiting episodes of a drone that left during an episode.

        Drones are independent, so the sample of the others stays unbiased. Dropping the last episode alone would keep
        the drone's short episodes and miss a long one. Nothing is counted now: drones often leave together.
        """
        self._waiting = deque(episode for episode in self._waiting if episode.drone != drone)

    def close(self) -> Episode | None:
        """Drop the waiting episodes; return the first unfinished one, None without one.

        Stopping before the first unfinished episode would miss long ones more often than not. With it the sample is
        unbiased: the stopping rule depends on the episodes before it alone (Wald 1944).
        """
        self.count_ended()
        first = self._waiting[0] if self._waiting else None
        self._waiting.clear()
        return first

    def _count(self) -> None:
        mean = self._waiting.popleft().mean()
        self.latest.append(mean)
        if len(self.first) < self._window:
            self.first.append(mean)
