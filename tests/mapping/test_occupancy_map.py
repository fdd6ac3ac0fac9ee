"""Occupancy maps drawn from level rays, against slow twins and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from navi_core.mapping.frontier_features import UNREACHED
from navi_core.mapping.level_rays import read_levels
from navi_core.mapping.occupancy_map import FREE, LONGEST, SEEN, VOID, WALL, draw
from tests.mapping.slow_search import BOTH, CELL, measured


@pytest.mark.parametrize(("elevations", "levels"), [(8, (3, 4)), (7, (3, 3))])
def test_level_depths_and_clearance_equal_a_slow_twin(elevations, levels):
    rng = np.random.default_rng(elevations)
    rows, azimuths, scale, flat, (sector, low, high) = 6, 16, math.log1p(50.0), 0.97, (2, 2, 6)
    obs = rng.random((rows, 3, azimuths, elevations)).astype(np.float32)
    obs[:, 2] = rng.random(obs[:, 2].shape) < np.array([0.0, 0.02, 0.3, 0.7, 0.8, 1.0])[:, None, None]
    obs[:, 0] = np.where(obs[:, 2] > 0, obs[:, 0], 1.0)
    reach, met = np.empty((rows, azimuths)), np.empty((rows, azimuths), np.bool_)
    front, clearance = np.empty(rows), np.empty(rows)
    read_levels(obs, np.arange(rows), scale, levels, (sector, low, high), flat, reach, met, front, clearance)

    depth, valid = obs[:, 0].astype(np.float64), obs[:, 2] > 0
    metres = np.where(valid, np.expm1(depth * scale), np.inf)
    level = slice(levels[0], levels[1] + 1)
    turned = np.concatenate([~valid[:, -1:], ~valid, ~valid[:, :1]], axis=1)
    missing = sum(turned[:, a : a + azimuths, e : elevations - 2 + e] for a in range(3) for e in range(3)).astype(int)
    # Of a ray that met nothing, and itself counted among the nine, four neighbours or more met nothing either.
    features = valid[:, :, level] | (missing[:, :, levels[0] - 1 : levels[1]] >= 5)
    ranges = np.where(features, np.minimum(metres, 50.0)[:, :, level], -1.0).max(axis=2)
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
    draw(marks, np.array([1]), pose, reach, met, box, CELL, 3.2)
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
    draw(marks, np.array([1]), pose, reach * 0.1, ~met, box, CELL, 3.2)
    assert ((marks[1] & before) == before).all()
    assert not (marks & WALL).any()
    large, box = np.zeros((1, 2 * size, 2 * size), np.uint8), np.full((1, 4), size, np.int64)
    draw(large, np.array([0]), pose, reach * 3.0, ~met, box, CELL, 3.2)
    middle, nearest = cells(2 * size)
    assert not large[0][np.hypot(*nearest) > LONGEST].any()
    assert large[0][np.hypot(*middle) < LONGEST - CELL].all()


def test_walls_join_nearby_hits_without_a_door_between():
    size, bins, middle = 60, 16, 30
    for wall, marked in ((2.79, 3), (5.0, 3), (8.1, 0)):
        reach, met = np.full((1, bins), 20.0), np.zeros((1, bins), np.bool_)
        for bin_ in (15, 0, 1):
            reach[0, bin_] = wall / math.cos(2 * math.pi * bin_ / bins)
            met[0, bin_] = True
        marks, box = np.zeros((1, size, size), np.uint8), np.full((1, 4), middle, np.int64)
        draw(marks, np.array([0]), np.zeros((1, 4)), reach, met, box, CELL, 3.2)
        found = np.argwhere(marks[0] & WALL)
        # Ahead is towards lower z. Hits 1.2 m apart are joined by nothing that is wider than a door.
        assert (found[:, 1] == math.floor(middle - (wall + 0.05) / CELL)).all()
        assert len(found) == marked
    near = np.full((1, bins), 1.0)
    marks, box = np.zeros((1, size, size), np.uint8), np.full((1, 4), middle, np.int64)
    draw(marks, np.array([0]), np.zeros((1, 4)), near, near > 0, box, CELL, 3.2)
    # A circle of 1.05 m, closed: no free cell inside it has a free neighbour outside.
    walls = (marks[0] & WALL) > 0
    away = np.hypot(*cells(size)[0])
    assert walls.sum() >= 16
    assert (np.abs(away[walls] - 1.05) < CELL).all()
    marks[0][~walls] |= FREE
    marks[0][8:] |= SEEN
    assert measured(marks[0])[middle, middle] == UNREACHED


def test_open_ground_is_void_until_a_ray_that_meets_a_surface_crosses_it():
    size, bins, zero = 100, 64, np.zeros(1, np.int64)
    marks, box = np.zeros((1, size, size), np.uint8), np.full((1, 4), size // 2)

    def scan(reach, met):
        draw(marks, zero, np.array([[0.2, 0, 0.2, 0]]), np.array(reach)[None], np.array(met)[None], box, CELL, 3.2)
        return marks[0, size // 2 :, size // 2] & (FREE | VOID)  # to the right, along the ray of a quarter turn

    outwards = np.zeros(bins, np.bool_)
    outwards[bins // 4 - 1 : bins // 4 + 2] = True
    right = scan(np.where(outwards, 100.0, 2.0), ~outwards)
    assert (right[:3] == FREE).all()  # rays that meet the walls cross the cells beside the drone
    end = int(LONGEST / CELL)
    assert (right[8 : end + 1] == FREE | VOID).all()
    assert (marks[0, : size // 2] & VOID == 0).all()
    # A dropped ray and one of a sensor that reaches 9 m leave it; a ray that meets a surface shows that it is a room.
    assert (scan(np.where(outwards, 9.0, 2.0), ~outwards)[8:end] == FREE | VOID).all()
    right = scan(np.where(outwards, 9.0, 2.0), np.full(bins, True))
    assert (right[8:22] == FREE).all() and (right[24:end] == FREE | VOID).all()
