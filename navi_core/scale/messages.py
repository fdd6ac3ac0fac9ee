"""Messages between actors, shards and learners: reports, items, and published weights with a verified checksum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from navi_core.errors import CheckpointError, RunError
from navi_core.models import weights_hash


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


@dataclass(frozen=True)
class Parameters:
    """One version of the weights.

    Attributes:
        version: Number of the version, from 1.
        step: Gradient steps so far.
        decisions: Decisions trained on so far.
        checksum: SHA-256 of names, types, shapes and bits.
        arrays: The weights by name.
    """

    version: int
    step: int
    decisions: int
    checksum: str
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, weights: Mapping[str, torch.Tensor], *, version: int, step: int, decisions: int) -> Parameters:
        """Return a version made of a copy of the weights."""
        arrays = {name: x.detach().cpu().contiguous().clone().numpy() for name, x in weights.items()}
        return cls(version, step, decisions, weights_hash(weights), arrays)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights after verifying the checksum.

        Raises:
            CheckpointError: The checksum differs.
        """
        # Copied: arrays from shared memory are read-only.
        weights = {name: torch.from_numpy(np.array(x)) for name, x in self.arrays.items()}
        found = weights_hash(weights)
        if found != self.checksum:
            raise CheckpointError(
                f"the weights of version {self.version} have the checksum {found[:16]}… and were published with "
                f"{self.checksum[:16]}…; they are not loaded"
            )
        return weights


@dataclass(frozen=True)
class ActorCommand:
    """Command to an actor between two rollouts.

    Attributes:
        parameters: Newer weights, or None.
        stop: Reason why the run is over; empty while it goes on.
    """

    parameters: Parameters | None
    stop: str = ""


class ParameterHub:
    """Parameter server: newest weights and the stop signal.

    Args:
        description: Settings and scenes of the run for external actors, as plain data.
    """

    def __init__(self, description: dict[str, Any] | None = None) -> None:
        self.description = description or {}
        self._parameters: Parameters | None = None
        self._stop = ""
        self._guests = 0

    def join(self) -> None:
        """Count an external actor, which the end of the run waits for."""
        self._guests += 1

    def leave(self) -> None:
        """Count an external actor that leaves."""
        self._guests -= 1

    def guests(self) -> int:
        """Return the number of external actors."""
        return self._guests

    def describe(self) -> dict[str, Any]:
        """Return the description of the run."""
        return self.description

    def publish(self, parameters: Parameters) -> None:
        """Publish weights; an older version that arrives late is ignored."""
        if self._parameters is None or parameters.version > self._parameters.version:
            self._parameters = parameters

    def command(self, version: int) -> ActorCommand:
        """Return the command for an actor with a version (0: no weights yet)."""
        newest = self._parameters
        return ActorCommand(newest if newest is not None and newest.version > version else None, self._stop)

    def stop(self, reason: str) -> None:
        """End the run for all actors."""
        self._stop = reason
