"""Counters of a distributed run: each report counted once, and the rate of each stage."""

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

from navi_core.scale.messages import Report, ShardStatus

_SIGNS = ("td_mean", "td_var", "local_structure")
_LATEST = 100
_STAGES = ("actor_steps", "shard_adds", "shard_samples", "learner_updates")


class RunCounters:
    """Counters over the reports of all actors.

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
        """Highest mean return of a hundred episodes."""
        self.throughput = dict.fromkeys(_STAGES, 0)
        """Totals since the start: decisions counted, items taken and given by shards, gradient steps."""
        self._marks: dict[tuple[int, int], int] = {}
        # Sum and count per actor and statistic: bounded, even if `population` is never called.
        self._signs: dict[tuple[int, int], dict[str, tuple[float, int]]] = {}
        self._rewards: list[tuple[float, int]] = []
        self._shards: dict[int, ShardStatus] = {}
        self._published: dict[int, float] = {}
        # Values since the last `figures`, of which it gives the means.
        self._seen: defaultdict[str, list[float]] = defaultdict(list)
        self._before = dict(self.throughput)
        self._looked = time.monotonic()
        self._newest = 0

    def published(self, version: int) -> None:
        """Record the publication of a version."""
        self._published[version] = time.monotonic()
        self._newest = version
        for old in sorted(self._published)[:-_LATEST]:
            del self._published[old]

    def enter(self, report: Report) -> bool:
        """Count a report; return False for a duplicate."""
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
        signs = self._signs.setdefault(sender, {})
        samples = {name: (getattr(report, name),) for name in _SIGNS} | {"val_reward": report.returns}
        for name, values in samples.items():
            total, count = signs.get(name, (0.0, 0))
            signs[name] = sum(values, total), count + len(values)
        if report.version in self._published:
            self._seen["sync_age_s"].append(time.monotonic() - self._published[report.version])
            self._seen["sync_lag_versions"].append(self._newest - report.version)
        return True

    def add_statuses(self, statuses: Iterable[tuple[int, ShardStatus]]) -> None:
        """Count the reports of shards, given with their numbers."""
        for number, status in statuses:
            before = self._shards.get(number)
            # A replacement counts from 0 again.
            same = before is not None and before.token == status.token
            added, drawn = (before.added, before.drawn) if same and before is not None else (0, 0)
            self.throughput["shard_adds"] += status.added - added
            self.throughput["shard_samples"] += status.drawn - drawn
            self._shards[number] = status
            for report in status.reports:
                self.enter(report)
        self.items = sum(status.items for status in self._shards.values())

    def least_filled(self, learners: int) -> int:
        """Return the items of the learner with the fewest; shard i belongs to learner i mod `learners`."""
        held = [0] * learners
        for number, status in self._shards.items():
            held[number % learners] += status.items
        return min(held)

    @property
    def recent_mean(self) -> float:
        """Mean return of the latest hundred episodes; NaN before the hundredth."""
        return sum(self.recent) / _LATEST if len(self.recent) == _LATEST else math.nan

    def rewards(self) -> list[tuple[float, int]]:
        """Return mean shaped reward and decisions of the rollouts since the last call."""
        taken, self._rewards = self._rewards, []
        return taken

    def population(self) -> list[tuple[float, float, float, float]]:
        """Return the statistics of each actor since the last call, for `EarlyStopController.update_population`.

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
        """Return rates, ages and counts since the last call, by metric name."""
        now = time.monotonic()
        seconds = max(now - self._looked, 1e-9)
        found = {f"{name}_per_s": (x - self._before[name]) / seconds for name, x in self.throughput.items()}
        found |= {name: sum(values) / len(values) for name, values in self._seen.items() if values}
        if not math.isnan(self.recent_mean):
            found["return_100"] = self.recent_mean
        found["episodes"] = float(self.episodes)
        found["stale_priorities"] = float(sum(status.stale for status in self._shards.values()))
        found["repeated_shipments"] = float(self.repeated + sum(status.repeated for status in self._shards.values()))
        self._before, self._looked = dict(self.throughput), now
        self._seen.clear()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the counters that a resumed run continues, as plain data."""
        counts = {"decisions": self.decisions, "episodes": self.episodes}
        return counts | {"recent": list(self.recent), "best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`."""
        self.decisions, self.episodes, self.best = int(state["decisions"]), int(state["episodes"]), float(state["best"])
        self.recent.extend(float(x) for x in state["recent"])
