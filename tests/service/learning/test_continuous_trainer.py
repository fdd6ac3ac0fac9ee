"""Continuous trainer: versions, shadow evaluation, rollback, adoption, status."""

from __future__ import annotations

import json
import logging
import threading
import time
import weakref

import numpy as np
import pytest
import torch

from navi_core.errors import ConfigError
from navi_core.policy import build_policy
from navi_core.service import ContinuousTrainer, ExperienceReplayBuffer
from navi_core.service.learning.admission import Admission, ShadowFlight, ShadowResult
from navi_core.service.learning.experience import judged_rewards
from navi_core.world import Field
from tests.service.conftest import SMALL, TINY, until
from tests.service.learning.test_training import config, flown


def trainer(settings=None, policy=None, **changes) -> ContinuousTrainer:
    settings = settings or config()
    policy = policy or build_policy(TINY)
    kept = flown(policy, settings)
    return ContinuousTrainer(policy, kept, settings, **changes)


class Kept(list):
    """Number, fate and figures of versions."""

    def version(self, number: int, fate: str, **numbers: float) -> None:
        self.append((number, fate, numbers))

    def flush(self) -> None: ...


def test_training_waits_for_the_minimum_batch_size() -> None:
    policy, settings = build_policy(TINY), config(min_batch_size=10, batch_size=12)
    kept = flown(policy, settings, decisions=4)  # eight experiences
    waiting = ContinuousTrainer(policy, kept, settings)
    assert not waiting.train_once() and waiting.model_version == 0
    ready = trainer(settings)
    assert ready.train_once() and ready.metrics.total_samples == 12


def test_every_update_makes_a_version_that_serves_at_once() -> None:
    live = trainer()
    before = live.serving
    for number in range(1, 4):
        assert live.train_once() and live.serving.version == live.model_version == number
    changed = [a for a, b in zip(before.policy.parameters(), live.serving.policy.parameters()) if not torch.equal(a, b)]
    assert changed and all(not p.requires_grad for p in live.serving.policy.parameters())


def test_a_shadow_evaluation_admits_every_nth_version_that_passes() -> None:
    verdicts = [False, True]
    live = trainer(config(shadow_evaluation=3), shadow=lambda a, b: ShadowResult(verdicts.pop(0), 0.0, 0.0, (0, 0)))
    served = []
    for _ in range(6):
        live.train_once()
        served.append(live.serving.version)
    assert served == [0, 0, 0, 0, 0, 6]


