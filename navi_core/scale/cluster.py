"""Clusters of actors and shards with replacement of dead ones; here the one in this process."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from navi_core.config import TrainConfig
from navi_core.errors import RunError
from navi_core.learn.parallel import ALONE, Workers
from navi_core.scale.actor import ApexActor, actor_count
from navi_core.scale.messages import ParameterHub, Parameters, ShardLostError
from navi_core.scale.sharded_replay import ReplayShard, ShardPort
from navi_core.scenes import Scene

_LOG = logging.getLogger("navi.scale")
_LIVES = 1_000_000


class Replacements:
    """Counter of replacements with an upper limit.

    Args:
        most: Largest number of replacements.
    """

    def __init__(self, most: int) -> None:
        self.most, self.actors, self.shards = most, 0, 0
        self._messages: list[str] = []

    def count(self, what: str, number: int, why: str) -> None:
        """Count the replacement of an actor or shard.

        Raises:
            RunError: There were too many replacements.
        """
        self.actors += what == "actor"
        self.shards += what == "shard"
        message = f"{what} {number} died ({why}) and is replaced"
        _LOG.warning("%s", message)
        self._messages.append(message)
        if self.actors + self.shards > self.most:
            raise RunError(
                f"{message}, death number {self.most + 1}; check what kills them, or raise distributed.max_replacements"
            )

    def pop_messages(self) -> list[str]:
        """Return the messages since the last call."""
        messages, self._messages = self._messages, []
        return messages


def of_learner(count: int, workers: Workers) -> list[int]:
    """Return the indices of this learner's shards or actors: every size-th from its rank on."""
    return list(range(workers.rank, count, workers.size))


class Cluster(ABC):
    """Actors and shards of one learner, with replacement of dead ones.

    Args:
        config: The run's configuration.
        workers: The learners.
        actors: Actors of all learners.

    Attributes:
        prefetch: Minibatches to draw ahead.
        ports: This learner's shards.
        replaced: Counts of replaced actors and shards.
    """

    prefetch = 0
    ports: Sequence[ShardPort]

    def __init__(self, config: TrainConfig, workers: Workers, actors: int) -> None:
        self.config, self._workers, self._mine = config, workers, of_learner(actors, workers)
        self.replaced = Replacements(config.distributed.max_replacements)
        self._lives: dict[int, int] = {}

    def start(self, start: int) -> None:
        """Start this learner's actors; `start` counts the starts of the run, so that restart numbers are unique."""
        for number in self._mine:
            self._lives[number] = start * _LIVES
            self._launch(number)

    def _launch(self, number: int) -> None:
        self._lives[number] += 1
        self._fly(number, self._lives[number])

    @abstractmethod
    def _fly(self, number: int, life: int) -> None:
        """Start an actor."""

    @abstractmethod
    def drive(self, behind: bool) -> None:
        """Run in-process actors for one turn and replace dead ones.

        Args:
            behind: The learners lag behind the actors.
        """

    @abstractmethod
    def publish(self, parameters: Parameters) -> None:
        """Publish weights to the actors."""

    @abstractmethod
    def wait(self) -> None:
        """Wait a moment for actors."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Stop actors and shards."""


class LocalShard(ShardPort):
    """In-process shard.

    Args:
        number: Index of the shard.
        make: Factory of an empty shard.

    Attributes:
        shard: The shard; None where it is lost.
    """

    def __init__(self, number: int, make: Callable[[], ReplayShard]) -> None:
        self.number, self._make = number, make
        self.shard: ReplayShard | None = make()

    def revive(self) -> bool:
        """Replace a lost shard by an empty one; return whether it was lost."""
        lost = self.shard is None
        if lost:
            self.shard = self._make()
        return lost

    def later(self, method: str, *args: object) -> Callable[[], Any]:
        """Call a method of the shard at once; the returned callable gives its result."""
        if self.shard is None:
            raise ShardLostError(f"shard {self.number} is lost")
        answer = getattr(self.shard, method)(*args)
        return lambda: answer


class LocalCluster(Cluster):
    """Actors and shards of one learner in its own process, taking turns.

    Args:
        config: The run's configuration.
        scenes: Scenes to fly in; none for a task.
        workers: The learners.

    Attributes:
        actors: The actors by number; a dead one is missing.
    """

    def __init__(
        self,
        config: TrainConfig,
        scenes: Sequence[Scene | str | Path] = (),
        workers: Workers = ALONE,
    ) -> None:
        super().__init__(config, workers, actor_count(config))
        self._scenes, self.hub = scenes, ParameterHub()
        shards = of_learner(config.distributed.replay_shards, workers)
        self.ports: list[LocalShard] = [LocalShard(i, partial(ReplayShard, config, i)) for i in shards]
        self.actors: dict[int, ApexActor] = {}

    def drive(self, behind: bool) -> None:
        """Run every actor for one turn unless the learners are behind; replace dead ones."""
        for number in () if behind else self._mine:
            try:
                if number not in self.actors:
                    self.replaced.count("actor", number, "it was killed")
                    self._launch(number)
                self.actors[number].turn()
            except ShardLostError:
                port = self._port(number)
                if port.revive():
                    self.replaced.count("shard", port.number, "it was lost")

    def publish(self, parameters: Parameters) -> None:
        """Publish weights to the actors."""
        self.hub.publish(parameters)

    def wait(self) -> None:
        """Return at once: actors run only inside `drive`."""

    def close(self, reason: str) -> None:
        """End the run for the actors."""
        self.hub.stop(reason)

    def _port(self, actor: int) -> LocalShard:
        # An actor sends to a shard of its own learner.
        return self.ports[(actor // self._workers.size) % len(self.ports)]

    def _fly(self, number: int, life: int) -> None:
        self.actors[number] = ApexActor(self.config, number, life, self._port(number), self.hub, self._scenes)
