"""Frontier features and path costs of an occupancy map, against a slow search and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from navi_core.config.policy import AHEAD, MOVED, OCCUPANCY_INPUTS, RINGS, SECTORS
from navi_core.mapping.frontier_features import EDGE, OUTSIDE, SLIVER, UNREACHED, UNSEEN, frontier_features
from navi_core.mapping.occupancy_map import FREE, SEEN, VOID, WALL
from tests.mapping.slow_search import BEARINGS, BOTH, CELL, COUNTS, SIGHT, UNWRITTEN, measured, scratch_of, slow_ways


@pytest.mark.parametrize("rule", [UNSEEN, EDGE, SLIVER, OUTSIDE])
def test_path_costs_equal_slow_search(rule):
    found, reached = set(), set()
    for seed in range(5):
        rng = np.random.default_rng(seed)
        for unseen, unknown in ((0.01, 0.2), (0.15, 0.1), (0.15, 0.35), (0.6, 0.2)):
            marks = np.full((24, 24), BOTH, np.uint8)
            draws = rng.random(marks.shape)
            marks[draws < unknown + unseen] = FREE
            marks[draws < unknown] = 0
            marks[rng.random(marks.shape) < 0.02] = SEEN
            marks[rng.random(marks.shape) < 0.1] |= WALL
            marks[(rng.random(marks.shape) < 0.3) & (marks & FREE > 0)] |= VOID
            expected = slow_ways(marks, rule)
            np.testing.assert_array_equal(measured(marks, rule=rule), expected)
            found.add(bool((expected == 0).any()))
            reached |= set(np.unique(expected))
    assert found == {False, True}
    assert UNREACHED in reached
    assert len(reached) > 20


def test_goal_path_costs_equal_slow_search():
    reached = set()
    for seed in range(10):
        rng = np.random.default_rng(seed)
        marks = rng.choice(np.array([0, FREE, BOTH], np.uint8), (24, 24))
        marks[rng.random(marks.shape) < 0.3] |= WALL
        i, k = (int(n) for n in rng.integers(0, 24, 2))
        expected = slow_ways(marks, goal=(i, k))
        np.testing.assert_array_equal(measured(marks, goal=24 * i + k), expected)
        reached |= set(np.unique(expected))
    assert UNREACHED in reached
    assert len(reached) > 20


def test_goal_features_lead_through_unknown_and_around_walls():
    open_floor = chart(*["............"] * 12)
    here, there = at(5, 9), at(5, 2)
    features = features_of(open_floor, (*here, 0.0), goal=there)[0]
    assert features[0] == pytest.approx(1.0)
    assert features[SECTORS // 2] == pytest.approx(-1.0)
    np.testing.assert_allclose(features[BEARINGS : BEARINGS + 2], [1.0, 0.0], atol=1e-6)
    assert -6.0 * math.log(features[BEARINGS + 2 * len(AHEAD)]) == pytest.approx(7 * CELL)
    assert features[-1] == 1.0
    turned = features_of(open_floor, (*here, math.pi / 2), goal=there)[0]
    np.testing.assert_allclose(turned[BEARINGS : BEARINGS + 2], [0.0, 1.0], atol=1e-6)
    # Nothing is known but the cell it is in: every step costs double, and the goal still lies ahead.
    blind = np.zeros_like(open_floor)
    blind[5, 9] = BOTH
    features = features_of(blind, (*here, 0.0), goal=there)[0]
    np.testing.assert_allclose(features[BEARINGS : BEARINGS + 2], [1.0, 0.0], atol=1e-6)
    assert -6.0 * math.log(features[BEARINGS + 2 * len(AHEAD)]) == pytest.approx(14 * CELL, rel=0.1)
    # A wall from the left edge past the drone: the way leads to the right, and to a goal in the wall's own cell, too.
    walled = open_floor.copy()
    walled[:8, 5] |= WALL
    for goal in (there, at(7, 5)):
        features = features_of(walled, (*here, 0.0), goal=goal)[0]
        assert features[-1] == 1.0
        assert features[BEARINGS + 1] > 0.3
    # Beyond the map's edge it is flown to by the edge.
    features = features_of(open_floor, (*here, 0.0), goal=(here[0], -500.0))[0]
    np.testing.assert_allclose(features[BEARINGS : BEARINGS + 2], [1.0, 0.0], atol=1e-6)


def random_rooms(rng, size):
    """A map of some rooms with doors, partly seen, with a few cells that nothing is known of and some rubble."""
    marks = np.full((size, size), BOTH, np.uint8)
    corner = rng.integers(0, size, 2)
    marks[corner[0] :, corner[1] :] = FREE
    for line in rng.integers(3, size - 3, 3):
        wall = marks[line] if rng.random() < 0.5 else marks[:, line]
        wall |= WALL
        wall[rng.integers(0, size - 2) :][:2] &= BOTH
    marks[rng.random(marks.shape) < 0.05] = 0
    marks[rng.random(marks.shape) < 0.03] |= WALL
    return marks


def test_bounded_path_search_keeps_features():
    spared, features = 0, 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        marks = random_rooms(rng, 40)
        free = np.argwhere(marks & (FREE | WALL) == FREE)
        for i, k in free[rng.integers(0, len(free), 4)]:
            aim = free[rng.integers(0, len(free))]
            flat, goal = 40 * aim[0] + aim[1], at(*aim, size=40)
            whole, part = measured(marks, goal=flat), measured(marks, goal=flat, here=40 * i + k)
            near = whole <= whole[i, k] + 28
            np.testing.assert_array_equal(part[near], whole[near])
            assert (part[~near] > whole[i, k] + 28).all()
            spared += int((part != whole).sum())
            poses = [(*at(i, k, size=40), yaw) for yaw in rng.uniform(-4, 4, 3)]
            answers = [features_of(marks, *poses, goal=goal, everywhere=every) for every in (False, True)]
            np.testing.assert_array_equal(*answers)
            features += int(answers[0][0, -1])
    assert spared > 10_000
    assert features > 100


def test_goal_path_detours_are_capped():
    # Two walls divide the floor and meet at a corner; a cell behind it is visible and unreachable.
    marks = np.full((12, 12), BOTH, np.uint8)
    marks[:6, 4] |= WALL
    marks[6, 5:] |= WALL
    here, goal = (5, 5), (3, 8)
    way = measured(marks, goal=12 * goal[0] + goal[1])
    assert way[6, 4] == UNREACHED > way[here]
    for every in (False, True):
        features = features_of(marks, (*at(*here), 0.0), goal=at(*goal), everywhere=every)[0]
        assert features[2] == -1.0
        assert features[SECTORS + 2] == pytest.approx(math.exp(-(way[here] + 28) * CELL / 5 / 4.0))


def test_path_costs_are_limited_to_the_marked_box():
    rng = np.random.default_rng(7)
    marks = np.zeros((24, 24), np.uint8)
    marks[3:20, 5:24] = rng.choice(np.array([0, FREE, BOTH, BOTH, BOTH], np.uint8), (17, 19))
    way = measured(marks, [3, 19, 5, 23])
    np.testing.assert_array_equal(way[3:20, 5:], slow_ways(marks)[3:20, 5:])
    way[3:20, 5:] = UNWRITTEN
    assert (way == UNWRITTEN).all()


def chart(*lines):
    """Read a map from lines of x: `#` not known, `.` seen, `u` free and not seen, `w` seen and a wall."""
    table = {"#": 0, ".": BOTH, "u": FREE, "w": BOTH | WALL}
    size = max(len(lines), len(lines[0]))
    marks = np.zeros((size, size), np.uint8)
    for k, line in enumerate(lines):
        marks[: len(line), k] = [table[c] for c in line]
    return marks


def at(i, k, size=12):
    """Return the middle of a cell (x, z) [m]."""
    return (i + 0.5 - size / 2) * CELL, (k + 0.5 - size / 2) * CELL


def test_a_path_leads_around_a_wall_and_not_through_its_corner():
    marks = chart(
        "########",
        "#..#uu##",
        "#..#uu##",
        "#..#..##",
        "#.....##",
        "########",
    )
    way = measured(marks, rule=SLIVER)
    assert (way[4:6, 1:3] == 0).all()
    # Everything lies beside a wall, so all costs are double: a diagonal and two steps down, two across, two up.
    assert way[1, 1] == 14 + 2 * 10 + 2 * 10 + 2 * 10
    assert way[3, 4] == way[4, 4] + 10 == 30
    assert (way[marks == 0] == UNREACHED).all()
    marks[3, 4] = 0
    assert (measured(marks, rule=SLIVER)[1:3, 1:5] == UNREACHED).all()


def test_sliver_rule_needs_four_unseen_cells():
    marks = np.full((24, 24), BOTH, np.uint8)
    marks[5:8, 9] = FREE
    for rule in (UNSEEN, EDGE, SLIVER):
        assert (measured(marks, rule=rule) == UNREACHED).all()
        assert (measured(np.zeros_like(marks), rule=rule) == UNREACHED).all()
    marks[6, 10] = FREE
    # Four cells in a T: only where the bars meet are there four around.
    assert sorted(map(tuple, np.argwhere(measured(marks, rule=SLIVER) == 0))) == [(6, 9), (6, 10)]
    assert (measured(marks) == UNREACHED).all()


def test_edge_rule_marks_frontier_at_a_door_to_unknown_space():
    marks = chart(
        "wwwwwwwwwwww",
        "w..........w",
        "w..........w",
        "w..........w",
        "wwwwww..wwww",
        "######..####",
        "############",
        "############",
        "############",
        "############",
        "wwwwwwwwwwww",
    )
    # A door was looked through: the room behind it is not known.
    assert sorted(map(tuple, np.argwhere(measured(marks, rule=EDGE) == 0))) == [(6, 5), (7, 5)]
    # A gap in the seen part of the upper wall is not a frontier.
    marks[3, 0] = 0
    assert len(np.argwhere(measured(marks, rule=EDGE) == 0)) == 2
    features = features_of(marks, (*at(6, 2), 0.0))[0]
    assert features[-1] == 1.0
    assert features[8] == 1.0
    assert features[0] == -1.0


def features_of(marks, *poses, reach=None, goal=(np.nan, np.nan), everywhere=False):
    """Return the frontier features of drones at poses (x, z, yaw) on a map, without those of their motion."""
    pose = np.array([(x, 0.0, z, yaw) for x, z, yaw in poses])
    rows = np.arange(len(pose))
    box = np.tile(np.array([0, len(marks) - 1] * 2, np.int64), (len(pose), 1))
    out = np.full((len(pose), OCCUPANCY_INPUTS), np.nan, np.float32)
    reach = np.full((len(pose), 16), 20.0) if reach is None else np.tile(reach, (len(pose), 1))
    aims = np.tile(np.array(goal), (len(pose), 1))
    maps, scratch = np.tile(marks, (len(pose), 1, 1)), scratch_of(len(marks))
    frontier_features(maps, rows, pose, reach, box, CELL, SIGHT, scratch, aims, out, everywhere)
    assert np.isnan(out[:, -MOVED:]).all(), "how the drone moved is not read from a map"
    return out[:, :-MOVED]


def test_open_ground_comes_last_and_changes_nothing_where_there_is_none():
    marks = np.full((24, 24), BOTH, np.uint8)
    marks[3:8, 3:8] = WALL
    marks[4:6, 4:6] = FREE  # slivers that no way leads to
    here = (*at(12, 12, 24), 0.0)
    closed = features_of(marks, here)[0]
    assert closed[-1] == 0.0 and closed[COUNTS:BEARINGS].max() > 0.0
    marks[14:23, 14:23] = FREE | VOID
    outside = features_of(marks, here)[0]
    assert outside[-1] == 1.0 and outside[BEARINGS] < 0.0  # behind
    marks[9:15, 2:9] = FREE
    assert features_of(marks, here)[0, BEARINGS] > 0.7  # the room ahead that is not seen comes first


@pytest.fixture(scope="module")
def north():
    """A hall of 12 × 12 m; its first five rows of cells along z have not been seen."""
    marks = np.zeros((40, 40), np.uint8)
    marks[5:35, 5:35] = BOTH
    marks[5:35, 5:10] = FREE
    return marks


def test_features_point_to_the_frontier_ahead(north):
    features = features_of(north, (0.2, 0.2, 0.0))[0]
    # Eleven cells of 0.4 m to it; sideways it comes no nearer, backwards the way grows as one flies.
    assert features[[0, 4, 8, 12]] == pytest.approx([1.0, 0.0, -1.0, 0.0], abs=1e-6)
    assert (np.abs(features[:SECTORS]) <= 1.0).all()
    assert (features[[15, 1]] > 0.8).all()
    assert (features[[7, 9]] < -0.8).all()
    assert features[SECTORS] == 1.0
    assert features[SECTORS + 8] == pytest.approx(math.exp(-4.8 / 4.0))
    assert features[BEARINGS:] == pytest.approx([1.0, 0.0] * len(AHEAD) + [math.exp(-4.4 / 6.0), 1.0], abs=1e-6)


def test_features_rotate_with_the_drone(north):
    quarter = math.pi / 2
    features = features_of(north, *((0.2, 0.2, yaw) for yaw in (0.0, quarter, -quarter, 2 * quarter)))
    for row, sector, bearing in ((1, 4, (0.0, 1.0)), (2, 12, (0.0, -1.0)), (3, 8, (-1.0, 0.0))):
        # After a turn to the left, the frontier ahead is on the right.
        assert features[row, sector] == pytest.approx(1.0)
        assert features[row, (sector + 8) % SECTORS] == pytest.approx(-1.0)
        assert features[row, BEARINGS : BEARINGS + 2] == pytest.approx(bearing, abs=1e-6)
        for begin, width in ((0, 1), (SECTORS, 1), (COUNTS, len(RINGS))):
            block = features[:, begin : begin + SECTORS * width].reshape(-1, SECTORS, width)
            np.testing.assert_allclose(np.roll(block[0], sector, axis=0), block[row], atol=1e-6)
        assert features[row, -2:] == pytest.approx(features[0, -2:])


def test_a_wall_ahead_is_flown_around():
    marks = np.zeros((40, 40), np.uint8)
    marks[5:35, 5:35] = BOTH
    marks[5:35, 5:10] = FREE
    marks[5:25, 15] = 0
    features = features_of(marks, (0.2, 0.2, 0.0))[0]
    # Two metres ahead is the end of a dead end; the way leads around the wall's right end.
    assert features[0] < 0.0 < features[3]
    assert features[:SECTORS].argmax() in (1, 2, 3)
    assert (features[BEARINGS + 1 : BEARINGS + 2 * len(AHEAD) : 2] > 0.3).all()
    marks[25:35, 15] = 0
    marks[marks == 0] = WALL
    assert features_of(marks, (0.2, 0.2, 0.0))[0, :COUNTS].tolist() == [0.0] * COUNTS


def test_unseen_cells_are_counted_by_sector_and_ring():
    marks = np.full((80, 80), BOTH, np.uint8)
    # Four cells 2.4 m ahead; six 4.8 m to the right; four 10 m behind; four beyond all rings.
    marks[39:41, 33:35] = marks[51:54, 39:41] = marks[39:41, 64:66] = marks[1:3, 39:41] = FREE
    count = features_of(marks, (0.0, 0.0, 0.0))[0, COUNTS:BEARINGS].reshape(SECTORS, len(RINGS))
    expected = np.zeros_like(count)
    expected[0, 1], expected[4, 2], expected[8, 3] = (math.log1p(n) / 3.0 for n in (4, 6, 4))
    np.testing.assert_allclose(count, expected, atol=1e-6)


def test_features_are_zero_when_all_is_seen():
    marks = np.zeros((40, 40), np.uint8)
    marks[5:35, 5:35] = BOTH
    marks[marks == 0] = WALL
    assert not features_of(marks, (0.2, 0.2, 0.4)).any()
    # Without a path to unseen cells, only the counts are non-zero.
    marks[30:34, 30:34] = FREE
    marks[28, 28:35] = marks[28:35, 28] = WALL
    features = features_of(marks, (0.2, 0.2, 0.4))[0]
    assert features[COUNTS:BEARINGS].any()
    assert not features[:COUNTS].any()
    assert not features[BEARINGS:].any()


TWO_ROOMS = chart(
    "wwwwwwwwwwww",
    "w....w.....w",
    "w....w.....w",
    "w....w.....w",
    "wuuu.w.....w",
    "wuuu.w.....w",
    "wuuu.w.....w",
    "wuuu.w.....w",
    "wuuu.......w",
    "w..........w",
    "wwwwwwwwwwww",
    "wwwwwwwwwwww",
)


def test_path_behind_a_thin_wall_leads_through_the_door():
    way = measured(TWO_ROOMS)
    # Only three cells have all fifteen unseen ones around, the last at (3, 6): a diagonal beside the wall, a step.
    assert way[4, 4] == 14 + 5
    assert way[6, 4] > 5 * 8
    assert way[5, 4] == UNREACHED
    assert way[6, 4] == slow_ways(TWO_ROOMS)[6, 4] == 58 > 3 * measured(TWO_ROOMS & BOTH)[6, 4]
    features = features_of(TWO_ROOMS, (*at(7, 4), 0.0))[0]
    # Straight through the wall, on the left, no frontier counts; the path leads back to the door.
    assert features[12] == -1.0
    assert features[8] > 0.3
    assert features[BEARINGS] < -0.7


def test_path_at_a_wall_starts_on_the_side_of_the_drone():
    bins, (x, z) = 64, at(5, 4)
    angle = 2 * np.pi * np.arange(bins) / bins
    features = []
    for side in (-1, 1):
        reach = np.where(np.sin(angle) * side > -0.1, 20.0, 0.1)
        features.append(features_of(TWO_ROOMS, (x + side * 0.15, z, 0.0), reach=reach)[0])
    near, far = (-6.0 * math.log(one[BEARINGS + 2 * len(AHEAD)]) for one in features)
    assert near == pytest.approx(14 / 5 * CELL)
    assert far >= 4.0
    assert features[0][BEARINGS + 1] < 0.0 < features[1][BEARINGS + 1]


def test_an_unreachable_frontier_has_no_features():
    marks = TWO_ROOMS.copy()
    marks[5, 8:10] |= WALL
    features = features_of(marks, (*at(7, 4), 0.0))[0]
    assert not features[:SECTORS].any()
    assert not features[BEARINGS:].any()
