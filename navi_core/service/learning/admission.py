"""Admission control of policy versions: shadow evaluation, live reward by whole episodes, automatic rollback."""

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch

from navi_core.config import EnvConfig
from navi_core.evaluate.flight.subjects import Autopilot
from navi_core.policy import NavigationPolicy
from navi_core.service.timed_lock import TimedLock
from navi_core.world import Field, NavigationEnv

_EPISODES_PER_DRONE, _EXTRA_EPISODES = 8, 10
"""Limit of waiting episodes, 8 · drones + 10: beyond it the oldest is counted unfinished."""


@dataclass(slots=True, eq=False)
class Episode:
    """Running reward of one drone's episode.

    Attributes:
        drone: Number of the drone.
        reward: Sum of its rewards.
        decisions: Number of its decisions.
        ended: Whether it is over.
        whole: Whether it was seen from its beginning.
    """

    drone: int
    whole: bool = True
    reward: float = 0.0
    decisions: int = 0
    ended: bool = False

    def mean(self) -> float:
        """Return the episode's mean reward per decision."""
        return self.reward / self.decisions


class VersionReturns:
    """Episode returns of a served version (mean reward per decision), counted in the order of their beginnings.

    In the order of their ends, the first episodes would be the short ones whatever the version, and short episodes earn
    other rewards than long ones. The first ten that *began* are an unbiased sample.

    Args:
        window: Episodes that are kept.

    Attributes:
        first: Mean reward per decision of the first episodes, at most `window`.
        latest: Mean reward per decision of the last counted episodes, at most `window`.
    """

    def __init__(self, window: int) -> None:
        self.first: list[float] = []
        self.latest: deque[float] = deque(maxlen=window)
        self._window = window
        self._waiting: deque[Episode] = deque()

    def __len__(self) -> int:
        """Return the number of episodes that are not counted yet."""
        return len(self._waiting)

    def begin(self, episode: Episode, drones: int) -> None:
        """Enqueue an episode that begins.

        Args:
            episode: Without a decision yet.
            drones: Number of drones that fly now.
        """
        self._waiting.append(episode)
        if len(self._waiting) > _EPISODES_PER_DRONE * drones + _EXTRA_EPISODES:
            # An endless episode must not block the others, and leaving it out would bias the sample towards short
            # ones. It is counted unfinished, as long as eight of the others.
            self._count()
            self.count_ended()

    def count_ended(self) -> None:
        """Count the finished episodes up to the first unfinished one."""
        while self._waiting and self._waiting[0].ended:
            self._count()

    def drop(self, drone: int) -> None:
        """Drop all uncounted episodes of a drone that left during an episode.

        Drones are independent, so the sample of the others stays unbiased. Dropping the last episode alone would keep
        the drone's short episodes and miss a long one. Nothing is counted now: drones often leave together.
        """
        self._waiting = deque(episode for episode in self._waiting if episode.drone != drone)

    def close(self) -> Episode | None:
        """Drop the uncounted episodes; return the first unfinished one, or None.

        Stopping before the first unfinished episode would miss long ones more often than not. With it the sample is
        unbiased: the stopping rule depends on the episodes before it alone (Wald 1944).
        """
        self.count_ended()
        first = self._waiting[0] if self._waiting else None
        self._waiting.clear()
        return first

    def _count(self) -> None:
        mean = self._waiting.popleft().mean()
        self.latest.append(mean)
        if len(self.first) < self._window:
            self.first.append(mean)


_MIN_EPISODES = 10
"""Sample size (episodes) of a version's first rollback test; the test is repeated at each doubling."""
_ONE_SIDED_99 = 2.821
"""Critical value of the one-sided 99 % t-test, 9 degrees of freedom: strict, because the test is repeated."""


@dataclass(frozen=True)
class ServingVersion:
    """Policy version in service: number and frozen weights.

    Attributes:
        version: Version number.
        policy: Policy with frozen weights.
    """

    version: int
    policy: NavigationPolicy


@dataclass(frozen=True)
class Rollback:
    """Record of a rollback to the previous version.

    Attributes:
        version: The rejected version.
        live_reward: Mean reward per decision of its tested episodes.
        returned_to: Version that serves again.
    """

    version: int
    live_reward: float
    returned_to: ServingVersion


