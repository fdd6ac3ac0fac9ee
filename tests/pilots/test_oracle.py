"""Long-horizon oracle: what it takes is what pays to the end of the flight, not what pays first."""

from __future__ import annotations

import numpy as np
import pytest

from navi_core.config import EvalConfig
from navi_core.evaluate import build_course, evaluate
from navi_core.pilots.oracle import _all_ways, _candidates, _fly_model, _gains


def line_of_views(gains, gap=10.0):
    """Viewpoints in a row, `gap` cells apart, each of which sees cells of its own."""
    count = len(gains)
    start = np.concatenate([[0], np.cumsum([1 if v in (0, count - 1) else 2 for v in range(count)])])
    other = np.array([w for v in range(count) for w in (v - 1, v + 1) if 0 <= w < count], np.int32)
    way, before = np.empty((count, count), np.float32), np.empty((count, count), np.int32)
    _all_ways(start, other, np.full(len(other), gap, np.float32), way, before)
    view_start = np.concatenate([[0], np.cumsum(gains)]).astype(np.int64)
    cells = np.arange(view_start[-1], dtype=np.int32)
    seers = np.repeat(np.arange(count, dtype=np.int32), gains)
    return way, before, view_start, cells, np.arange(len(cells) + 1, dtype=np.int64), seers


@pytest.mark.parametrize(("length", "chosen"), [(15.0, 1), (200.0, 3)])
def test_the_horizon_decides_between_a_near_view_and_many_far_ones(length, chosen):
    # To the left one view of 30 cells, to the right one of 20 and four of 50 behind it; the flight begins at 2.
    way, before, view_start, cells, seer_start, seers = line_of_views([0, 30, 0, 20, 50, 50, 50, 50])
    seen = np.zeros(len(cells), np.bool_)
    gain = _gains(view_start, cells, seen)
    best = _fly_model(
        np.array([1, 3]), 2, 0.0, length, np.array([1e6]), gain, seen, way, before, view_start, cells, seer_start,
        seers,
    )  # fmt: skip
    assert best == chosen
    assert not seen.any() and gain.tolist() == [0, 30, 0, 20, 50, 50, 50, 50]


def test_candidates_stand_apart_and_the_last_choice_is_among_them():
    way, *_ = line_of_views([9] * 12, gap=5.0)
    gain, here = np.full(12, 9, np.int32), np.arange(12) == 0
    chosen = _candidates(gain, way[0], way, here, 8, stop=7)
    assert chosen[0] == 7 and 0 not in chosen and 1 < len(chosen) <= 9
    assert all(way[a, b] >= 10 for a in chosen for b in chosen if a != b)
    assert not len(_candidates(gain * 0, way[0], way, here, 8, stop=7))


@pytest.mark.slow
def test_the_oracle_sees_more_than_the_greedy_planner_and_hits_nothing(apartments):
    """About 40 s."""
    course = build_course(apartments, EvalConfig(starts=3, max_steps=200, block=6))
    oracle, planner = (evaluate(name, course).summary for name in ("oracle", "planner"))
    assert oracle["c_vis_auc"] > planner["c_vis_auc"] and oracle["collisions_per_minute"] == 0
    assert oracle["privileged"] and "length of the flight" in oracle["inputs"]
