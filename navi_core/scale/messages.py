"""Messages between actors, shards and learners: plain values and arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from navi_core.errors import RunError


class ShardLostError(RunError):
    """A replay shard does not answer; its items are lost, and it can be replaced."""


@dataclass(frozen=True)
class Report:
    """Statistics of one rollout; (actor, life, number) identifies it.

    Attributes:
        actor: Index of the actor.
        life: Number of its restart; a replacement has a higher number.
        number: Rollouts it sent before in this life.
        decisions: Decisions summed over its rows.
        version: Version of the weights that it flew with.
        seconds: Wall time of the rollout [s].
        reward: Mean shaped reward of a decision.
        returns: Environment returns of the episodes that ended.
        lengths: Their decisions.
        td_mean: Mean temporal difference, by the actor's own weights.
        td_var: Its variance.
        local_structure: Fraction of latent neighbours with similar targets.
    """

    actor: int
    life: int
    number: int
    decisions: int
    version: int
    seconds: float
    reward: float
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    td_mean: float
    td_var: float
    local_structure: float


@dataclass(frozen=True)
class ExperienceBatch:
    """Replay items of one rollout, with initial priorities.

    Attributes:
        report: Statistics of the rollout.
        items: Arrays (N, …) by name, as the replay stores them; empty while the first burn-in lasts.
        priorities: (N,) float64, from the actor's temporal differences.
    """

    report: Report
    items: dict[str, np.ndarray]
    priorities: np.ndarray


@dataclass(frozen=True)
class ShardSample:
    """Items drawn from a shard for a minibatch.

    Attributes:
        token: Identity of the shard; a replacement has another one.
        items: Arrays (n, …) by name.
        places: (n,) int64 slots.
        serials: (n,) int64 serial numbers of the items; slots are overwritten in time.
        probabilities: (n,) float64 probability of each draw within the shard.
    """

    token: str
    items: dict[str, np.ndarray]
    places: np.ndarray
    serials: np.ndarray
    probabilities: np.ndarray

    def parts(self, count: int) -> list[ShardSample]:
        """Split the items into `count` minibatches of equal size, each spread over all strata of the draw."""
        return [
            ShardSample(
                self.token,
                {name: x[i::count] for name, x in self.items.items()},
                self.places[i::count],
                self.serials[i::count],
                self.probabilities[i::count],
            )
            for i in range(count)
        ]


@dataclass(frozen=True)
class ShardStatus:
    """Status of a shard: new reports and counters.

    Attributes:
        token: Identity of the shard.
        cursor: Cursor for the next request, which confirms these reports.
        reports: Reports of accepted rollouts that are not confirmed yet.
        items: Items held.
        added: Items ever added.
        drawn: Items ever drawn.
        stale: Late priorities, whose items had been overwritten.
        repeated: Rollouts received a second time.
    """

    token: str
    cursor: int
    reports: tuple[Report, ...]
    items: int
    added: int
    drawn: int
    stale: int
    repeated: int
