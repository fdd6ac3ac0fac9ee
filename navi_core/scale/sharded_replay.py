"""Distributed prioritised replay: shards that accept each rollout once, and minibatches drawn from several of them.

A rollout counts once a shard has accepted it and the learner has read its report. A rollout lost with an actor or a
shard is neither stored nor counted.

A minibatch of n takes n/S items from each of S shards, each drawn by priority within its shard. The importance weights
use the true probability of each draw, P = (share of its shard in the minibatch) · (p^α / Σ p^α of the shard), so shards
of unequal weight cause no bias (Schaul et al. 2016, section 3.4). Several learners each draw from their own shards; all
weights are divided by the largest one of the whole minibatch.
"""

import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from navi_core.config import TrainConfig
from navi_core.errors import ConfigError, RunError
from navi_core.learn.parallel import ALONE, Workers
from navi_core.learn.replay.prioritized import PrioritizedReplay, Replay
from navi_core.learn.replay.replay_file import load_replay, prune_replays, save_replay
from navi_core.scale.messages import ExperienceBatch, Report, ShardLostError, ShardSample, ShardStatus

T = TypeVar("T")
_PATIENCE = 120.0
_PAUSE = 0.01


class ShardPort(ABC):
    """Abstract client of a replay shard; every method raises `ShardLostError` if the shard does not answer.

    Attributes:
        number: Index of the shard.
    """

    number: int

    @abstractmethod
    def later(self, method: str, *args: object) -> Callable[[], Any]:
        """Call a shard method asynchronously; the returned callable waits for the result."""

    @abstractmethod
    def revive(self) -> bool:
        """Restart a lost shard empty; False if it was restarted already."""

    def add(self, experience: ExperienceBatch) -> bool:
        """Send a rollout's items to the shard; False asks the actor to retry."""
        return bool(self.later("add", experience)())

    def ask(self, n: int) -> Callable[[], ShardSample | None]:
        """Request n sampled items asynchronously; the returned callable waits for them (None: the shard is empty)."""
        return self.later("draw", n)

    def update(self, token: str, places: np.ndarray, serials: np.ndarray, priorities: np.ndarray) -> None:
        """Send new priorities of sampled items to the shard, without waiting."""
        self.later("update", token, places, serials, priorities)

    def status(self, token: str, cursor: int, debt: int) -> ShardStatus:
        """Fetch the shard's status with the reports since `cursor`; earlier reports are confirmed."""
        status: ShardStatus = self.later("status", token, cursor, debt)()
        return status

    def save(self, folder: str, name: str) -> int:
        """Save the shard's items to a file on the shard's machine; return the number ever added."""
        return int(self.later("save", folder, name)())

    def load(self, folder: str, name: str, remembered: int) -> bool:
        """Load the shard's items from a saved file; False if they are lost."""
        return bool(self.later("load", folder, name, remembered)())


Drawn = list[tuple[ShardPort, ShardSample]]
"""Sampled parts of one minibatch, with the shard of each."""


