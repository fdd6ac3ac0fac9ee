"""What a distributed run has counted: every report once, whoever sends it how often, and how fast each stage goes."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from navi_core.scale.messages import News, Report

__all__ = ["Ledger", "Throughput"]

_SIGNS = ("td_mean", "td_var", "local_structure")
_LATEST = 100


@dataclass
class Throughput:
    """What every stage has done since the run began, and a second ago; rates are of the time between two looks.

    Attributes:
        actor_steps: Decisions counted.
        shard_adds: Items taken by shards.
        shard_samples: Items given by shards.
        learner_updates: Gradient steps.
    """

    actor_steps: int = 0
    shard_adds: int = 0
    shard_samples: int = 0
    learner_updates: int = 0
    _before: dict[str, int] = field(default_factory=dict)
    _looked: float = field(default_factory=time.monotonic)

    def rates(self) -> dict[str, float]:
        """Return what each stage did in a second since the last call [1/s]."""
        now = time.monotonic()
        counts = {name: x for name, x in vars(self).items() if not name.startswith("_")}
        seconds = max(now - self._looked, 1e-9)
        rates = {f"{name}_per_s": (x - self._before.get(name, 0)) / seconds for name, x in counts.items()}
        self._before, self._looked = counts, now
        return rates


class Ledger:
    """Counts reports.

    Attributes:
        decisions: Decisions counted.
        episodes: Episodes that ended in them.
        recent: Returns of the latest hundred episodes.
        items: Items in all shards, as of the last news.
        repeated: Reports that came again and were not counted.
    """

    def __init__(self) -> None:
        self.decisions = self.episodes = self.items = self.repeated = 0
        self.recent: deque[float] = deque(maxlen=_LATEST)
        self.best = math.nan
        """Highest mean return of a hundred episodes."""
        self.throughput = Throughput()
        self._marks: dict[tuple[int, int], int] = {}
        # Of each actor and sign the sum and the count: nobody may ask for them in all of a run.
        self._signs: dict[tuple[int, int], dict[str, tuple[float, int]]] = {}
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._rewards: list[tuple[float, int]] = []
        self._shards: dict[int, News] = {}
        self._published: dict[int, float] = {}
        self._ages: list[float] = []
        self._lags: list[int] = []
        self._newest = 0

    def published(self, version: int) -> None:
        """Note that weights were published now."""
        self._published[version] = time.monotonic()
        self._newest = version
        for old in sorted(self._published)[:-_LATEST]:
            del self._published[old]

    def enter(self, report: Report) -> bool:
        """Count a report; False where it was counted before."""
        sender = report.actor, report.life
        if report.number <= self._marks.get(sender, -1):
            self.repeated += 1
            return False
        self._marks[sender] = report.number
        self.decisions += report.decisions
        self.throughput.actor_steps += report.decisions
        for value in report.returns:
            self.recent.append(value)
            if len(self.recent) == _LATEST:
                mean = sum(self.recent) / _LATEST
                self.best = mean if math.isnan(self.best) else max(self.best, mean)
        self.episodes += len(report.returns)
        self._returns += report.returns
        self._lengths += report.lengths
        self._rewards.append((report.reward, report.decisions))
        signs = self._signs.setdefault(sender, {})
        told = {name: (getattr(report, name),) for name in _SIGNS} | {"val_reward": report.returns}
        for name, values in told.items():
            total, count = signs.get(name, (0.0, 0))
            signs[name] = sum(values, total), count + len(values)
        if report.version in self._published:
            self._ages.append(time.monotonic() - self._published[report.version])
            self._lags.append(self._newest - report.version)
        return True

    def read(self, news: Iterable[tuple[int, News]]) -> None:
        """Take in the news of shards, by their numbers."""
        for number, told in news:
            before = self._shards.get(number)
            # A replacement counts from 0 again; what its predecessor did was done.
            alike = before is not None and before.token == told.token
            added, drawn = (before.added, before.drawn) if alike and before is not None else (0, 0)
            self.throughput.shard_adds += told.added - added
            self.throughput.shard_samples += told.drawn - drawn
            self._shards[number] = told
            for report in told.reports:
                self.enter(report)
        self.items = sum(told.items for told in self._shards.values())

    def least_filled(self, learners: int) -> int:
        """Return the items of the learner that has fewest; shard i is learner i mod `learners`'s."""
        held = [0] * learners
        for number, told in self._shards.items():
            held[number % learners] += told.items
        return min(held)

    @property
    def recent_mean(self) -> float:
        """Mean return of the latest hundred episodes; NaN before there are so many."""
        return sum(self.recent) / _LATEST if len(self.recent) == _LATEST else math.nan

    def rewards(self) -> list[tuple[float, int]]:
        """Return mean shaped reward and decisions of the rollouts since the last call."""
        taken, self._rewards = self._rewards, []
        return taken

    def population(self) -> list[tuple[float, float, float, float]]:
        """Return what each actor saw since the last call, as `EarlyStopController.update_population` takes it.

        An actor in which no episode has ended, or that has not flown, has nothing to say.
        """
        told = [
            tuple(total / count for total, count in (signs[name] for name in (*_SIGNS, "val_reward")))
            for signs in self._signs.values()
            if signs["val_reward"][1]
        ]
        self._signs = {}
        return told  # type: ignore[return-value]

    def figures(self) -> dict[str, float]:
        """Return rates, ages and counts since the last call, by metric name."""
        found = self.throughput.rates()
        if self._ages:
            found["sync_age_s"] = sum(self._ages) / len(self._ages)
            found["sync_lag_versions"] = sum(self._lags) / len(self._lags)
        if self._returns:
            found["episode_return"] = sum(self._returns) / len(self._returns)
            found["episode_length"] = sum(self._lengths) / len(self._lengths)
        if not math.isnan(self.recent_mean):
            found["return_100"] = self.recent_mean
        found["episodes"] = float(self.episodes)
        found["stale_priorities"] = float(sum(told.stale for told in self._shards.values()))
        found["repeated_shipments"] = float(self.repeated + sum(told.repeated for told in self._shards.values()))
        self._ages, self._lags, self._returns, self._lengths = [], [], [], []
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run goes on counting from, as plain data."""
        counts = {"decisions": self.decisions, "episodes": self.episodes}
        return counts | {"recent": list(self.recent), "best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.decisions, self.episodes, self.best = int(state["decisions"]), int(state["episodes"]), float(state["best"])
        self.recent.extend(float(x) for x in state["recent"])
