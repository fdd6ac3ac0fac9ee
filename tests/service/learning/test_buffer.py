"""Experience buffer: pending, completed, first in first out, bounded."""

from __future__ import annotations

import threading
import time
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from navi_core.config import ContinuousTrainingConfig
from navi_core.service import Experience, ExperienceReplayBuffer


def experience(session: int = 0, number: int = 0, width: int = 8, **changes) -> Experience:
    given = {
        "session_id": session,
        "latent": torch.full((width,), float(number)),
        "recurrent_state": (torch.full((4,), float(number)),),
        "action": torch.zeros(4),
        "log_prob": -1.0,
        "value": 0.0,
        "begins": number == 0,
    }
    return Experience(**given | changes)


def buffer(**changes) -> ExperienceReplayBuffer:
    small = {"buffer_capacity": 10, "batch_size": 4, "min_batch_size": 2, "lock_timeout": 0.05, "state_interval": 4}
    return ExperienceReplayBuffer(ContinuousTrainingConfig(**small | changes))


def test_effective_reward_follows_its_weights() -> None:
    pending = experience(expected_reward=0.5)
    assert not pending.is_completed and pending.effective_reward == 0.5
    done = experience(expected_reward=0.5, actual_reward=1.0)
    assert done.is_completed and done.effective_reward == pytest.approx(0.85)
    other = experience(expected_reward=0.5, actual_reward=1.0, weights=(0.8, 0.2))
    assert other.effective_reward == pytest.approx(0.6)


def test_experience_is_pending_until_its_reward_arrives() -> None:
    kept = buffer()
    assert kept.add(experience()) and kept.sample(1) is None
    assert kept.get_stats()["pending_count"] == 1
    assert kept.update_pending_reward(0, 2.0) and not kept.update_pending_reward(0, 2.0)
    sample = kept.sample(5)
    assert len(sample) == 1 and sample.rows["actual"][0] == 2.0
    assert {
        "buffer_size",
        "pending_count",
        "completed_count",
        "total_added",
        "total_sampled",
        "capacity",
        "utilization",
    } <= set(kept.get_stats())


def test_the_newest_pending_of_a_session_replaces_the_older() -> None:
    kept = buffer()
    kept.add(experience(number=1))
    kept.add(experience(number=2))
    kept.update_pending_reward(0, 1.0)
    assert kept.get_stats()["completed_count"] == 1 and kept.get_stats()["pending_count"] == 0
    sample = kept.sample(1)
    assert sample.trajectories[0].inputs(int(sample.rows["place"][0]), 2)[0][0, 0] == 2.0


def test_oldest_experience_is_evicted_at_capacity() -> None:
    kept = buffer()
    for number in range(25):
        kept.add(experience(number=number, actual_reward=float(number)))
    rewards = sorted(kept.sample(10).rows["actual"].tolist())
    assert rewards == list(range(15, 25)) and len(kept) == 10
    assert kept.get_stats()["total_added"] == 25 and kept.get_stats()["utilization"] == 1.0


def test_samples_are_drawn_without_replacement() -> None:
    kept = buffer()
    for number in range(10):
        kept.add(experience(number=number, actual_reward=float(number)))
    for _ in range(20):
        assert len(set(kept.sample(7).rows["actual"].tolist())) == 7


@pytest.mark.parametrize(
    "change",
    [
        {"latent": torch.full((8,), float("nan"))},
        {"action": torch.tensor([0.0, 0.0, 0.0, float("inf")])},
        {"position": torch.zeros(2)},
        {"log_prob": float("nan")},
        {"actual_reward": float("inf")},
    ],
)
def test_non_finite_or_misshapen_experience_is_refused(change) -> None:
    kept = buffer()
    assert not kept.add(experience(**change)) and len(kept) == 0
    assert kept.get_stats()["total_refused"] == 1


def test_a_latent_of_another_width_is_refused() -> None:
    kept = buffer()
    kept.add(experience(actual_reward=1.0))
    assert not kept.add(experience(width=9, actual_reward=1.0))


def test_non_finite_reward_drops_experience() -> None:
    kept = buffer()
    kept.add(experience())
    assert not kept.update_pending_reward(0, float("nan")) and len(kept) == 0


def test_held_lock_times_out_with_a_warning(caplog) -> None:
    kept = buffer()
    kept.add(experience(actual_reward=1.0))
    with kept.lock.held():
        start = time.monotonic()
        assert kept.sample(1) is None and not kept.add(experience(1)) and not kept.update_pending_reward(0, 1.0)
        assert time.monotonic() - start < 1.0
    assert "locked" in caplog.text
    assert kept.sample(1) is not None