class Admission:
    """Admission controller: holds the version that inference uses, and rolls back; reading `serving` never waits.

    Args:
        policy: Version 0.
        window: Largest number of compared episodes, of a version and before it.

    Attributes:
        serving: What inference uses.
        lock: Held while versions change.
    """

    def __init__(self, policy: NavigationPolicy, window: int) -> None:
        self.serving = ServingVersion(0, policy)
        self._window = max(window, _MIN_EPISODES)
        self._previous: ServingVersion | None = None
        self._tested = 0
        self._returns = VersionReturns(self._window)
        self._previous_returns: deque[float] = deque(maxlen=self._window)
        # Present episode of each drone, and drones whose episode counts for the previous version.
        self._current: dict[int, Episode] = {}
        self._unfinished: set[int] = set()
        # Also drones between two episodes: drones in step end their episodes together.
        self._drones: set[int] = set()
        # Of all versions: a new version every second completes no episode alone.
        self._latest: deque[float] = deque(maxlen=self._window)
        self.lock = TimedLock()

    def admit(self, version: int, policy: NavigationPolicy) -> object:
        """Deploy a trained update of the served version from the next decision on.

        Args:
            version: Number of the new version.
            policy: Policy with its frozen weights.

        Returns:
            The replaced objects, to be freed without a lock: freeing a network takes a millisecond.
        """
        with self.lock.held():
            gone = self._previous
            self._previous, self.serving = self.serving, ServingVersion(version, policy)
            last = self._returns.close()
            self._previous_returns.extend(self._returns.latest)
            if last is not None:
                self._unfinished.add(last.drone)
            self._returns, self._tested = VersionReturns(self._window), 0
        return gone

    def replace(self, version: int, policy: NavigationPolicy) -> object:
        """Deploy weights promoted elsewhere (a new champion); a rollback to the previous version is not possible.

        Args:
            version: Number of the new version.
            policy: Policy with its frozen weights.

        Returns:
            The replaced objects, as `admit` does.
        """
        with self.lock.held():
            gone = self.serving, self._previous
            self.serving, self._previous = ServingVersion(version, policy), None
            # Present episodes began under other weights.
            self._returns, self._tested = VersionReturns(self._window), 0
            self._previous_returns.clear()
            self._unfinished.clear()
        return gone

    def observe(self, version: int, reward: float, drone: int, ends: bool) -> None:
        """Add the live reward of a decision to its drone's episode.

        Early decisions of an episode earn more than late ones, and drones that began together are in step. Therefore
        whole episodes are compared, each counted for the version under which it began.

        Args:
            version: Version that made the decision.
            reward: Reward of the decision.
            drone: Number of the drone.
            ends: Whether the episode ended with it.
        """
        with self.lock.held():
            self._drones.add(drone)
            episode = self._current.get(drone)
            if episode is None:
                episode = self._current[drone] = Episode(drone)
                # An answer may arrive after its version was replaced.
                if version == self.serving.version:
                    self._returns.begin(episode, len(self._drones))
            episode.reward += reward
            episode.decisions += 1
            if not ends:
                return
            del self._current[drone]
            episode.ended = True
            if episode.whole:
                self._latest.append(episode.mean())
            self._returns.count_ended()
            if drone in self._unfinished:
                self._unfinished.remove(drone)
                self._previous_returns.append(episode.mean())

    def begin_partial(self, drone: int) -> None:
        """Exclude a drone's present episode from the statistics: its beginning was not seen."""
        with self.lock.held():
            self._current.setdefault(drone, Episode(drone, whole=False))

    def forget(self, drone: int) -> None:
        """Exclude a drone's present episode from the statistics: the drone left before its end."""
        with self.lock.held():
            self._drones.discard(drone)
            if self._current.pop(drone, None) is not None:
                self._unfinished.discard(drone)
                self._returns.drop(drone)

    def live_mean(self) -> float:
        """Return the mean live reward per decision over the latest episodes, NaN before the first."""
        with self.lock.held():
            rewards = list(self._latest)
        return float(np.mean(rewards)) if rewards else float("nan")

    def roll_back(self) -> Rollback | None:
        """Roll back to the previous version if a t-test shows that the served one earns less; else return None.

        A version is tested when its first 10, 20, 40, … episodes have ended, by a one-sided 99 % test. The repeated
        test rejects a version that is as good as the previous one in a few of a hundred cases.
        """
        with self.lock.held():
            serving, previous, due = self.serving, self._previous, self._due()
            if previous is None or due <= self._tested or len(self._previous_returns) < _MIN_EPISODES:
                return None
            self._tested = due
            flown, earlier = np.array(self._returns.first[:due]), np.array(self._previous_returns)
        # False for NaN.
        if not flown.mean() < earlier.mean() - _ONE_SIDED_99 * _error(flown, earlier):
            return None
        with self.lock.held():
            if self.serving is not serving:
                return None
            self.serving, self._previous = previous, None
            # Present episodes began under the rejected version.
            self._returns, self._tested = VersionReturns(self._window), 0
        return Rollback(serving.version, float(flown.mean()), previous)

    def _due(self) -> int:
        """Return the sample size of the due test: the largest of 10, 20, 40, … up to the counted episodes, else 0."""
        due, counted = 0, len(self._returns.first)
        while (following := max(_MIN_EPISODES, 2 * due)) <= counted:
            due = following
        return due