def test_candidate_passes_within_error_and_collision_limits(box_scene) -> None:
    """Both fly from the same starts, with new ones each time. A policy is given here by its flight's result."""
    flight, seeds = ShadowFlight(Field([box_scene]), SMALL, rows=4, decisions=2, seed=5), []
    flight._fly = lambda policy, seed: seeds.append(seed) or policy

    def verdict(gain, hits=0, others=0) -> ShadowResult:
        earned = torch.tensor([0.5, 0.1, 0.9, 0.3])
        return flight((earned + torch.tensor(gain), hits), (earned, others))

    assert not verdict([-0.1] * 4).passed and verdict([0.0] * 4).passed and verdict([0.1] * 4).passed
    near = verdict([-0.3, 0.1, -0.3, 0.1])
    # A deviation of 0.231 of single drones is an error of 0.115 of their mean.
    assert (near.difference, near.error) == pytest.approx((-0.1, (4 * 0.04 / 3 / 4) ** 0.5), abs=1e-6) and near.passed
    assert not verdict([-0.32, 0.08, -0.32, 0.08]).passed
    for others, most in ((0, 2), (10, 12), (50, 60)):
        assert verdict([0.0] * 4, most, others).passed and not verdict([0.0] * 4, most + 1, others).passed
    assert verdict([0.0] * 4, 3, 7).collisions == (3, 7)
    assert seeds[::2] == seeds[1::2] == list(range(6, 6 + len(seeds) // 2))


def test_falling_live_reward_rolls_back() -> None:
    live = trainer(
        config(shadow_evaluation=1, rollback_window=40), shadow=lambda a, b: ShadowResult(True, 0, 0, (0, 0))
    )
    first = live.serving
    for i in range(40):
        live.admission.observe(0, 1.0 + 0.1 * (i % 3), 0, True)
    live.train_once()
    assert live.serving.version == 1
    for i in range(40):
        live.admission.observe(1, 0.2 + 0.1 * (i % 3), 0, True)
    live._check_live_reward()
    assert live.serving is first and not live.admission._returns.latest
    weights = zip(first.policy.parameters(), live._update.policy.parameters())
    assert all(torch.equal(a, b) for a, b in weights)


@pytest.mark.parametrize("worse", [0.0, 0.1])
def test_rollback_is_independent_of_the_episode_phase(worse: float) -> None:
    """Four drones that began together earn 0.5 at the beginning of each episode and nothing later."""
    fell, draws, policy = 0, np.random.default_rng(0), build_policy(TINY)
    for _ in range(40):
        admission = Admission(policy, 100)
        for step in range(6 * 50):
            if step == 6 * 25 + 3:
                admission.admit(1, policy)
            version = admission.serving.version
            for drone in range(4):
                reward = 0.5 * (step % 6 < 2) - worse * version + 0.1 * draws.standard_normal()
                admission.observe(version, reward, drone, step % 6 == 5)
            fell += admission.roll_back() is not None
    assert fell <= 4 if worse == 0.0 else fell >= 38


def test_rollback_records_both_versions_and_the_live_reward() -> None:
    kept = Kept()
    live = trainer(
        config(shadow_evaluation=2, rollback_window=40),
        shadow=lambda a, b: ShadowResult(True, 0, 0, (0, 0)),
        record=kept,
    )
    for i in range(40):
        live.admission.observe(0, 1.0 + 0.1 * (i % 3), 0, True)
    for _ in range(3):
        live.train_once()
    for i in range(40):
        live.admission.observe(2, 0.2 + 0.1 * (i % 3), 0, True)
    live.train_once()
    fates = [(number, fate) for number, fate, _ in kept]
    assert fates[:4] == [(1, "trained"), (2, "admitted"), (3, "trained"), (2, "rolled_back")]
    numbers = kept[3][2]
    assert numbers == {"live_reward": pytest.approx(0.2975), "returned_to": 0.0}


@pytest.mark.parametrize("shadow", ["off", 1])
def test_endless_episode_uses_bounded_memory(shadow) -> None:
    live = trainer(config(shadow_evaluation=shadow), shadow=lambda a, b: ShadowResult(True, 0, 0, (0, 0)))
    admission, policy = live.admission, build_policy(TINY)
    for version in range(1000):
        live.admission.observe(version, 0.1, 0, False)
        admission.admit(version + 1, policy)
    assert len(admission._current) == len(admission._unfinished) == 1 and len(admission._returns) == 0
    assert admission.lock.holders == 2000


def test_live_reward_is_known_without_shadow_evaluation() -> None:
    """A default service records the live reward by version, however soon the next version comes."""
    live = trainer(config(shadow_evaluation="off"))
    live.admission.begin_partial(7)
    for end in (False, True):
        live.admission.observe(0, 90.0, 7, end)  # the rest of an episode is none
    assert np.isnan(live.admission.live_mean())
    for drone in range(5):
        live.admission.observe(drone, 0.2, drone, False)
        live.admission.admit(drone + 1, live.serving.policy)
        live.admission.observe(drone + 1, 0.4, drone, True)
        assert live.admission.live_mean() == pytest.approx(0.3)


def test_a_promotion_is_not_undone_by_a_rollback() -> None:
    live = trainer(
        config(shadow_evaluation=1, rollback_window=40), shadow=lambda a, b: ShadowResult(True, 0, 0, (0, 0))
    )
    for i in range(40):
        live.admission.observe(0, 1.0 + 0.1 * (i % 3), 0, True)
    live.adopt(build_policy(TINY.model_copy(update={"core": "mamba2"})))
    for i in range(40):
        live.admission.observe(1, 0.2 + 0.1 * (i % 3), 0, True)
    live.train_once()
    assert live.serving.version == 1 and live.serving.policy.config.core == "mamba2"
    assert live.admission.live_mean() == pytest.approx(0.3, abs=0.05)


def test_rollback_to_a_champion_restores_its_value_scale(caplog) -> None:
    live = trainer(
        config(shadow_evaluation=1, rollback_window=40), shadow=lambda a, b: ShadowResult(True, 0, 0, (0, 0))
    )
    champion = build_policy(TINY, seed=9)
    live.adopt(champion, (3.0, 2.0))
    live.buffer = flown(champion, live.config)
    for version, reward in ((1, 1.0), (2, 0.2)):
        for i in range(40):
            live.admission.observe(version, reward + 0.1 * (i % 3), 0, True)
        live.train_once()
    assert "version 1 serves again" in caplog.text and live.serving.version == 3
    assert live._update.scale == (3.0, 2.0)


def test_following_rewards_use_the_specified_weights() -> None:
    kept = flown(build_policy(TINY), config())
    sample = kept.sample(80)
    followed = [
        trajectory.reward[place] for trajectory, place in zip(sample.trajectories, sample.rows["place"], strict=True)
    ]
    assert followed == pytest.approx((0.7 * sample.rows["actual"] + 0.3 * 0.5).tolist(), abs=1e-6)


def test_a_shadow_evaluation_without_scenes_is_refused() -> None:
    with pytest.raises(ConfigError, match="add --gate --scene FILE"):
        trainer(config(shadow_evaluation=5))


def test_the_thread_trains_at_its_interval_and_stops(caplog) -> None:
    live = trainer(config(training_interval=0.05))
    assert live.start() and live.is_running
    with caplog.at_level(logging.WARNING):
        assert not live.start()
    assert "second start" in caplog.text
    until(lambda: live.model_version >= 5)
    assert live.stop() and not live.is_running
    version = live.model_version
    time.sleep(0.15)
    assert live.model_version == version
    rate = live.status()["training"]["steps_per_second"]
    # The first update comes at once, so five of them may lie within four intervals.
    assert 2 < rate <= 25


def test_training_that_is_not_enabled_does_not_start() -> None:
    live = trainer(config(enabled=False))
    assert not live.start() and not live.is_running


def test_errors_are_counted_and_training_continues(caplog) -> None:
    live = trainer()
    good, calls = live.buffer.sample, []

    def faulty(count):
        calls.append(count)
        if len(calls) % 2:
            raise RuntimeError("a broken batch")
        return good(count)

    live.buffer.sample = faulty
    live.start()
    until(lambda: live.model_version >= 3)
    live.stop()
    assert live.metrics.errors >= 3 and live.status()["training"]["errors"] == live.metrics.errors
    assert "a broken batch" in caplog.text


def test_a_slow_update_is_warned_of(caplog) -> None:
    live = trainer(config(training_interval=1e-6))
    live.start()
    until(lambda: live.model_version >= 1)
    live.stop()
    assert "longer than the interval" in caplog.text


def test_status_is_the_specified_document() -> None:
    live = trainer()
    live.train_once()
    status = json.loads(json.dumps(live.status()))
    assert set(status) == {"training", "buffer"}
    assert set(status["training"]) == {
        "is_running", "model_version", "steps_per_second", "average_loss", "average_batch_size", "average_step_time_ms",
        "average_gate_agreement", "lifetime_gate_agreement", "total_steps", "total_samples_trained", "uptime_seconds",
        "errors",
    }  # fmt: skip
    assert set(status["buffer"]) == {"size", "capacity", "utilization", "pending_count", "completed_count"}
    assert status["training"]["average_gate_agreement"] == 1.0  # nothing was judged


def test_actual_reward_is_unweighted_without_a_gate() -> None:
    sample = flown(build_policy(TINY), config()).sample(16)
    judged = judged_rewards(sample, None, config())
    assert judged.reward.tolist() == sample.rows["actual"].astype(float).tolist() and judged.used.all()
    with pytest.raises(ConfigError, match="give --gate"):
        trainer(config(reward_mode="gate_signal"))


def test_locks_are_held_for_less_than_a_millisecond() -> None:
    live = trainer(config(buffer_capacity=60))
    for _ in range(20):
        live.train_once()
    live.buffer.clear()
    for lock in (live.admission.lock, live.buffer.lock):
        # The mean: the longest one may be an interrupt that the kernel charged to the holder.
        assert lock.holders >= 20 and 0 < lock.work / lock.holders < 1e-3


def test_replaced_version_is_freed_outside_the_locks() -> None:
    live, locked = trainer(), []

    def note() -> None:
        locked.append(any(lock._lock.locked() for lock in (live.lock, live.admission.lock)))

    for _ in range(4):
        weakref.finalize(live.serving.policy, note)
        assert live.train_once()
    assert locked == [False] * 3, "the last one but one is kept to return to"
    live.adopt(build_policy(TINY, seed=9))
    assert locked == [False] * 4


def test_adopted_weights_clear_the_buffer() -> None:
    live = trainer()
    live.train_once()
    other = build_policy(TINY, seed=9)
    live.adopt(other)
    assert live.serving.version == 2 and len(live.buffer) == 0
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), live.serving.policy.parameters()))
    assert not live.train_once()
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), live._update.policy.parameters()))


