"""Long-horizon oracle: what it takes is what pays to the end of the flight, not what pays first."""

from __future__ import annotations

import numpy as np
import pytest

from navi_core.config import EvalConfig
from navi_core.evaluate import build_course, evaluate
from navi_core.pilots.oracle import _all_ways, _candidates, _fly_model, _gains, _pack_cells, _pack_views


def line_of_views(lists, gap=10.0):
    """Viewpoints in a row, `gap` cells apart, and the cells that each of them sees: arguments of the flights."""
    count = len(lists)
    links = np.concatenate([[0], np.cumsum([1 if v in (0, count - 1) else 2 for v in range(count)])])
    other = np.array([w for v in range(count) for w in (v - 1, v + 1) if 0 <= w < count], np.int32)
    way, before, near = (np.empty((count, count), dtype) for dtype in (np.float32, np.int32, np.int32))
    _all_ways(links, other, np.full(len(other), gap, np.float32), way, before, near)
    cells = np.concatenate(lists).astype(np.int32)
    first = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
    return way, before, near, *_pack_views(first, cells)


def views_of_their_own(gains):
    return np.split(np.arange(sum(gains)), np.cumsum(gains)[:-1])


@pytest.mark.parametrize(("length", "chosen"), [(15.0, 1), (200.0, 3)])
def test_the_horizon_decides_between_a_near_view_and_many_far_ones(length, chosen):
    # To the left one view of 30 cells, to the right one of 20 and four of 50 behind it; the flight begins at 2.
    model = line_of_views(views_of_their_own([0, 30, 0, 20, 50, 50, 50, 50]))
    seen = _pack_cells(np.zeros(250, np.bool_))
    gain = _gains(seen, *model[3:])
    assert _fly_model(np.array([1, 3]), 2, 0.0, length, np.array([1e6]), gain, seen, *model) == chosen
    assert not seen.any() and gain.tolist() == [0, 30, 0, 20, 50, 50, 50, 50]


def fly_slowly(candidates, begin, length, patiences, seen, lists, gap):
    """The twin: sets of cells, every gain counted anew at every stop."""
    best, chosen = -1.0, None
    for candidate in candidates:
        for patience in patiences:
            known, at, flown, score, goal = set(seen), begin, 0.0, 0.0, candidate
            while goal is not None and flown < length:
                while at != goal and flown < length:
                    at, flown = at + int(np.sign(goal - at)), flown + gap
                    score += len(set(lists[at]) - known) * max(length - flown, 0.0)
                    known |= set(lists[at])
                gains = [len(set(cells) - known) for cells in lists]
                worth = [(g / (abs(v - at) * gap + patience), -v) for v, g in enumerate(gains) if g >= 3 and v != at]
                goal = -max(worth)[1] if worth else None
            if score > best:
                best, chosen = score, candidate
    return chosen


def test_flights_in_the_model_are_those_of_a_slow_twin():
    rng = np.random.default_rng(7)
    chosen = []
    for _ in range(40):
        lists = [rng.choice(400, rng.integers(0, 60), replace=False) for _ in range(24)]
        seen = rng.random(400) < 0.2
        candidates, length = np.sort(rng.choice(24, 4, replace=False)), float(rng.integers(50, 600))
        model = line_of_views(lists)
        packed, patiences = _pack_cells(seen), np.array([1.0, 5.0, 30.0])
        gain = _gains(packed, *model[3:])
        assert gain.tolist() == [int((~seen[cells]).sum()) for cells in lists]
        begin = int(rng.choice(np.setdiff1d(np.arange(24), candidates)))
        best = _fly_model(candidates, begin, 0.0, length, patiences, gain, packed, *model)
        assert best == fly_slowly(candidates, begin, length, patiences, np.flatnonzero(seen), lists, 10.0)
        chosen.append(int(np.flatnonzero(candidates == best)[0]))
    assert len(set(chosen)) > 1


def test_candidates_stand_apart_and_the_last_choice_is_among_them():
    way, *_ = line_of_views(views_of_their_own([9] * 12), gap=5.0)
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
