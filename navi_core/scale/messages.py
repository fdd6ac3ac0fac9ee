"""What travels between actors, shards and learners: plain values and arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from navi_core.errors import RunError

__all__ = ["Drawn", "News", "Report", "ShardLostError", "Shipment"]


class ShardLostError(RunError):
    """A shard of the replay does not answer any more; its items are gone, and it can be replaced."""


@dataclass(frozen=True)
class Report:
    """What an actor says about the rollout that it ships; (actor, life, number) is its name for ever.

    Attributes:
        actor: Which actor.
        life: Which of its lives; one that replaces another has a higher number.
        number: Rollouts it has shipped before in this life.
        decisions: Decisions summed over its rows.
        version: Publication of the weights that it flew with.
        seconds: Wall time of the rollout [s].
        reward: Mean shaped reward of a decision.
        returns: Environment returns of the episodes that ended.
        lengths: Their decisions.
        td_mean: Mean temporal difference, by the actor's own weights.
        td_var: Its variance.
        local_structure: Share of latent neighbours with like targets.
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
class Shipment:
    """A rollout on its way to a shard.

    Attributes:
        report: About it.
        items: Arrays (N, …) by name, as the replay keeps them; empty where a first burn-in has no sequence yet.
        priorities: (N,) float64, by the actor's own temporal differences.
    """

    report: Report
    items: dict[str, np.ndarray]
    priorities: np.ndarray


@dataclass(frozen=True)
class Drawn:
    """Items of a shard, for a minibatch.

    Attributes:
        token: Of the shard; a replacement has another one.
        items: Arrays (n, …) by name.
        places: (n,) int64.
        serials: (n,) int64 numbers of the items that were there; a place is written over in time.
        probabilities: (n,) float64 with which each was drawn within the shard.
    """

    token: str
    items: dict[str, np.ndarray]
    places: np.ndarray
    serials: np.ndarray
    probabilities: np.ndarray

    def parts(self, count: int) -> list[Drawn]:
        """Return these items as so many minibatches of equal size, each spread over all strata of the draw."""
        return [
            Drawn(
                self.token,
                {name: x[i::count] for name, x in self.items.items()},
                self.places[i::count],
                self.serials[i::count],
                self.probabilities[i::count],
            )
            for i in range(count)
        ]


@dataclass(frozen=True)
class News:
    """What a shard has to tell its learner.

    Attributes:
        token: Of the shard.
        cursor: To be given with the next question, which thereby confirms these reports.
        reports: Of the shipments that were accepted and not yet confirmed.
        items: Items it holds.
        added: Items it has ever taken.
        drawn: Items it has ever given.
        stale: Priorities that came too late: their items had been written over.
        repeated: Shipments that came a second time.
    """

    token: str
    cursor: int
    reports: tuple[Report, ...]
    items: int
    added: int
    drawn: int
    stale: int
    repeated: int