def test_oldest_experiences_are_evicted_when_memory_is_short() -> None:
    kept = buffer(buffer_capacity=1000, buffer_bytes=40_000)
    for number in range(1000):
        kept.add(experience(number=number, width=64, actual_reward=1.0))
    assert 10 < len(kept) < 500 and kept.nbytes <= 60_000 and kept.get_stats()["total_evicted"] > 500


def test_clearing_keeps_the_totals() -> None:
    kept = buffer()
    for number in range(5):
        kept.add(experience(number=number, actual_reward=1.0))
    kept.clear()
    assert len(kept) == 0 and kept.sample(1) is None and kept.get_stats()["total_added"] == 5
    assert kept.add(experience(number=6, actual_reward=1.0)) and len(kept.sample(3)) == 1


def watched(kept: ExperienceReplayBuffer) -> list[bool]:
    """Return a list that grows with every trajectory and observation of now that is freed: was the lock free?"""
    freed: list[bool] = []

    def went() -> None:
        with kept.lock.held(0.0) as free:
            freed.append(free)

    alive = [part for entry in [*kept._completed, *kept._pending.values()] for part in entry.observation]
    trajectories = [*kept._open.values(), *(entry.trajectory for entry in kept._completed)]
    alive += {id(trajectory): trajectory.reward for trajectory in trajectories}.values()
    for array in alive:
        weakref.finalize(array, went)
    return freed


@pytest.mark.parametrize("way", ["evicted by one", "evicted by a reward", "replaced", "dropped", "begun", "cleared"])
def test_evicted_objects_are_freed_without_the_lock(way: str) -> None:
    kept = buffer(buffer_capacity=2, batch_size=2, store="observation")

    def add(session: int, *, learn: bool = True, **changes) -> None:
        seen = experience(session, begins=True, observation=torch.rand(3, 16, 8), **changes)
        assert kept.add(seen, learn=learn)

    if way.startswith("evicted"):
        for number in range(4):
            add(0, actual_reward=float(number))
        if way == "evicted by a reward":
            add(1)
    else:
        add(0, learn=way != "begun")
    if way == "begun":
        kept.update_pending_reward(0, 1.0)  # its trajectory is open still, and nothing else keeps it
    freed = watched(kept)
    if way == "evicted by a reward":
        assert kept.update_pending_reward(1, 1.0)
    elif way == "dropped":
        assert kept.drop_pending(0)
    elif way == "cleared":
        kept.clear()
    else:
        add(0, actual_reward=1.0 if way == "evicted by one" else None)
    assert freed and all(freed)


def test_cleared_buffer_accepts_latents_of_another_width() -> None:
    kept = buffer()
    kept.add(experience(actual_reward=1.0))
    kept.clear()
    assert kept.add(experience(width=9, actual_reward=1.0)) and not kept.add(experience(width=8, actual_reward=1.0))


def test_state_is_stored_only_at_trajectory_starts() -> None:
    kept = buffer()
    for number in range(8):
        kept.add(experience(number=number, actual_reward=1.0))
    trajectories = {id(trajectory): trajectory for trajectory in kept.sample(8).trajectories}.values()
    states = sorted(-1.0 if trajectory.state is None else float(trajectory.state[0][0]) for trajectory in trajectories)
    assert states == [-1.0, 4.0]  # an episode's first trajectory begins from zero, the next from decision 4


def test_compact_observation_round_trips() -> None:
    kept = buffer(store="observation")
    seen = torch.rand(3, 16, 8)
    seen[1], seen[2] = (seen[1] * 200).floor(), (seen[2] > 0.5).float()
    kept.add(experience(observation=seen, actual_reward=1.0))
    back = kept.sample(1).observation[0]
    assert torch.equal(back[1:], seen[1:]) and (back[0] - seen[0]).abs().max() <= 2**-11


def test_ten_thousand_experiences_with_latents_fit_in_ten_megabytes() -> None:
    """Sixteen sessions of the default policy: latents of 128 numbers, a Mamba-2 state every 128 decisions."""
    kept = ExperienceReplayBuffer()
    state = (torch.zeros(4, 64, 64), torch.zeros(384, 3))
    for number in range(10_500):
        session, step = number % 16, number // 16
        kept.add(experience(session, step, width=128, recurrent_state=state, begins=step % 500 == 0, actual_reward=1.0))
    assert kept.get_stats()["completed_count"] == 10_000 and kept.nbytes <= 10_000_000


