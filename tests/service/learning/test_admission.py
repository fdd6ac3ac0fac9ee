"""Admission tests versions by whole episodes, in the order of their beginnings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from navi_core.config import ContinuousTrainingConfig
from navi_core.service.learning.admission import Admission, Episode, VersionReturns
from navi_core.service.learning.flight_learning import FlightLearning
from navi_core.service.wire import StepResult
from tests.service.conftest import tiny_model

POLICY: Any = object()
WHOLE = 12
"""Decisions of an episode that does not end early."""


class Fleet:
    """Drones at any age of their episodes, of which some end within a third of it and pay otherwise.

    What an episode earns is told in standard deviations of equal ones.
    """

    def __init__(self, seed: int, drones: int, cut: float, pays: float) -> None:
        self.draws, self.cut, self.pays = np.random.default_rng(seed), cut, pays
        self.left, self.mean = [0] * drones, [0.0] * drones
        for drone in range(drones):
            self.begin(drone)
            self.left[drone] = int(self.draws.integers(1, self.left[drone] + 1))

    def begin(self, drone: int) -> None:
        """Begin an episode."""
        short = self.draws.random() < self.cut
        self.left[drone] = int(self.draws.integers(1, 5)) if short else WHOLE
        self.mean[drone] = self.draws.normal() + (self.pays if short else 0.0)

    def fly(self, admission: Admission, steps: int, worse: float = 0.0) -> int:
        """Let every drone decide so often; returns how often a version fell."""
        fell = 0
        for step in range(steps):
            version = admission.serving.version
            for drone in range(len(self.left)):
                self.left[drone] -= 1
                ends = not self.left[drone]
                admission.observe(version, self.mean[drone] - worse, drone, ends)
                if ends:
                    self.begin(drone)
            fell += step % 2 == 1 and admission.roll_back() is not None
        return fell


def of_serving(admission: Admission) -> float:
    """Mean reward of the episodes that are counted for the version in service; NaN without any."""
    counted = list(admission._returns.latest)
    return float(np.mean(counted)) if counted else np.nan


@pytest.mark.parametrize(("drones", "cut", "pays"), [(64, 0.2, -2), (64, 0.4, -2), (128, 0.2, -2), (64, 0.4, 2)])
def test_equal_versions_stay_where_some_episodes_end_early(drones: int, cut: float, pays: float) -> None:
    """Counted as they ended, 12 to 36 of 40 fell where short episodes pay less."""
    fleet, admission, fell = Fleet(1, drones, cut, pays), Admission(POLICY, 100), 0
    for version in range(41):
        fell += fleet.fly(admission, 4 * WHOLE)
        admission.admit(version + 1, POLICY)
    assert fell <= 4


@pytest.mark.parametrize(("drones", "cut"), [(64, 0.4), (128, 0.2)])
def test_rollback_detects_fall_when_short_episodes_earn_more(drones: int, cut: float) -> None:
    """Counted as they ended, the short ones hid it: 2 of 10 were seen."""
    fell = 0
    for seed in range(10):
        fleet, admission = Fleet(seed, drones, cut, 2), Admission(POLICY, 100)
        fleet.fly(admission, 4 * WHOLE)
        admission.admit(1, POLICY)
        fell += fleet.fly(admission, 4 * WHOLE, worse=1.0) > 0
    assert fell >= 9


def fly(admission: Admission, drone: int, *rewards: float, version: int = 0, ends: bool = True) -> None:
    for i, reward in enumerate(rewards):
        admission.observe(version, reward, drone, ends and i == len(rewards) - 1)


def test_an_episode_waits_for_those_that_began_before_it() -> None:
    admission = Admission(POLICY, 10)
    fly(admission, 0, 1.0, ends=False)
    for number in range(12):
        fly(admission, 1, 0.1 * number)
    assert np.isnan(of_serving(admission))
    fly(admission, 0, 3.0)
    assert admission._returns.first == pytest.approx([2.0, *(0.1 * np.arange(9))])
    assert list(admission._returns.latest) == pytest.approx(0.1 * np.arange(2, 12))


def test_episodes_count_for_the_version_they_began_under() -> None:
    admission = Admission(POLICY, 10)
    fly(admission, 0, 1.0)
    for drone in (1, 2):
        fly(admission, drone, 2.0, ends=False)
        fly(admission, 3, 4.0)
    admission.admit(1, POLICY)
    # Of those under way, and those that ended behind them, the first is the one more that belongs to the sample before.
    fly(admission, 2, 9.0, version=1)
    assert list(admission._previous_returns) == [1.0] and np.isnan(of_serving(admission))
    fly(admission, 1, 3.0, version=1)
    assert list(admission._previous_returns) == [1.0, 2.5] and np.isnan(of_serving(admission))
    fly(admission, 4, 9.0)  # began with a decision of the version that went
    fly(admission, 1, 5.0, version=1)
    assert list(admission._previous_returns) == [1.0, 2.5] and of_serving(admission) == 5.0


def test_previous_returns_include_long_episodes_of_short_lived_versions() -> None:
    """Without the one it stops at, it would be short ones alone."""
    fleet, admission = Fleet(0, 16, 0.5, -100.0), Admission(POLICY, 5000)
    for version in range(1000):
        fleet.fly(admission, WHOLE // 2)
        admission.admit(version + 1, POLICY)
    earlier = np.array(admission._previous_returns)
    short = earlier < -50
    assert len(earlier) > 1500 and abs(short.mean() - 0.5) < 4 * 0.5 / len(earlier) ** 0.5


def test_test_uses_the_first_episodes_only() -> None:
    """Whoever looks between ten and twenty looks when a long one is awaited."""
    admission = Admission(POLICY, 100)
    for i in range(40):
        fly(admission, 0, 1.0 + 0.1 * (i % 3))
    admission.admit(1, POLICY)
    for i in range(19):
        fly(admission, 0, 0.2 if i < 10 else 100.0, version=1)
    back = admission.roll_back()
    assert back is not None and back.live_reward == pytest.approx(0.2)


def test_ten_episodes_without_a_rare_reward_cause_no_rollback() -> None:
    """Ten such have none of them in a third of the cases."""
    admission = Admission(POLICY, 100)
    for i in range(100):
        fly(admission, 0, 10.0 if i % 10 == 0 else 1.0 + 0.1 * (i % 3))
    admission.admit(1, POLICY)
    for i in range(10):
        fly(admission, 0, 1.0 + 0.1 * (i % 3), version=1)
    assert admission._tested == 0 and admission.roll_back() is None and admission._tested == 10
    for i in range(70):
        fly(admission, 0, 1.0 + 0.1 * (i % 3), version=1)
    assert admission.roll_back() is not None, "eighty have none in a case of five thousand"


def test_running_episodes_at_rollback_count_for_no_version() -> None:
    admission = Admission(POLICY, 100)
    for i in range(40):
        fly(admission, 0, 1.0 + 0.1 * (i % 3))
    fly(admission, 7, 1.0, ends=False)
    admission.admit(1, POLICY)
    for i in range(10):
        fly(admission, 0, 0.2 + 0.1 * (i % 3), version=1)
    fly(admission, 6, 0.0, version=1, ends=False)
    assert admission.roll_back() is not None and admission.serving.version == 0
    fly(admission, 6, 9.0)
    assert np.isnan(of_serving(admission)) and len(admission._previous_returns) == 40
    fly(admission, 7, 1.2)  # the one that the sample of version 0 stopped at
    assert np.isnan(of_serving(admission)) and admission._previous_returns[-1] == pytest.approx(1.1)
    fly(admission, 6, 3.0)
    assert of_serving(admission) == 3.0


def test_partial_episode_is_not_counted() -> None:
    admission = Admission(POLICY, 100)
    admission.begin_partial(0)
    fly(admission, 0, 1.0, 1.0)
    assert np.isnan(of_serving(admission))
    fly(admission, 0, 2.0, ends=False)
    admission.replace(1, POLICY)
    fly(admission, 0, 3.0, version=1)
    assert np.isnan(of_serving(admission)) and not admission._previous_returns
    fly(admission, 0, 4.0, version=1)
    assert of_serving(admission) == 4.0


def test_drones_leaving_together_leave_no_short_episode_bias() -> None:
    admission = Admission(POLICY, 100)
    for drone in range(64):
        if drone % 2:
            fly(admission, drone, -2.0)
        fly(admission, drone, 1.0, ends=False)
    for drone in range(64):
        admission.forget(drone)
    assert np.isnan(of_serving(admission)) and not admission._current and not len(admission._returns)
    # One that leaves between two episodes has flown all that it began.
    fly(admission, 1, 5.0, ends=False)
    fly(admission, 2, 3.0)
    admission.forget(2)
    fly(admission, 1, 5.0)
    assert of_serving(admission) == 4.0


def test_departed_drone_blocks_no_other() -> None:
    admission = Admission(POLICY, 100)
    fly(admission, 0, 1.0, ends=False)
    fly(admission, 1, 2.0)
    assert np.isnan(of_serving(admission))
    admission.forget(0)
    fly(admission, 1, 4.0)
    assert of_serving(admission) == 3.0
    fly(admission, 0, 1.0, ends=False)
    admission.admit(1, POLICY)
    admission.forget(0)
    fly(admission, 0, 7.0, version=1)
    assert list(admission._previous_returns) == [2.0, 4.0] and of_serving(admission) == 7.0


def test_endless_episode_is_counted_unfinished_in_bounded_memory() -> None:
    admission, most = Admission(POLICY, 100), 0
    fly(admission, 0, -50.0, ends=False)
    for _ in range(2000):
        fly(admission, 0, -50.0, ends=False)
        for drone in (1, 2):
            fly(admission, drone, 1.0, ends=False)
            fly(admission, drone, 1.0)
        most = max(most, len(admission._returns))
    assert most <= 8 * 3 + 10
    assert (
        admission._returns.first[0] == -50.0 and len(admission._returns.first) == len(admission._returns.latest) == 100
    )
    assert of_serving(admission) == 1.0


def test_returns_match_a_full_history() -> None:
    draws = np.random.default_rng(0)
    for _ in range(50):
        version_returns, under_way, kept = VersionReturns(20), dict[int, Episode](), []
        for _ in range(int(draws.integers(1, 300))):
            drone = int(draws.integers(4))
            if drone not in under_way:
                episode = under_way[drone] = Episode(drone)
                kept.append(episode)
                version_returns.begin(episode, 100)
            under_way[drone].reward += draws.normal()
            under_way[drone].decisions += 1
            if draws.random() < 0.3:
                under_way.pop(drone).ended = True
                version_returns.count_ended()
        open_ones = [episode for episode in kept if not episode.ended]
        settled = kept[: kept.index(open_ones[0])] if open_ones else kept
        assert version_returns.first == [episode.mean() for episode in settled[:20]]
        assert list(version_returns.latest) == [episode.mean() for episode in settled[-20:]]
        assert len(version_returns) == len(kept) - len(settled)
        assert version_returns.close() is (open_ones[0] if open_ones else None) and not len(version_returns)


class Drone:
    """One drone whose decisions a service takes note of."""

    def __init__(self, learning: FlightLearning, env_id: int = 0) -> None:
        self.learning, self.env_id = learning, env_id

    def fly(self, episode: int, *rewards: float, ends: bool = True, step: int = 5) -> None:
        """Note decisions of an episode and what came of them."""
        for i, reward in enumerate(rewards):
            place = SimpleNamespace(episode_id=episode, step_id=step + i)
            self.learning._track_episode(SimpleNamespace(env_id=self.env_id, matrix=place))
            experience = SimpleNamespace(model_version=0)
            self.learning._awaited[self.env_id] = (experience, False, episode)
            done = ends and i == len(rewards) - 1
            self.learning.complete(StepResult(step + i, self.env_id, episode, done, False, reward, reward, 0.0))


@pytest.fixture
def learning(tmp_path):
    return FlightLearning(tiny_model(), ContinuousTrainingConfig(), None, outbox=tmp_path)


def test_service_joining_mid_episode_counts_from_the_next_episode(learning) -> None:
    admission = learning.trainer.admission
    met, new = Drone(learning), Drone(learning, 1)
    met.fly(3, 1.0, 1.0)
    assert np.isnan(of_serving(admission))
    met.fly(4, 2.0, 4.0)
    assert of_serving(admission) == 3.0
    new.fly(9, 5.0, step=0)
    assert of_serving(admission) == 4.0
    learning.forget(0)
    met.fly(5, 100.0)
    assert of_serving(admission) == 4.0 and not admission._current


def test_broken_episode_is_not_continued_in_the_next(learning) -> None:
    """A restarted environment reports no end of the episode."""
    admission, drone = learning.trainer.admission, Drone(learning)
    drone.fly(3, 1.0, step=0, ends=False)
    drone.fly(70, 2.0, step=0)
    drone.fly(71, 6.0)
    assert list(admission._returns.latest) == [2.0, 6.0]


def test_drones_in_step_wait_for_the_one_that_flies_longer() -> None:
    """63 end in one tick, again and again; the last flies three times as long, and is counted whole."""
    admission = Admission(POLICY, 100)
    for tick in range(9):
        for drone in range(64):
            ends = tick % 3 == 2 if drone < 63 else tick == 8
            admission.observe(0, 1.0 if drone < 63 else float(tick), drone, ends)
    assert len(admission._returns.first) == 100 and admission._returns.first[63] == 4.0
