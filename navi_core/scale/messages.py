"""Messages between Ape-X actors, replay shards and learners, and the run's counters.

Each report is counted once. Published weights have a checksum that is verified before they are loaded.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from navi_core.errors import CheckpointError, RunError
from navi_core.models import weights_hash
from navi_core.record.population import actor_statistics


class ShardLostError(RunError):
    """Error of a replay shard that does not answer; its items are lost, and it can be replaced."""


@dataclass(frozen=True)
class Report:
    """Report message of an actor: statistics of one rollout; (actor, life, number) identifies it.

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
        td_var: Variance of the temporal differences.
        local_structure: Fraction of latent neighbours with similar targets.
        actions: How often each action of the table was chosen.
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
    actions: tuple[int, ...] = ()


@dataclass(frozen=True)
class ExperienceBatch:
    """Message of an actor to a replay shard: the replay items of one rollout, with initial priorities.

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
    """Prioritised sample of a replay shard: items, slots and probabilities for one or more minibatches.

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
        """Split the sample by stride into `count` minibatches of equal size, spread over all strata of the draw."""
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
    """Status message of a replay shard to its learner: new rollout reports and counters.

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
    """Versioned snapshot of the published weights (policy and curiosity predictor), with SHA-256 checksum.

    Attributes:
        version: Number of the version, from 1.
        step: Gradient steps so far.
        decisions: Decisions trained on so far.
        checksum: SHA-256 of names, types, shapes and bits.
        arrays: Arrays of the weights by parameter name.
    """

    version: int
    step: int
    decisions: int
    checksum: str
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, weights: Mapping[str, torch.Tensor], *, version: int, step: int, decisions: int) -> Parameters:
        """Snapshot the weights: copy them to numpy arrays on the CPU and compute their checksum."""
        arrays = {name: x.detach().cpu().contiguous().clone().numpy() for name, x in weights.items()}
        return cls(version, step, decisions, weights_hash(weights), arrays)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the weights as tensors after verifying the checksum.

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
    """Command of the parameter hub to an actor between two rollouts: newer weights, or stop.

    Attributes:
        parameters: Newer weights, or None.
        stop: Reason why the run is over; empty while it goes on.
    """

    parameters: Parameters | None
    stop: str = ""


class ParameterHub:
    """Parameter server: serves the newest weights and the stop signal to actors.

    Args:
        description: Settings and scenes of the run for external actors, as plain data.
    """

    def __init__(self, description: dict[str, Any] | None = None) -> None:
        self.description = description or {}
        self._parameters: Parameters | None = None
        self._stop = ""
        self._guests = 0

    def join(self) -> None:
        """Register an external actor; the end of the run waits for it."""
        self._guests += 1

    def leave(self) -> None:
        """Unregister an external actor."""
        self._guests -= 1

    def guests(self) -> int:
        """Return the number of registered external actors."""
        return self._guests

    def describe(self) -> dict[str, Any]:
        """Return the run's description for external actors: settings, scenes, number of shards."""
        return self.description

    def publish(self, parameters: Parameters) -> None:
        """Store newly published weights; an older version that arrives late is ignored."""
        if self._parameters is None or parameters.version > self._parameters.version:
            self._parameters = parameters

    def command(self, version: int) -> ActorCommand:
        """Return the command for an actor that has weights of the given version (0: none yet)."""
        newest = self._parameters
        return ActorCommand(newest if newest is not None and newest.version > version else None, self._stop)

    def stop(self, reason: str) -> None:
        """Set the stop signal that all actors receive."""
        self._stop = reason


_SIGNS = ("td_mean", "td_var", "local_structure")
_LATEST = 100
_STAGES = ("actor_steps", "shard_adds", "shard_samples", "learner_updates")