def same_weights(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def in_a_thread(call) -> None:
    """Call something in a thread of its own, as an actor does, and wait for it; a deadlock hangs here."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "it waits for the trainer"


def test_champion_adopted_during_an_update_stays() -> None:
    live, champion = trainer(), build_policy(TINY.model_copy(update={"core": "mamba2"}), seed=9)
    adopted: list[int] = []

    def comes(*_) -> None:
        if not adopted:
            adopted.append(1)
            in_a_thread(lambda: live.adopt(champion))

    live._update.policy.heads.actor.register_forward_hook(comes)
    assert not live.train_once() and adopted
    assert live.serving.version == live.model_version == 1 and same_weights(champion, live.serving.policy)
    assert live.metrics.total_steps == 0
    live.train_once()
    assert same_weights(champion, live._update.policy) and live.model_version == 1


@pytest.mark.parametrize("passes", [True, False])
def test_champion_adopted_during_a_shadow_flight_stays(passes: bool) -> None:
    champion, kept = build_policy(TINY, seed=9), Kept()

    def flight(candidate, serving) -> ShadowResult:
        in_a_thread(lambda: live.adopt(champion))
        return ShadowResult(passes, 0.5, 0.0, (0, 0))

    live = trainer(config(shadow_evaluation=1), shadow=flight, record=kept)
    assert live.train_once()
    assert live.serving.version == live.model_version == 2 and same_weights(champion, live.serving.policy)
    assert [(number, fate) for number, fate, _ in kept] == [(1, "held")]


def test_adopted_network_never_trains_on_old_latents() -> None:
    made: list[bool] = []

    class Watched(ExperienceReplayBuffer):
        """Lets the trainer have a turn just before everything is forgotten."""

        def clear(self) -> None:
            in_a_thread(lambda: made.append(live.train_once()))
            super().clear()

    settings, policy = config(), build_policy(TINY)
    kept = flown(policy, settings)
    kept.__class__ = Watched
    live = ContinuousTrainer(policy, kept, settings)
    live.adopt(build_policy(TINY, seed=9))
    # That turn was one of the old weights with their own latents.
    assert made == [True] and live.serving.version == live.model_version == 2
    assert not live.train_once() and same_weights(live.serving.policy, live._update.policy)


def test_untrainable_champion_is_refused_without_effect() -> None:
    live = trainer()
    apart = build_policy(TINY.model_copy(update={"separate_value": True}))
    with pytest.raises(ConfigError, match="separate_value"):
        live.adopt(apart)
    assert live.serving.version == live.model_version == 0 and len(live.buffer) > 0 and live.train_once()