def _error(flown: np.ndarray, earlier: np.ndarray) -> float:
    """Return the standard error of the difference of the means of two samples, (n,) and (m,).

    The greater of Welch's (1947) and that of a common variance: where one episode in ten earns far more, a sample of
    ten often has none, and its variance is too small.
    """
    n, m = len(flown), len(earlier)
    first, second = flown.var(ddof=1), earlier.var(ddof=1)
    common = ((n - 1) * first + (m - 1) * second) / (n + m - 2)
    return float(np.sqrt(np.maximum(first / n + second / m, common / n + common / m)))


@dataclass(frozen=True)
class ShadowResult:
    """Result of a shadow evaluation of a candidate version against the served one.

    Attributes:
        passed: Whether the candidate may serve: not worse by more than one standard error of the paired
            difference, and no more collisions than a fifth more.
        difference: Mean of the candidate's reward per decision minus the other's.
        error: Standard error of that mean over drones.
        collisions: Collision counts of the candidate and of the other.
    """

    passed: bool
    difference: float
    error: float
    collisions: tuple[int, int]


class ShadowFlight:
    """Shadow evaluation: flies candidate and served policy from the same starts in the gate's scenes.

    Args:
        field: Scenes.
        env: Observation, dynamics, reward.
        rows: Drones.
        decisions: Decisions of each drone.
        seed: Seed of the starts; another one for every call.

    Attributes:
        env: Environment of the evaluation.
    """

    def __init__(self, field: Field, env: EnvConfig, rows: int, decisions: int, seed: int = 0) -> None:
        self.env = NavigationEnv(field, rows, env.model_copy(update={"stagger": False}), seed=seed)
        self._decisions, self._seed, self._calls = decisions, seed, 0

    def __call__(self, candidate: NavigationPolicy, serving: NavigationPolicy) -> ShadowResult:
        """Evaluate both policies from the same starts and compare their rewards and collisions."""
        self._calls += 1
        seed = self._seed + self._calls
        rewards, hits = self._fly(candidate, seed)
        other_rewards, other_hits = self._fly(serving, seed)
        gain = rewards - other_rewards
        error = float(gain.std() / len(gain) ** 0.5) if len(gain) > 1 else 0.0
        difference = float(gain.mean())
        passed = difference + error >= 0.0 and hits <= other_hits + max(2, other_hits // 5)
        return ShadowResult(passed, difference, error, (hits, other_hits))

    @torch.no_grad()
    def _fly(self, policy: NavigationPolicy, seed: int) -> tuple[torch.Tensor, int]:
        """Run one deterministic evaluation flight; return (B,) mean rewards per decision and the collision count."""
        obs, total, hits = self.env.reset(seed), torch.zeros(self.env.num_envs), 0
        pilot = Autopilot(policy, self.env, seed=seed)
        for _ in range(self._decisions):
            batch = self.env.step(pilot.act(obs))
            pilot.after_step(batch)
            obs = batch.obs
            total += batch.reward
            hits += int(batch.info["collision"].sum())
        return total / self._decisions, hits