class RunCounters:
    """Counters and running statistics over the rollout reports of all actors.

    Attributes:
        decisions: Decisions counted.
        episodes: Episodes that ended in them.
        recent: Returns of the latest hundred episodes.
        items: Items in all shards, as of their last status.
        repeated: Duplicate reports, not counted.
    """

    def __init__(self) -> None:
        self.decisions = self.episodes = self.items = self.repeated = 0
        self.recent: deque[float] = deque(maxlen=_LATEST)
        self.best = math.nan
        """Best moving average of the episode return (100 episodes); NaN before the hundredth."""
        self.throughput = dict.fromkeys(_STAGES, 0)
        """Throughput totals since the start: decisions, items added to and drawn from shards, gradient steps."""
        self._marks: dict[tuple[int, int], int] = {}
        # Sum and count per actor and statistic: bounded, even if `population` is never called.
        self._signs: dict[tuple[int, int], dict[str, tuple[float, int]]] = {}
        self._rewards: list[tuple[float, int]] = []
        # By actor, since the last `figures`.
        self._actions: dict[int, np.ndarray] = {}
        self._returns: defaultdict[int, list[float]] = defaultdict(list)
        self._shards: dict[int, ShardStatus] = {}
        self._published: dict[int, float] = {}
        # Values since the last `figures`, of which it gives the means.
        self._seen: defaultdict[str, list[float]] = defaultdict(list)
        self._before = dict(self.throughput)
        self._looked = time.monotonic()
        self._newest = 0

    def published(self, version: int) -> None:
        """Record the publication time of a version of the weights."""
        self._published[version] = time.monotonic()
        self._newest = version
        for old in sorted(self._published)[:-_LATEST]:
            del self._published[old]

    def enter(self, report: Report) -> bool:
        """Add a rollout report to counters and running statistics; return False for a duplicate, which is dropped."""
        sender = report.actor, report.life
        if report.number <= self._marks.get(sender, -1):
            self.repeated += 1
            return False
        self._marks[sender] = report.number
        self.decisions += report.decisions
        self.throughput["actor_steps"] += report.decisions
        for value in report.returns:
            self.recent.append(value)
            if len(self.recent) == _LATEST:
                mean = sum(self.recent) / _LATEST
                self.best = mean if math.isnan(self.best) else max(self.best, mean)
        self.episodes += len(report.returns)
        self._seen["episode_return"] += report.returns
        self._seen["episode_length"] += report.lengths
        self._rewards.append((report.reward, report.decisions))
        self._returns[report.actor] += report.returns
        if report.actions:
            self._actions[report.actor] = self._actions.get(report.actor, 0) + np.array(report.actions)
        signs = self._signs.setdefault(sender, {})
        samples = {name: (getattr(report, name),) for name in _SIGNS} | {"val_reward": report.returns}
        for name, values in samples.items():
            total, count = signs.get(name, (0.0, 0))
            signs[name] = sum(values, total), count + len(values)
        if report.version in self._published:
            self._seen["sync_age_s"].append(time.monotonic() - self._published[report.version])
            self._seen["sync_lag_versions"].append(self._newest - report.version)
        return True

    def add_statuses(self, statuses: Iterable[tuple[int, ShardStatus]]) -> list[tuple[int, int, int, int]]:
        """Merge the statuses of replay shards, given with their indices, and count their reports.

        Returns:
            Index, items added since, items held before and now, of every shard that grew.
        """
        grown = []
        for number, status in statuses:
            before = self._shards.get(number)
            # A replacement counts from 0 again.
            same = before is not None and before.token == status.token
            known = (before.added, before.drawn, before.items) if before is not None and same else (0, 0, 0)
            added, drawn, held = known
            if status.added > added:
                grown.append((number, status.added - added, held, status.items))
            self.throughput["shard_adds"] += status.added - added
            self.throughput["shard_samples"] += status.drawn - drawn
            self._shards[number] = status
            for report in status.reports:
                self.enter(report)
        self.items = sum(status.items for status in self._shards.values())
        return grown

    def least_filled(self, learners: int) -> int:
        """Return the fewest items that any learner holds in its shards; shard i belongs to learner i mod `learners`."""
        held = [0] * learners
        for number, status in self._shards.items():
            held[number % learners] += status.items
        return min(held)

    @property
    def recent_mean(self) -> float:
        """Moving average of the episode return over the latest 100 episodes; NaN before the hundredth."""
        return sum(self.recent) / _LATEST if len(self.recent) == _LATEST else math.nan

    def rewards(self) -> list[tuple[float, int]]:
        """Return and clear (mean shaped reward, decisions) of each rollout since the last call."""
        taken, self._rewards = self._rewards, []
        return taken

    def population(self) -> list[tuple[float, float, float, float]]:
        """Return each actor's mean early-stopping statistics since the last call, for `update_population`.

        Actors without a finished episode are left out.
        """
        population = [
            tuple(total / count for total, count in (signs[name] for name in (*_SIGNS, "val_reward")))
            for signs in self._signs.values()
            if signs["val_reward"][1]
        ]
        self._signs = {}
        return population  # type: ignore[return-value]

    def figures(self) -> dict[str, float]:
        """Return metrics by name: throughput, population and episode means since the last call, and run totals."""
        now = time.monotonic()
        seconds = max(now - self._looked, 1e-9)
        found = {f"{name}_per_s": (x - self._before[name]) / seconds for name, x in self.throughput.items()}
        found |= {name: sum(values) / len(values) for name, values in self._seen.items() if values}
        found |= actor_statistics(self._actions, self._returns)
        if not math.isnan(self.recent_mean):
            found["return_100"] = self.recent_mean
        found["episodes"] = float(self.episodes)
        found["stale_priorities"] = float(sum(status.stale for status in self._shards.values()))
        found["repeated_shipments"] = float(self.repeated + sum(status.repeated for status in self._shards.values()))
        self._before, self._looked = dict(self.throughput), now
        for values in (self._seen, self._actions, self._returns):
            values.clear()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the counters that a resumed run continues, as plain data."""
        counts = {"decisions": self.decisions, "episodes": self.episodes}
        return counts | {"recent": list(self.recent), "best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counters from a `state_dict`."""
        self.decisions, self.episodes, self.best = int(state["decisions"]), int(state["episodes"]), float(state["best"])
        self.recent.extend(float(x) for x in state["recent"])
