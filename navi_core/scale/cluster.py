"""Clusters of actors and shards with replacement of dead ones; here the one in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from navi_core.config import TrainConfig
from navi_core.errors import RunError
from navi_core.learn.parallel import ALONE, Workers
from navi_core.scale.actor import ApexActor, actor_count
from navi_core.scale.messages import ExperienceBatch, ParameterHub, Parameters, ShardLostError, ShardSample, ShardStatus
from navi_core.scale.sharded_replay import ReplayShard, ShardPort

if TYPE_CHECKING:
    from pathlib import Path

    from navi_core.scenes import Scene

_LOG = logging.getLogger("navi.scale")
_LIVES = 1_000_000


class Cluster(Protocol):
    """Cluster interface of a learner.

    Attributes:
        prefetch: Minibatches to draw ahead.
        replaced: Counts of replaced actors and shards.
    """

    prefetch: int
    replaced: Replacements

    @property
    def ports(self) -> Sequence[ShardPort]:
        """This learner's shards."""

    def start(self, start: int) -> None:
        """Start this learner's actors; `start` counts the starts of the run, so that restart numbers are unique."""

    def drive(self, behind: bool) -> None:
        """Run in-process actors for one turn and replace dead ones.

        Args:
            behind: The learners lag behind the actors.
        """

    def publish(self, parameters: Parameters) -> None:
        """Publish weights to the actors."""

    def wait(self) -> None:
        """Wait a moment for actors."""

    def close(self, reason: str) -> None:
        """Stop actors and shards."""


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


def lives_from(start: int) -> int:
    """Return the restart number before the first one of a start of the run."""
    return start * _LIVES


class LocalShard:
    """In-process shard, which tests can kill.

    Args:
        number: Index of the shard.
        make: Factory of an empty shard.
    """

    def __init__(self, number: int, make: Callable[[], ReplayShard]) -> None:
        self.number, self._make = number, make
        self.shard: ReplayShard | None = make()

    def kill(self) -> None:
        """Drop the shard with its items."""
        self.shard = None

    def revive(self) -> bool:
        """Replace a lost shard by an empty one; return whether it was lost."""
        lost = self.shard is None
        if lost:
            self.shard = self._make()
        return lost

    def add(self, experience: ExperienceBatch) -> bool:
        """Add a rollout's items."""
        return self._here().add(experience)

    def ask(self, n: int) -> Callable[[], ShardSample | None]:
        """Return a future of n items, drawn when it is called."""
        return lambda: self._here().draw(n)

    def update(self, token: str, places: np.ndarray, serials: np.ndarray, priorities: np.ndarray) -> None:
        """Give items new priorities."""
        self._here().update(token, places, serials, priorities)

    def status(self, token: str, cursor: int, debt: int) -> ShardStatus:
        """Return the status with new reports."""
        return self._here().status(token, cursor, debt)

    def save(self, folder: str, name: str) -> int:
        """Save the items."""
        return self._here().save(folder, name)

    def load(self, folder: str, name: str, remembered: int) -> bool:
        """Load saved items."""
        return self._here().load(folder, name, remembered)

    def _here(self) -> ReplayShard:
        if self.shard is None:
            raise ShardLostError(f"shard {self.number} is lost")
        return self.shard


class LocalCluster:
    """Actors and shards of one learner in its own process, taking turns.

    Args:
        config: The run's configuration.
        scenes: Scenes to fly in; none for a task.
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
        """Drop an actor."""
        self.actors[actor] = None

    def drive(self, behind: bool) -> None:
        """Run every actor for one turn unless the learners are behind; replace dead ones."""
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

    def _launch(self, number: int) -> ApexActor:
        self._lives[number] += 1
        return ApexActor(self.config, number, self._lives[number], self._port(number), self.hub, self._scenes)
