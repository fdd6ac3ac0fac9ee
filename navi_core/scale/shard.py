"""A shard of the replay: accepts each shipment once, draws by priority, says what it accepted.

The shard is the place where a rollout begins to count. What it has accepted and the learner has read is counted; what
was lost on the way, with an actor or with a shard, is neither there nor counted.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np

from navi_core.config import TrainConfig
from navi_core.learn.replay.prioritized import PrioritizedReplay
from navi_core.learn.replay.replay_file import load_replay, prune_replays, save_replay
from navi_core.scale.messages import Drawn, News, Report, Shipment

__all__ = ["ReplayShard"]

_SEEDS_APART = 7919


class ReplayShard:
    """One of the shards of a distributed replay (Horgan et al. 2018).

    Args:
        config: The run's configuration; its replay's capacity is shared out over `distributed.replay_shards`.
        number: Which shard.

    Attributes:
        token: Name of this shard's life; what was drawn from another life is not updated here.
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

    def add(self, shipment: Shipment) -> bool:
        """Accept a shipment, at most once.

        Returns:
            Whether it is here; False asks the actor to come again, because the learners are too far behind.

        Raises:
            ConfigError: Its items are others than the first shipment's, or do not fit the capacity.
        """
        report = shipment.report
        sender = report.actor, report.life
        if report.number <= self._shipped.get(sender, -1):
            self._repeated += 1
            return True
        if self._unread + self._debt > self.ahead:
            return False
        if shipment.items:
            self.replay.add({name: np.array(x) for name, x in shipment.items.items()}, shipment.priorities)
        self._shipped[sender] = report.number
        self._reports.append(report)
        self._unread += report.decisions
        return True

    def draw(self, n: int) -> Drawn | None:
        """Draw n items by priority; None while there are none."""
        if not len(self.replay):
            return None
        items, places, _ = self.replay.sample(n)
        self._drawn += n
        at = places.numpy()
        return Drawn(
            self.token,
            {name: x.numpy() for name, x in items.items()},
            at,
            self._serials(at),
            self.replay.probabilities(places).numpy(),
        )

    def update(self, token: str, places: np.ndarray, serials: np.ndarray, priorities: np.ndarray) -> None:
        """Give items new priorities, where they are still here.

        Args:
            token: As drawn.
            places: (n,) as drawn.
            serials: (n,) as drawn.
            priorities: (n,) positive.
        """
        if token != self.token:
            self._stale += len(places)
            return
        here = self._serials(places) == serials
        self._stale += int(len(here) - here.sum())
        self.replay.update(places[here], priorities[here])

    def news(self, token: str, cursor: int, debt: int) -> News:
        """Return the reports since a cursor; those before it are confirmed and forgotten.

        Args:
            token: Of the last news, empty at first: the cursor of another life confirms nothing.
            cursor: Of the last news.
            debt: Decisions for each shard that the learners have counted and not yet learned from.
        """
        if token == self.token:
            del self._reports[: cursor - self._confirmed]
            self._confirmed = cursor
        self._debt = debt
        # What is read now is part of the learner's debt from its next question on.
        self._unread = sum(report.decisions for report in self._reports)
        return News(
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
        """Write the items beside the checkpoint of that name; return how many were ever added."""
        place = Path(folder) / f"shard-{self.number}"
        save_replay(self.replay, place / name)
        prune_replays(place)
        return self.replay.added

    def load(self, folder: str, name: str, remembered: int) -> bool:
        """Take up what `save` wrote; False, with a warning, where it is lost."""
        return load_replay(self.replay, Path(folder) / f"shard-{self.number}" / name, remembered)

    def _serials(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers, counted from the first item ever, of the items at places now."""
        last = self.replay.added - 1
        return last - (last - places) % self.replay.capacity
