"""Replay shard: accepts each rollout once, samples by priority, reports accepted rollouts.

A rollout counts once the shard has accepted it and the learner has read its report. A rollout lost with an actor or a
shard is neither stored nor counted.
"""

import secrets
from pathlib import Path

import numpy as np

from navi_core.config import TrainConfig
from navi_core.learn.replay.prioritized import PrioritizedReplay
from navi_core.learn.replay.replay_file import load_replay, prune_replays, save_replay
from navi_core.scale.messages import ExperienceBatch, Report, ShardSample, ShardStatus

_SEEDS_APART = 7919


class ReplayShard:
    """Shard of a distributed prioritised replay (Horgan et al. 2018).

    Args:
        config: The run's configuration; the replay capacity is divided by `distributed.replay_shards`.
        number: Index of the shard.

    Attributes:
        token: Identity of this instance; priorities for items of another instance are ignored.
    """

    def __init__(self, config: TrainConfig, number: int) -> None:
        replay, self.number, self.ahead = config.replay, number, config.distributed.ahead
        self.replay = PrioritizedReplay(
            replay.items(config.decisions_of_an_item, config.distributed.replay_shards),
            replay.alpha if replay.prioritized_replay else 0.0,
            replay.beta0,
            config.seed + _SEEDS_APART * number,
        )
        self.token = secrets.token_hex(8)
        self._shipped: dict[tuple[int, int], int] = {}
        self._reports: list[Report] = []
        self._confirmed = 0
        self._debt = self._unread = 0
        self._drawn = self._stale = self._repeated = 0

    def add(self, experience: ExperienceBatch) -> bool:
        """Accept a rollout, at most once.

        Returns:
            Whether the rollout is stored; False asks the actor to retry, because the learners lag behind.

        Raises:
            ConfigError: Its items are others than the first experience's, or do not fit the capacity.
        """
        report = experience.report
        sender = report.actor, report.life
        if report.number <= self._shipped.get(sender, -1):
            self._repeated += 1
            return True
        if self._unread + self._debt > self.ahead:
            return False
        if experience.items:
            self.replay.add({name: np.array(x) for name, x in experience.items.items()}, experience.priorities)
        self._shipped[sender] = report.number
        self._reports.append(report)
        self._unread += report.decisions
        return True

    def draw(self, n: int) -> ShardSample | None:
        """Draw n items by priority; None while there are none."""
        if not len(self.replay):
            return None
        items, places, _ = self.replay.sample(n)
        self._drawn += n
        at = places.numpy()
        return ShardSample(
            self.token,
            {name: x.numpy() for name, x in items.items()},
            at,
            self._serials(at),
            self.replay.probabilities(places).numpy(),
        )

    def update(self, token: str, places: np.ndarray, serials: np.ndarray, priorities: np.ndarray) -> None:
        """Update the priorities of items that are still stored.

        Args:
            token: Token of the sample.
            places: (n,) slots of the sample.
            serials: (n,) serial numbers of the sample.
            priorities: (n,) positive.
        """
        if token != self.token:
            self._stale += len(places)
            return
        here = self._serials(places) == serials
        self._stale += int(len(here) - here.sum())
        self.replay.update(places[here], priorities[here])

    def status(self, token: str, cursor: int, debt: int) -> ShardStatus:
        """Return the reports since a cursor; those before it are confirmed and dropped.

        Args:
            token: Token of the last status, empty at first; the cursor of another instance confirms nothing.
            cursor: Cursor of the last status.
            debt: Decisions per shard that the learners have counted but not trained on.
        """
        if token == self.token:
            del self._reports[: cursor - self._confirmed]
            self._confirmed = cursor
        self._debt = debt
        # Reports read now are part of the learner's debt from its next request on.
        self._unread = sum(report.decisions for report in self._reports)
        return ShardStatus(
            self.token,
            self._confirmed + len(self._reports),
            tuple(self._reports),
            len(self.replay),
            self.replay.added,
            self._drawn,
            self._stale,
            self._repeated,
        )

    def save(self, folder: str, name: str) -> int:
        """Save the items beside the checkpoint of that name; return the number ever added."""
        place = Path(folder) / f"shard-{self.number}"
        save_replay(self.replay, place / name)
        prune_replays(place)
        return self.replay.added

    def load(self, folder: str, name: str, remembered: int) -> bool:
        """Load saved items; False, with a warning, where they are lost."""
        return load_replay(self.replay, Path(folder) / f"shard-{self.number}" / name, remembered)

    def _serials(self, places: np.ndarray) -> np.ndarray:
        """Return the serial numbers, counted from the first item ever, of the items in the slots."""
        last = self.replay.added - 1
        return last - (last - places) % self.replay.capacity