class ShardedReplay(Replay):
    """Prioritised replay of one learner over its shards, with the interface that `DQNLearner` needs.

    Args:
        config: The run's configuration.
        ports: This learner's shards.
        workers: Learner processes (ranks).
        prefetch: Minibatches requested ahead; 0 requests each when it is needed.
        lost: Called with every lost shard, after its replacement.
        device: Device of the minibatches.

    Attributes:
        length: Items in all shards of the run; set by the training loop.
    """

    def __init__(
        self,
        config: TrainConfig,
        ports: Sequence[ShardPort],
        workers: Workers = ALONE,
        prefetch: int = 0,
        lost: Callable[[ShardPort], None] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        replay, count = config.replay, config.distributed.replay_shards
        if len(ports) * workers.size != count:
            raise ConfigError(
                f"{count} shards cannot be shared by {workers.size} learners; "
                "set distributed.replay_shards to a multiple of the learners"
            )
        self.ports, self.workers, self._shards, self._prefetch = list(ports), workers, count, prefetch
        self._lost, self._device = lost, torch.device(device)
        self.alpha = replay.alpha if replay.prioritized_replay else 0.0
        self.beta = self.beta0 = replay.beta0
        self.length = self.added = 0
        self._block = max(1, prefetch)
        self._asked: deque[list[tuple[ShardPort, int, Callable[[], ShardSample | None] | None]]] = deque()
        self._ready: deque[Drawn] = deque()
        self._cursors: dict[int, tuple[str, int]] = {}
        self._pending: list[tuple[ShardPort, ShardSample, np.ndarray]] = []

    def __len__(self) -> int:
        return self.length

    def sample(self, n: int) -> tuple[dict[str, Tensor], Drawn, Tensor]:
        """Sample this learner's part of a prioritised minibatch of n items over all learners.

        Returns:
            The items' tensors by name; their places, for `update`; their importance weights, float32.

        Raises:
            ConfigError: The minibatch is smaller than the number of shards.
            RunError: No shard of this learner got an item within two minutes.
        """
        if n < self._shards:
            raise ConfigError(f"a minibatch of {n} items from {self._shards} shards; raise replay.batch_size")
        if not self._ready:
            self._ready.extend(self._next_block(n))
        drawn = self._ready.popleft()
        names = drawn[0][1].items
        items = {
            name: torch.from_numpy(np.concatenate([got.items[name] for _, got in drawn])).to(self._device)
            for name in names
        }
        return items, drawn, self._weights(drawn, n)

    def update(self, indices: Drawn, priorities: Tensor | np.ndarray) -> None:
        """Send new priorities (n,) of sampled items to their shards, which ignore overwritten items."""
        values = torch.as_tensor(priorities).detach().to("cpu", torch.float64).numpy()
        ends = np.cumsum([len(got.places) for _, got in indices])
        self._pending += [(port, got, part) for (port, got), part in zip(indices, np.split(values, ends[:-1]))]
        if self._ready:
            return
        pending, self._pending = self._pending, []
        senders = {(port.number, drawn.token): port for port, drawn, _ in pending}
        for (number, token), port in senders.items():
            mine = [(drawn, x) for at, drawn, x in pending if at.number == number and drawn.token == token]
            places, serials = (np.concatenate([getattr(d, name) for d, _ in mine]) for name in ("places", "serials"))
            self.attempt(port, partial(port.update, token, places, serials, np.concatenate([x for _, x in mine])))

    def attempt(self, port: ShardPort, call: Callable[[], T]) -> T | None:
        """Execute a shard call with failover: return its result; None if the shard was lost, which is then replaced."""
        try:
            return call()
        except ShardLostError:
            if port.revive() and self._lost is not None:
                self._lost(port)
            return None

    def status(self, port: ShardPort, debt: int) -> ShardStatus | None:
        """Poll a shard's status, with the reports since the last poll; None if the shard was lost and replaced."""
        status = self.attempt(port, partial(port.status, *self._cursors.get(port.number, ("", 0)), debt))
        if status is not None:
            self._cursors[port.number] = status.token, status.cursor
        return status

    def save(self, port: ShardPort, checkpoint: Path) -> int:
        """Save a snapshot of a shard beside a checkpoint; return the number of items ever added, 0 for a lost shard."""
        return self.attempt(port, partial(port.save, str(checkpoint.parent), checkpoint.name)) or 0

    def _shares(self, n: int) -> list[tuple[ShardPort, int]]:
        return [(port, n // self._shards + (port.number < n % self._shards)) for port in self.ports]

    def _next_block(self, n: int) -> list[Drawn]:
        """Collect the next block of prefetched minibatches and request the one after it."""
        count = self._block
        while len(self._asked) <= (self._prefetch > 0):
            self._asked.append([(port, x, self._ask(port, x * count)) for port, x in self._shares(n)])
        made: list[Drawn] = [[] for _ in range(count)]
        missing = 0
        for port, share, ticket in self._asked.popleft():
            got = self._redeem(port, ticket)
            if got is None:
                missing += share
                continue
            for minibatch, part in zip(made, got.parts(count)):
                minibatch.append((port, part))
        if missing:
            # Other shards of this learner stand in for a new or lost one.
            port, got = self._from_any(missing * count)
            for minibatch, part in zip(made, got.parts(count)):
                minibatch.append((port, part))
        return made

    def _ask(self, port: ShardPort, n: int) -> Callable[[], ShardSample | None] | None:
        return self.attempt(port, partial(port.ask, n))

    def _redeem(self, port: ShardPort, ticket: Callable[[], ShardSample | None] | None) -> ShardSample | None:
        return None if ticket is None else self.attempt(port, ticket)

    def _from_any(self, n: int) -> tuple[ShardPort, ShardSample]:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            for port in self.ports:
                got = self._redeem(port, self._ask(port, n))
                if got is not None:
                    return port, got
            time.sleep(_PAUSE)
        raise RunError(
            f"no shard got an item in {_PATIENCE:.0f} s; do the actors fly? `navi train actor --shard 0` starts one"
        )

    def _weights(self, drawn: Drawn, n: int) -> Tensor:
        # (N·P)^−β up to the factor N, which the division by the largest cancels. A shard that stands in for another
        # provides two parts: its items were drawn with the probability of both.
        shares: Counter[str] = Counter()
        for _, got in drawn:
            shares[got.token] += len(got.places)
        chances = np.concatenate([got.probabilities * (shares[got.token] / n) for _, got in drawn])
        inverse = torch.from_numpy(chances**-self.beta).to(self._device)
        most = inverse.max()
        if self.workers.size > 1:
            self.workers.max(most)
        return (inverse / most).float()


_SEEDS_APART = 7919


class ReplayShard:
    """Shard of a distributed prioritised replay buffer (Horgan et al. 2018).

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
        """Store a rollout's items, at most once (duplicates are dropped).

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
        """Sample n items by priority; None while the shard is empty."""
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
        """Update the priorities of sampled items that are still stored.

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
        """Return the shard's counters and the reports since a cursor; reports before it are confirmed and dropped.

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
        """Save a snapshot of the shard (replay file) beside the named checkpoint; return the number ever added."""
        place = Path(folder) / f"shard-{self.number}"
        save_replay(self.replay, place / name)
        prune_replays(place)
        return self.replay.added

    def load(self, folder: str, name: str, remembered: int) -> bool:
        """Load the shard's snapshot (replay file) of a checkpoint; False, with a warning, if it is lost."""
        return load_replay(self.replay, Path(folder) / f"shard-{self.number}" / name, remembered)

    def _serials(self, places: np.ndarray) -> np.ndarray:
        """Return the serial numbers of the items in ring-buffer slots; items are numbered in order of addition."""
        last = self.replay.added - 1
        return last - (last - places) % self.replay.capacity
