"""Curves of long runs: few points, evenly over all of the run, and the newest one."""

import math

import numpy as np
import pytest

from navi_core.record.thinned_curve import ThinnedCurve


def grown(count, most=800):
    curve = ThinnedCurve(most)
    for update in range(count):
        curve.take(8192.0 * update, {"reward": float(update)})
    return curve


@pytest.mark.parametrize("count", [1, 799, 800, 801, 1600, 12_000, 12_345])
def test_points_lie_evenly_over_the_whole_run_and_end_with_the_newest(count):
    curve = grown(count)
    updates = np.array(curve.steps) / 8192.0
    assert updates[0] == 0 and updates[-1] == count - 1
    assert min(count, 400) <= len(updates) <= 800
    gaps = np.diff(updates)
    assert len(set(gaps[:-1])) <= 1 and (gaps[-1:] <= gaps[:1]).all(), "all gaps but the last are the same"
    assert curve.series["reward"] == updates.tolist()


def test_odd_or_small_point_limit_is_kept():
    for most in (2, 3, 5, 7):
        for count in range(1, 200):
            steps = grown(count, most).steps
            assert len(steps) <= most and steps[0] == 0 and steps[-1] == 8192.0 * (count - 1)
            assert len(set(np.diff(steps)[:-1])) <= 1


def test_a_resumed_run_takes_nothing_from_the_points_behind_it():
    curve = grown(11, most=6)
    assert curve.steps[-1] == 8192.0 * 10
    curve.take(8192.0 * 6, {"loss": 1.0})
    assert curve.steps[-1] == 8192.0 * 6 and curve.series["reward"][-1] != 10.0
    assert all(a < b for a, b in zip(curve.steps, curve.steps[1:]))


def test_new_run_in_the_same_curve_starts_unthinned():
    curve = grown(400_000)
    for update in range(1, 501):
        curve.take(100.0 * update, {"reward": 0.0})
    assert len(curve.steps) == 501 and curve.steps[-1] == 50_000.0


def test_resumed_run_continues_its_curve():
    curve = grown(12_000)
    stride = curve.steps[1] / 8192.0
    for update in range(6001, 14_000):
        curve.take(8192.0 * update, {"reward": 0.5})
    updates = np.array(curve.steps) / 8192.0
    assert updates[-1] == 13_999 and len(updates) <= 800
    assert np.diff(updates).max() <= 2 * stride
    rewards = np.array(curve.series["reward"])
    np.testing.assert_array_equal(rewards, np.where(updates <= 6000, updates, 0.5))
    curve.take(0.0, {"reward": 3.0})
    curve.take(1.0, {"reward": 4.0})
    assert curve.steps == [0.0, 1.0] and curve.series["reward"] == [3.0, 4.0], "from the beginning: all of it again"


def test_points_of_equal_steps_are_merged():
    # Float32 on the wire cannot separate rollouts of 8 decisions beyond about 100 million.
    curve = ThinnedCurve(800)
    for update in range(2000):
        curve.take(float(np.float32(200_000_000 + 8 * update)), {"reward": float(update)})
    assert 400 <= len(curve.steps) <= 800 and (np.diff(curve.steps) > 0).all()
    assert curve.series["reward"][-1] == 1999.0


def test_sparse_series_survives_thinning():
    curve = ThinnedCurve(100)
    for update in range(10_000):
        curve.take(float(update), {"reward": 0.0, "stop_cost": float(update) if update % 50 == 1 else math.nan})
    found = {value for value in curve.series["stop_cost"] if value is not None}
    assert curve.series["reward"] == [0.0] * len(curve.steps)
    assert len(found) >= 50 and all(value % 50 == 1 for value in found)
