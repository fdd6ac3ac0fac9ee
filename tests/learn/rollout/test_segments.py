"""Segments of a rollout, and the groups they are put into, against small cases worked out by hand."""

import numpy as np
import pytest
import torch

from navi_core.errors import ConfigError
from navi_core.learn import group_advantages
from navi_core.learn.algorithms.grpo import form_groups
from navi_core.learn.rollout.minibatches import find_segments, segment_returns


def flags(steps: int, rows: int, *places: tuple[int, int]) -> torch.Tensor:
    made = torch.zeros(steps, rows, dtype=torch.bool)
    for place in places:
        made[place] = True
    return made


def listed(segments) -> list[tuple[int, int, int]]:
    return list(zip(segments.row.tolist(), segments.start.tolist(), segments.length.tolist()))


def test_a_segment_ends_with_its_episode_or_its_horizon():
    found = find_segments(flags(12, 1, (3, 0)), flags(12, 1), 4)
    # 0–3 ended, 4–7 and 8–11 reached the horizon.
    assert listed(found) == [(0, 0, 4), (0, 4, 4), (0, 8, 4)]
    assert found.dropped == {"short": 0, "cut": 0, "truncated": 0}


def test_segment_with_horizon_beyond_the_rollout_is_dropped():
    found = find_segments(flags(8, 2, (2, 0), (6, 0), (2, 1)), flags(8, 2), 5)
    # Row 0: 0–2 counts; 3–6 began at 3 and might have lasted until 7: it counts; 7 is cut. Row 1: 3–7 counts.
    assert listed(found) == [(0, 0, 3), (1, 0, 3), (0, 3, 4), (1, 3, 5)]
    late = find_segments(flags(8, 1, (3, 0), (6, 0)), flags(8, 1), 5)
    assert listed(late) == [(0, 0, 4)] and late.dropped["cut"] == 2, "4–6 ended by itself and is dropped all the same"


def test_truncated_segment_is_dropped_unless_terminated():
    found = find_segments(flags(6, 3, (1, 1)), flags(6, 3, (1, 0), (1, 1), (2, 2)), 3)
    # Row 0 is cut off after two decisions; row 1 terminates there; row 2 is cut off just at its horizon.
    assert (0, 0, 2) not in listed(found) and (1, 0, 2) in listed(found) and (2, 0, 3) in listed(found)
    assert found.dropped["truncated"] == 1


def test_short_segments_are_dropped_and_counted():
    found = find_segments(flags(6, 1, (0, 0)), flags(6, 1), 3, min_steps=2)
    assert listed(found) == [(0, 1, 3)] and found.dropped == {"short": 1, "cut": 1, "truncated": 0}


def test_returns_are_sums_from_the_first_decision_on():
    rewards = torch.arange(12.0).view(6, 2)
    found = find_segments(flags(6, 2, (1, 1)), flags(6, 2), 3)
    assert listed(found) == [(0, 0, 3), (1, 0, 2), (1, 2, 3), (0, 3, 3)]
    assert segment_returns(rewards, found).tolist() == [0 + 2 + 4, 1 + 3, 5 + 7 + 9, 6 + 8 + 10]
    assert segment_returns(rewards, found, 0.5).tolist() == [0 + 1 + 1, 1 + 1.5, 5 + 3.5 + 2.25, 6 + 4 + 2.5]


def test_every_decision_is_in_at_most_one_segment():
    g = torch.Generator().manual_seed(0)
    end, cut = torch.rand(2, 64, 9, generator=g) < 0.08
    found = find_segments(end, cut, 10)
    step, row, number = found.decisions()
    assert len(set(zip(step.tolist(), row.tolist()))) == len(step) == found.length.sum()
    assert np.array_equal(np.bincount(number), found.length) and (found.length >= 2).all()
    for r, s, n in listed(found):
        assert not (end | cut)[s : s + n - 1, r].any() and (n == 10 or bool(end[s + n - 1, r]))


def test_groups_are_full_and_surplus_is_counted():
    found = find_segments(flags(8, 5), flags(8, 5), 4)
    groups = form_groups(found, torch.arange(10.0).double(), 4, "mean")
    assert len(groups.segments) == 8 and groups.surplus == 2 and not groups.silent.any()
    assert groups.advantages.tolist() == [-1.5, -0.5, 0.5, 1.5] * 2
    assert form_groups(found, torch.zeros(10).double(), 16, "mean").surplus == 10


def test_a_group_without_spread_is_silent():
    found = find_segments(flags(4, 4), flags(4, 4), 4)
    # One that earned the mean is no group without spread, and nor is one whose returns are small.
    for some in ([1.0, 2.0, 3.0, 6.0], [1e-7, 2e-7, 3e-7, 6e-7]):
        whole = form_groups(found, torch.tensor(some).double(), 4, "mean")
        assert not whole.silent.any() and whole.advantages[3] == pytest.approx(some[0] * 3, rel=1e-6)
    groups = form_groups(found, torch.tensor([5.0, 5.0, 1.0, 2.0]).double(), 2, "mean_std")
    assert groups.silent.tolist() == [True, False]
    assert groups.advantages.tolist() == pytest.approx([0, 0, -1, 1], abs=1e-7)
    near = torch.tensor([1e6, 1e6 + 0.5, 1.0, 2.0]).double()
    assert form_groups(found, near, 2, "mean").silent.tolist() == [True, False], (
        "a spread of 1e-6 of the return is none"
    )


def test_segments_of_like_age_are_compared():
    found = find_segments(flags(4, 4), flags(4, 4), 4)
    groups = form_groups(found, torch.arange(4.0).double(), 2, "mean", np.array([9, 1, 8, 2]))
    assert groups.segments.row.tolist() == [1, 3, 2, 0]


def test_group_advantages_by_hand():
    returns = torch.tensor([1.0, 2.0, 3.0, 6.0], dtype=torch.float64)
    assert group_advantages(returns).tolist() == [-2, -1, 0, 3]
    expected = [-1.069045, -0.534522, 0, 1.603567]
    assert group_advantages(returns, "mean_std").tolist() == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ConfigError, match="median"):
        group_advantages(returns, "median")
