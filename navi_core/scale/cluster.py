"""Where actors and shards live, and what replaces them: here, in this process; `ray_cluster` has the other place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from navi_core.config import TrainConfig
from navi_core.errors import RunError
from navi_core.learn.parallel import ALONE, Workers
from navi_core.scale.actor import ApexActor, actor_count
from navi_core.scale.messages import Drawn, News, ShardLostError, Shipment
from navi_core.scale.parameters import ParameterHub, Parameters
from navi_core.scale.shard import ReplayShard
from navi_core.scale.sharded_replay import ShardPort

if TYPE_CHECKING:
    from pathlib import Path

    from navi_core.scenes import Scene

__all__ = ["Cluster", "LocalCluster", "LocalShard", "Replacements", "lives_from", "of_learner"]

_LOG = logging.getLogger("navi.scale")
_LIVES = 1_000_000


class Cluster(Protocol):
    """What a learner asks of the place where its actors and shards are.

    Attributes:
        prefetch: Minibatches to draw ahead.
        replaced: How many actors and shards were replaced.
    """

    prefetch: int
    replaced: Replacements

    @property
    def ports(self) -> Sequence[ShardPort]:
        """This learner's shards."""

    def start(self, start: int) -> None:
        """Start this learner's actors; `start` counts the run's starts, so that no life is lived twice."""

    def drive(self, behind: bool) -> None:
        """Give actors their turn, where they have no process of their own, and replace those that died.

        Args:
            behind: The learners have not yet learned from all that was flown.
        """

    def publish(self, parameters: Parameters) -> None:
        """Let actors have weights."""

    def wait(self) -> None:
        """Wait a moment for actors."""

    def close(self, reason: str) -> None:
        """End what was started."""


class Replacements:
    """Counts who was replaced, and gives up where there is no end to it.

    Args:
        most: Replacements that are made.
    """

    def __init__(self, most: int) -> None:
        self.most, self.actors, self.shards = most, 0, 0
        self._untold: list[str] = []

    def count(self, what: str, number: int, why: str) -> None:
        """Count a replacement of the actor or shard of a number.

        Raises:
            RunError: There were too many.
        """
        self.actors += what == "actor"
        self.shards += what == "shard"
        said = f"{what} {number} died ({why}) and is replaced"
        _LOG.warning("%s", said)
        self._untold.append(said)
        if self.actors + self.shards > self.most:
            raise RunError(
                f"{said}, the {self.most + 1}th death: something kills them; see distributed.max_replacements"
            )

    def untold(self) -> list[str]:
        """Return what was said since the last call."""
        said, self._untold = self._untold, []
        return said


def of_learner(count: int, workers: Workers) -> list[int]:
    """Return which of `count` shards or actors are this learner's: every size-th, from its rank on."""
    return list(range(workers.rank, count, workers.size))


def lives_from(start: int) -> int:
    """Return the number before the first life of a start of the run."""
    return start * _LIVES


class LocalShard:
    """A shard in this process, which a test may lose.

    Args:
        number: Which shard.
        make: Makes an empty one.
    """

    def __init__(self, number: int, make: Callable[[], ReplayShard]) -> None:
        self.number, self._make = number, make
        self.shard: ReplayShard | None = make()

    def kill(self) -> None:
        """Lose it and all that it holds."""
        self.shard = None

    def revive(self) -> bool:
        """Put an empty one in its place; False where one is there."""
        lost = self.shard is None
        if lost:
            self.shard = self._make()
        return lost

    def add(self, shipment: Shipment) -> bool:
        """Ship to it."""
        return self._here().add(shipment)

    def ask(self, n: int) -> Callable[[], Drawn | None]:
        """Ask for n items, which are drawn when they are taken."""
        return lambda: self._here().draw(n)

    def update(self, token: str, places: np.ndarray, serials: np.ndarray, priorities: np.ndarray) -> None:
        """Give items new priorities."""
        self._here().update(token, places, serials, priorities)

    def news(self, token: str, cursor: int, debt: int) -> News:
        """Ask for reports."""
        return self._here().news(token, cursor, debt)

    def save(self, folder: str, name: str) -> int:
        """Have it written."""
        return self._here().save(folder, name)

    def load(self, folder: str, name: str, remembered: int) -> bool:
        """Have it read."""
        return self._here().load(folder, name, remembered)

    def _here(self) -> ReplayShard:
        if self.shard is None:
            raise ShardLostError(f"shard {self.number} is lost")
        return self.shard


class LocalCluster:
    """Actors and shards of one learner, in its process, taking turns: the distributed run without its machines.

    Args:
        config: The run's configuration.
        scenes: What is flown in; none for a task.
        workers: The learners.
    """

    prefetch = 0

    def __init__(
        self,
        config: TrainConfig,
        scenes: Sequence[Scene | str | Path] = (),
        workers: Workers = ALONE,
    ) -> None:
        self.config, self._scenes, self._workers = config, scenes, workers
        self.hub = ParameterHub()
        self.replaced = Replacements(config.distributed.max_replacements)
        mine = of_learner(config.distributed.replay_shards, workers)
        self.ports = [LocalShard(i, lambda i=i: ReplayShard(config, i)) for i in mine]  # type: ignore[misc]
        self.actors: dict[int, ApexActor | None] = {}
        self._lives: dict[int, int] = {}

    def start(self, start: int) -> None:
        """Start this learner's actors."""
        for number in of_learner(actor_count(self.config), self._workers):
            self._lives[number] = lives_from(start)
            self.actors[number] = self._launch(number)

    def kill(self, actor: int) -> None:
        """Lose an actor."""
        self.actors[actor] = None

    def drive(self, behind: bool) -> None:
        """Let every actor take a turn, unless the learners are behind; a dead one is replaced."""
        if behind:
            return
        for number, actor in self.actors.items():
            try:
                if actor is None:
                    self.replaced.count("actor", number, "it was killed")
                    actor = self.actors[number] = self._launch(number)
                actor.turn()
            except ShardLostError:
                port = self._port(number)
                if port.revive():
                    self.replaced.count("shard", port.number, "it was lost")

    def publish(self, parameters: Parameters) -> None:
        """Let actors have weights."""
        self.hub.publish(parameters)

    def wait(self) -> None:
        """Actors fly when they are driven; there is nothing to wait for."""

    def close(self, reason: str) -> None:
        """Tell the actors that the run is over."""
        self.hub.stop(reason)

    def _port(self, actor: int) -> LocalShard:
        # An actor ships to a shard of its own learner.
        return self.ports[(actor // self._workers.size) % len(self.ports)]

    def _launch(self, number: int) -> ApexActor:
        self._lives[number] += 1
        return ApexActor(self.config, number, self._lives[number], self._port(number), self.hub, self._scenes)