def test_advantages_use_the_following_rewards() -> None:
    """γ = λ = 1, rewards 1, 1, 1 and values 2: the last is bootstrapped by its own value."""
    kept = buffer()
    for number in range(3):
        kept.add(experience(number=number, value=2.0, expected_reward=1.0, actual_reward=1.0, ends=number == 2))
    trajectory = kept.sample(3).trajectories[0]
    assert [trajectory.advantage(i, 1.0, 1.0, 1.0)[0] for i in range(3)] == [3.0, 2.0, 1.0]
    assert trajectory.advantage(0, 1.0, 0.9, 0.0)[0] == pytest.approx(1.0 + 0.9 * 2.0 - 2.0)
    assert trajectory.advantage(2, 5.0, 0.9, 1.0)[0] == pytest.approx(5.0 + 0.9 * 2.0 - 2.0)


@pytest.mark.parametrize(
    ("mode", "gated", "worth"),
    [
        ("validated", True, 0.7 * 4.0 + 0.3 * 1.0),
        ("validated", False, 4.0),
        ("actual_only", True, 4.0),
        ("gate_signal", True, 1.0),
    ],
)
def test_following_rewards_obey_the_reward_mode(mode: str, gated: bool, worth: float) -> None:
    kept = ExperienceReplayBuffer(ContinuousTrainingConfig(reward_mode=mode), gated=gated)
    for number in range(2):
        kept.add(experience(number=number, expected_reward=1.0, actual_reward=4.0))
    trajectory = kept.sample(2).trajectories[0]
    assert trajectory.advantage(0, 10.0, 1.0, 1.0)[0] == pytest.approx(10.0 + worth)


def test_trajectory_ends_with_its_episode_after_a_complete_last_decision() -> None:
    kept = buffer()
    for number in range(2):
        kept.add(experience(number=number, value=2.0, expected_reward=1.0, actual_reward=1.0))
    kept.end_trajectory(0, terminated=True)
    kept.end_trajectory(7, terminated=True)
    assert kept.sample(2).trajectories[0].advantage(1, 1.0, 1.0, 1.0)[0] == -1.0
    kept.add(experience(number=5, actual_reward=1.0))
    assert kept.sample(3).rows["place"].max() == 1


@pytest.mark.parametrize("pending", [False, True])
def test_termination_is_not_bootstrapped(pending: bool) -> None:
    kept, end = buffer(), {"ends": True, "terminated": True}
    for number in range(3):
        reward = None if pending else 1.0
        end_of = end if number == 2 and not pending else {}
        kept.add(experience(number=number, value=2.0, expected_reward=1.0, actual_reward=reward, **end_of))
        if pending:
            kept.update_pending_reward(0, 1.0, **(end if number == 2 else {}))
    trajectory = kept.sample(3).trajectories[0]
    assert [trajectory.advantage(i, 1.0, 1.0, 1.0)[0] for i in range(3)] == [1.0, 0.0, -1.0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["add", "reward", "drop", "hold"])), max_size=120))
def test_counts_stay_consistent_in_any_order(moves) -> None:
    kept, begun = buffer(), set()
    for number, (session, move) in enumerate(moves, start=1):
        if move in ("add", "hold"):
            kept.add(experience(session, number, begins=session not in begun), learn=move == "add")
            begun.add(session)
        elif move == "reward":
            kept.update_pending_reward(session, float(number))
        else:
            kept.drop_pending(session)
        stats = kept.get_stats()
        assert 0 <= stats["completed_count"] <= 10 and stats["pending_count"] <= 4
        assert stats["buffer_size"] == stats["completed_count"] + stats["pending_count"] == len(kept)
    sample = kept.sample(10)
    assert (sample is None) == (kept.get_stats()["completed_count"] == 0)


def test_concurrent_threads_keep_every_experience() -> None:
    kept = buffer(buffer_capacity=10_000, lock_timeout=5.0)

    def fly(session: int) -> None:
        for number in range(200):
            kept.add(experience(session, number))
            kept.update_pending_reward(session, 1.0)
            kept.sample(4)

    threads = [threading.Thread(target=fly, args=(session,)) for session in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert kept.get_stats()["completed_count"] == 800
    assert np.isfinite(kept.sample(800).rows["actual"]).all()
