"""The drone's own map: what a scan draws, how far the unseen is along free cells, and what the compass tells of it."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from navi_core.config.policy import AHEAD, MOVED, OCCUPANCY_INPUTS, RINGS, SECTORS
from navi_core.mapping.frontier_features import EDGE, NOWHERE, SLIVER, UNREACHED, UNSEEN, frontier_features, path_costs
from navi_core.mapping.occupancy_map import FREE, SEEN, WALL, draw, read_levels

BOTH = FREE | SEEN
CELL, SIGHT = 0.4, 6.4
COUNTS, PLACES = 2 * SECTORS, 2 * SECTORS + SECTORS * len(RINGS)
UNWRITTEN = -7
NEIGHBOURS = [(di, dk) for di in (-1, 0, 1) for dk in (-1, 0, 1) if di or dk]


def scratch_of(size):
    way = np.full((size, size), UNWRITTEN, np.int32)
    return way, np.zeros((16, size * size), np.int32), np.zeros(16, np.int64), np.zeros((size, size), np.uint8)


def measured(marks, box=None, rule=UNSEEN, goal=NOWHERE, here=NOWHERE):
    way, queue, fill, factor = scratch_of(len(marks))
    box = np.array([0, len(marks) - 1, 0, len(marks) - 1] if box is None else box, np.int64)
    path_costs(marks, box, rule, way, queue, fill, factor, goal, here)
    return way


def around(cells, window):
    """Count marked cells in a window around each."""
    padded, span = np.pad(cells, window).astype(int), range(2 * window + 1)
    return sum(padded[a : a + len(cells), b : b + len(cells)] for a in span for b in span)


def frontier_of(marks, rule):
    is_open = (marks & (FREE | WALL)) == FREE
    unseen = is_open & ((marks & SEEN) == 0)
    if rule == EDGE:
        unknown = (marks & (FREE | WALL)) == 0
        beside = np.zeros_like(unknown)
        beside[1:-1, 1:-1] = unknown[:-2, 1:-1] | unknown[2:, 1:-1] | unknown[1:-1, :-2] | unknown[1:-1, 2:]
        return is_open & beside & (around(unknown, 2) >= 8)
    return unseen & (around(unseen, 2) >= 15 if rule == UNSEEN else around(unseen, 1) >= 4)


def slow_ways(marks, rule=UNSEEN, goal=None):
    """Dijkstra from the frontier over open cells, or from a goal over all but walls; a cell costs when it is left."""
    known, size = (marks & (FREE | WALL)) == FREE, len(marks)
    free = known if goal is None else (marks & WALL) == 0

    def is_free(i, k):
        return 0 <= i < size and 0 <= k < size and bool(free[i, k])

    def is_known(i, k):
        return 0 <= i < size and 0 <= k < size and bool(known[i, k])

    found = frontier_of(marks, rule)
    if goal is not None:
        found = np.zeros_like(known)
        found[goal] = True
    way = np.full(marks.shape, UNREACHED)
    way[found] = 0
    heap = [(0, int(i), int(k)) for i, k in np.argwhere(found)]
    while heap:
        now, i, k = heapq.heappop(heap)
        if now > way[i, k]:
            continue
        for di, dk in NEIGHBOURS:
            ni, nk = i + di, k + dk
            if not is_free(ni, nk) or (di and dk and not (is_free(ni, k) and is_free(i, nk))):
                continue
            clear = all(is_known(ni + a, nk + b) for a, b in ((1, 0), (-1, 0), (0, 1), (0, -1)))
            there = now + (7 if di and dk else 5) * (1 if clear else 2)
            if there < way[ni, nk]:
                way[ni, nk] = there
                heapq.heappush(heap, (there, ni, nk))
    return way


@pytest.mark.parametrize("rule", [UNSEEN, EDGE, SLIVER])
def test_ways_are_those_of_a_slow_search(rule):
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
            expected = slow_ways(marks, rule)
            np.testing.assert_array_equal(measured(marks, rule=rule), expected)
            found.add(bool((expected == 0).any()))
            reached |= set(np.unique(expected))
    assert found == {False, True}
    assert UNREACHED in reached
    assert len(reached) > 20


def test_ways_to_a_goal_are_those_of_a_slow_search():
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


def test_the_compass_points_to_a_goal_through_what_is_not_known_and_around_walls():
    open_floor = chart(*["............"] * 12)
    here, there = at(5, 9), at(5, 2)
    told = compass(open_floor, (*here, 0.0), goal=there)[0]
    assert told[0] == pytest.approx(1.0)
    assert told[SECTORS // 2] == pytest.approx(-1.0)
    np.testing.assert_allclose(told[PLACES : PLACES + 2], [1.0, 0.0], atol=1e-6)
    assert -6.0 * math.log(told[PLACES + 2 * len(AHEAD)]) == pytest.approx(7 * CELL)
    assert told[-1] == 1.0
    turned = compass(open_floor, (*here, math.pi / 2), goal=there)[0]
    np.testing.assert_allclose(turned[PLACES : PLACES + 2], [0.0, 1.0], atol=1e-6)
    # Nothing is known but the cell it is in: every step costs double, and the goal still lies ahead.
    blind = np.zeros_like(open_floor)
    blind[5, 9] = BOTH
    told = compass(blind, (*here, 0.0), goal=there)[0]
    np.testing.assert_allclose(told[PLACES : PLACES + 2], [1.0, 0.0], atol=1e-6)
    assert -6.0 * math.log(told[PLACES + 2 * len(AHEAD)]) == pytest.approx(14 * CELL, rel=0.1)
    # A wall from the left edge past the drone: the way leads to the right, and to a goal in the wall's own cell, too.
    walled = open_floor.copy()
    walled[:8, 5] |= WALL
    for goal in (there, at(7, 5)):
        told = compass(walled, (*here, 0.0), goal=goal)[0]
        assert told[-1] == 1.0
        assert told[PLACES + 1] > 0.3
    # Beyond the map's edge it is flown to by the edge.
    told = compass(open_floor, (*here, 0.0), goal=(here[0], -500.0))[0]
    np.testing.assert_allclose(told[PLACES : PLACES + 2], [1.0, 0.0], atol=1e-6)


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


def test_ways_far_beyond_ones_own_are_not_measured_and_what_is_told_is_the_same():
    spared, told = 0, 0
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
            answers = [compass(marks, *poses, goal=goal, everywhere=every) for every in (False, True)]
            np.testing.assert_array_equal(*answers)
            told += int(answers[0][0, -1])
    assert spared > 10_000
    assert told > 100


def test_with_a_goal_much_longer_ways_count_as_if_they_were_a_little_longer():
    # Two walls part the floor and meet at a corner; a cell behind it is in sight, and no way leads into it.
    marks = np.full((12, 12), BOTH, np.uint8)
    marks[:6, 4] |= WALL
    marks[6, 5:] |= WALL
    here, goal = (5, 5), (3, 8)
    way = measured(marks, goal=12 * goal[0] + goal[1])
    assert way[6, 4] == UNREACHED > way[here]
    for every in (False, True):
        told = compass(marks, (*at(*here), 0.0), goal=at(*goal), everywhere=every)[0]
        assert told[2] == -1.0
        assert told[SECTORS + 2] == pytest.approx(math.exp(-(way[here] + 28) * CELL / 5 / 4.0))


def test_ways_are_measured_within_the_box_of_what_is_marked():
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


def test_a_way_leads_around_a_wall_and_not_through_its_corner():
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


def test_slivers_are_a_frontier_of_their_own_and_less_is_none():
    marks = np.full((24, 24), BOTH, np.uint8)
    marks[5:8, 9] = FREE
    for rule in (UNSEEN, EDGE, SLIVER):
        assert (measured(marks, rule=rule) == UNREACHED).all()
        assert (measured(np.zeros_like(marks), rule=rule) == UNREACHED).all()
    marks[6, 10] = FREE
    # Four cells in a T: only where the bars meet are there four around.
    assert sorted(map(tuple, np.argwhere(measured(marks, rule=SLIVER) == 0))) == [(6, 9), (6, 10)]
    assert (measured(marks) == UNREACHED).all()


def test_what_is_not_known_is_a_frontier_where_much_of_it_lies_beside_an_open_cell():
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
    # A gap in what was seen of the upper wall is none.
    marks[3, 0] = 0
    assert len(np.argwhere(measured(marks, rule=EDGE) == 0)) == 2
    told = compass(marks, (*at(6, 2), 0.0))[0]
    assert told[-1] == 1.0
    assert told[8] == 1.0
    assert told[0] == -1.0


def compass(marks, *poses, reach=None, goal=(np.nan, np.nan), everywhere=False):
    """Return what is told at some poses (x, z, yaw) of one map, where rays reach so far, of a goal (x, z) if any."""
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


@pytest.fixture(scope="module")
def north():
    """A hall of 12 × 12 m; its first five rows of cells along z have not been seen."""
    marks = np.zeros((40, 40), np.uint8)
    marks[5:35, 5:35] = BOTH
    marks[5:35, 5:10] = FREE
    return marks


def test_the_compass_points_to_the_frontier_ahead(north):
    told = compass(north, (0.2, 0.2, 0.0))[0]
    # Eleven cells of 0.4 m to it; sideways it comes no nearer, backwards the way grows as one flies.
    assert told[[0, 4, 8, 12]] == pytest.approx([1.0, 0.0, -1.0, 0.0], abs=1e-6)
    assert (np.abs(told[:SECTORS]) <= 1.0).all()
    assert (told[[15, 1]] > 0.8).all()
    assert (told[[7, 9]] < -0.8).all()
    assert told[SECTORS] == 1.0
    assert told[SECTORS + 8] == pytest.approx(math.exp(-4.8 / 4.0))
    assert told[PLACES:] == pytest.approx([1.0, 0.0] * len(AHEAD) + [math.exp(-4.4 / 6.0), 1.0], abs=1e-6)


def test_the_compass_turns_with_the_drone(north):
    quarter = math.pi / 2
    told = compass(north, *((0.2, 0.2, yaw) for yaw in (0.0, quarter, -quarter, 2 * quarter)))
    for row, sector, bearing in ((1, 4, (0.0, 1.0)), (2, 12, (0.0, -1.0)), (3, 8, (-1.0, 0.0))):
        # Turned to the left, what was ahead is on the right.
        assert told[row, sector] == pytest.approx(1.0)
        assert told[row, (sector + 8) % SECTORS] == pytest.approx(-1.0)
        assert told[row, PLACES : PLACES + 2] == pytest.approx(bearing, abs=1e-6)
        for begin, width in ((0, 1), (SECTORS, 1), (COUNTS, len(RINGS))):
            block = told[:, begin : begin + SECTORS * width].reshape(-1, SECTORS, width)
            np.testing.assert_allclose(np.roll(block[0], sector, axis=0), block[row], atol=1e-6)
        assert told[row, -2:] == pytest.approx(told[0, -2:])


def test_a_wall_ahead_is_flown_around():
    marks = np.zeros((40, 40), np.uint8)
    marks[5:35, 5:35] = BOTH
    marks[5:35, 5:10] = FREE
    marks[5:25, 15] = 0
    told = compass(marks, (0.2, 0.2, 0.0))[0]
    # Two metres ahead is the end of a dead end; the way leads around the wall's right end.
    assert told[0] < 0.0 < told[3]
    assert told[:SECTORS].argmax() in (1, 2, 3)
    assert (told[PLACES + 1 : PLACES + 2 * len(AHEAD) : 2] > 0.3).all()
    marks[25:35, 15] = 0
    marks[marks == 0] = WALL
    assert compass(marks, (0.2, 0.2, 0.0))[0, :COUNTS].tolist() == [0.0] * COUNTS


def test_unseen_cells_are_counted_by_sector_and_ring():
    marks = np.full((80, 80), BOTH, np.uint8)
    # Four cells 2.4 m ahead; six 4.8 m to the right; four 10 m behind; four beyond all rings.
    marks[39:41, 33:35] = marks[51:54, 39:41] = marks[39:41, 64:66] = marks[1:3, 39:41] = FREE
    count = compass(marks, (0.0, 0.0, 0.0))[0, COUNTS:PLACES].reshape(SECTORS, len(RINGS))
    expected = np.zeros_like(count)
    expected[0, 1], expected[4, 2], expected[8, 3] = (math.log1p(n) / 3.0 for n in (4, 6, 4))
    np.testing.assert_allclose(count, expected, atol=1e-6)


def test_where_all_is_seen_nothing_is_told():
    marks = np.zeros((40, 40), np.uint8)
    marks[5:35, 5:35] = BOTH
    marks[marks == 0] = WALL
    assert not compass(marks, (0.2, 0.2, 0.4)).any()
    # Nor where no way leads to what is unseen, but for the count.
    marks[30:34, 30:34] = FREE
    marks[28, 28:35] = marks[28:35, 28] = WALL
    told = compass(marks, (0.2, 0.2, 0.4))[0]
    assert told[COUNTS:PLACES].any()
    assert not told[:COUNTS].any()
    assert not told[PLACES:].any()


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


def test_the_way_to_what_lies_behind_a_thin_wall_leads_through_the_door():
    way = measured(TWO_ROOMS)
    # Only three cells have all fifteen unseen ones around, the last at (3, 6): a diagonal beside the wall, a step.
    assert way[4, 4] == 14 + 5
    assert way[6, 4] > 5 * 8
    assert way[5, 4] == UNREACHED
    assert way[6, 4] == slow_ways(TWO_ROOMS)[6, 4] == 58 > 3 * measured(TWO_ROOMS & BOTH)[6, 4]
    told = compass(TWO_ROOMS, (*at(7, 4), 0.0))[0]
    # Straight through the wall, on the left, nothing is promised; the way leads back to the door.
    assert told[12] == -1.0
    assert told[8] > 0.3
    assert told[PLACES] < -0.7


def test_beside_a_wall_the_way_goes_on_from_the_side_where_the_drone_is():
    bins, (x, z) = 64, at(5, 4)
    angle = 2 * np.pi * np.arange(bins) / bins
    told = []
    for side in (-1, 1):
        reach = np.where(np.sin(angle) * side > -0.1, 20.0, 0.1)
        told.append(compass(TWO_ROOMS, (x + side * 0.15, z, 0.0), reach=reach)[0])
    near, far = (-6.0 * math.log(one[PLACES + 2 * len(AHEAD)]) for one in told)
    assert near == pytest.approx(14 / 5 * CELL)
    assert far >= 4.0
    assert told[0][PLACES + 1] < 0.0 < told[1][PLACES + 1]


def test_what_no_way_leads_to_is_not_told():
    marks = TWO_ROOMS.copy()
    marks[5, 8:10] |= WALL
    told = compass(marks, (*at(7, 4), 0.0))[0]
    assert not told[:SECTORS].any()
    assert not told[PLACES:].any()


@pytest.mark.parametrize(("elevations", "levels"), [(8, (3, 4)), (7, (3, 3))])
def test_levels_and_nearest_surfaces_are_those_of_a_slow_twin(elevations, levels):
    rng = np.random.default_rng(elevations)
    rows, azimuths, scale, flat, (sector, low, high) = 6, 16, math.log1p(50.0), 0.97, (2, 2, 6)
    obs = rng.random((rows, 3, azimuths, elevations)).astype(np.float32)
    obs[:, 2] = rng.random(obs[:, 2].shape) < np.array([0.0, 0.02, 0.3, 0.7, 0.8, 1.0])[:, None, None]
    reach, met = np.empty((rows, azimuths)), np.empty((rows, azimuths), np.bool_)
    front, clearance = np.empty(rows), np.empty(rows)
    read_levels(obs, scale, levels, (sector, low, high), flat, reach, met, front, clearance)

    depth, valid = obs[:, 0].astype(np.float64), obs[:, 2] > 0
    metres = np.where(valid, np.expm1(depth * scale), np.inf)
    level = slice(levels[0], levels[1] + 1)
    turned = np.concatenate([~valid[:, -1:], ~valid, ~valid[:, :1]], axis=1)
    missing = sum(turned[:, a : a + azimuths, e : elevations - 2 + e] for a in range(3) for e in range(3)).astype(int)
    # Of a ray that met nothing, and itself counted among the nine, four neighbours or more met nothing either.
    told = valid[:, :, level] | (missing[:, :, levels[0] - 1 : levels[1]] >= 5)
    ranges = np.where(told, np.minimum(metres, 50.0)[:, :, level], -1.0).max(axis=2)
    beside = np.minimum(np.roll(ranges, 1, axis=1), np.roll(ranges, -1, axis=1))
    dropped = ranges < 0
    alone = dropped & ~np.roll(dropped, 1, axis=1) & ~np.roll(dropped, -1, axis=1)
    np.testing.assert_allclose(reach[~dropped], ranges[~dropped] * flat, rtol=1e-9)
    np.testing.assert_allclose(reach[alone], beside[alone] * flat, rtol=1e-9)
    assert (reach[dropped] >= 0).all()
    assert alone.any()
    np.testing.assert_array_equal(met, valid[:, :, level].all(axis=2))
    np.testing.assert_allclose(clearance, metres.min(axis=(1, 2)), rtol=1e-9)
    ahead = np.roll(metres, sector, axis=1)[:, : 2 * sector, low:high]
    np.testing.assert_allclose(front, ahead.min(axis=(1, 2)), rtol=1e-9)
    assert np.isinf(front[0])
    assert np.isinf(clearance[0])
    assert not met[0].any()
    assert met[-1].all()


def cells(size):
    """Return how far the middle and the nearest point of each cell are from the middle of the map, along both axes."""
    middle = (np.arange(size) + 0.5 - size / 2) * CELL
    nearest = np.maximum(np.abs(middle) - CELL / 2, 0.0)
    return np.stack(np.meshgrid(middle, middle)), np.stack(np.meshgrid(nearest, nearest))


def test_a_scan_of_a_square_room_is_free_inside_and_seen_nearby():
    size, wall, bins, yaw = 60, 5.1, 256, 0.3
    angle = 2 * np.pi * np.arange(bins) / bins - yaw
    reach = np.tile(wall / np.maximum(np.abs(np.sin(angle)), np.abs(np.cos(angle))), (2, 1))
    marks, box = np.zeros((2, size, size), np.uint8), np.full((2, 4), size // 2, np.int64)
    pose, met = np.array([[0.0, 0.0, 0.0, yaw]] * 2), np.ones((2, bins), np.bool_)
    draw(marks, np.array([1]), pose, reach, met, box, CELL, 12.0, 3.2)
    assert not marks[0].any()
    assert (box[0] == size // 2).all()
    middle, nearest = cells(size)
    # The room's wall, all around, lies in the cells from 4.8 to 5.2 m.
    ring = np.abs(np.abs(middle).max(axis=0) - 5.0) < 1e-6
    assert (((marks[1] & WALL) > 0) == ring).all()
    marks[1] &= BOTH
    inside, far = np.abs(middle).max(axis=0) < wall - CELL, np.hypot(*nearest)
    assert (marks[1][inside] & FREE).all()
    assert (marks[1][np.hypot(*middle) < 3.2] == BOTH).all()
    assert (marks[1][inside & (far > 3.2)] == FREE).all()
    assert (inside & (far > 3.2)).any()
    assert not marks[1][nearest.max(axis=0) > wall].any()
    marked = np.argwhere(marks[1])
    low, high = marked.min(axis=0), marked.max(axis=0)
    assert (box[1, [0, 2]] <= low).all()
    assert (box[1, [1, 3]] >= high).all()
    assert np.ptp(box[1]) < size - 1
    # What has been seen stays seen, and no range is believed beyond the longest.
    before, pose[1, 0] = marks[1].copy(), 0.3
    draw(marks, np.array([1]), pose, reach * 0.1, ~met, box, CELL, 12.0, 3.2)
    assert ((marks[1] & before) == before).all()
    draw(marks, np.array([0]), pose, reach, ~met, box, CELL, 4.0, 3.2)
    assert not (marks & WALL).any()
    assert not marks[0][far > 4.0].any()
    assert marks[0][np.hypot(*middle) < 4.0].all()


def test_walls_are_drawn_where_rays_end_nearby_and_between_hits_that_no_door_parts():
    size, bins, middle = 60, 16, 30
    for wall, marked in ((2.79, 3), (5.0, 3), (8.1, 0)):
        reach, met = np.full((1, bins), 20.0), np.zeros((1, bins), np.bool_)
        for bin_ in (15, 0, 1):
            reach[0, bin_] = wall / math.cos(2 * math.pi * bin_ / bins)
            met[0, bin_] = True
        marks, box = np.zeros((1, size, size), np.uint8), np.full((1, 4), middle, np.int64)
        draw(marks, np.array([0]), np.zeros((1, 4)), reach, met, box, CELL, 12.0, 3.2)
        found = np.argwhere(marks[0] & WALL)
        # Ahead is towards lower z. Hits 1.2 m apart are joined by nothing that is wider than a door.
        assert (found[:, 1] == math.floor(middle - (wall + 0.05) / CELL)).all()
        assert len(found) == marked
    near = np.full((1, bins), 1.0)
    marks, box = np.zeros((1, size, size), np.uint8), np.full((1, 4), middle, np.int64)
    draw(marks, np.array([0]), np.zeros((1, 4)), near, near > 0, box, CELL, 12.0, 3.2)
    # A circle of 1.05 m, closed: no free cell inside it has a free neighbour outside.
    walls = (marks[0] & WALL) > 0
    away = np.hypot(*cells(size)[0])
    assert walls.sum() >= 16
    assert (np.abs(away[walls] - 1.05) < CELL).all()
    marks[0][~walls] |= FREE
    marks[0][8:] |= SEEN
    assert measured(marks[0])[middle, middle] == UNREACHED
