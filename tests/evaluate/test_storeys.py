"""Storeys: floors over floors are told apart, and a look counts on the drone's own."""

from __future__ import annotations

import numpy as np
import pytest

from navi_core.config import CompileConfig
from navi_core.evaluate.coverage import FloorTruth, measure_coverage
from navi_core.evaluate.storeys import find_storeys, storey_of
from navi_core.scenes import compile_mesh, generate_scene
from navi_core.world import Field, FloorMap
from tests.evaluate.conftest import boxes_scene


@pytest.fixture(scope="module")
def house():
    """8 × 5 × 4 m with a slab of 0.2 m at 2.4 m over x from 0 to 6; the hall beside it is 5 m high."""
    return boxes_scene("house", ((0, 0, 0), (8, 5, 4)), ((-0.1, 2.4, -0.1), (6, 2.6, 4.1)))


def truth_of(scene):
    field = Field([scene])
    return field, FloorTruth.of(FloorMap(field, 0, 0.1, 0.2), 0.5)


def test_a_slab_makes_two_storeys_and_the_hall_belongs_to_the_lower(house):
    _, truth = truth_of(house)
    assert len(truth.levels) == 2 and truth.levels[1] == pytest.approx(2.8, abs=0.21)
    assert truth.reachable[0].sum() * 0.01 == pytest.approx(7.6 * 3.6, rel=0.04)
    assert truth.reachable[1].sum() * 0.01 == pytest.approx(6.0 * 3.6, rel=0.06)
    assert truth.area == pytest.approx(7.6 * 3.6 + 6.0 * 3.6, rel=0.05)


def test_a_look_counts_on_the_drones_own_storey(house):
    field, truth = truth_of(house)
    below, above = (2.0, 1.2, 2.0), (2.0, 3.8, 2.0)

    def seen(*points):
        return measure_coverage(field, truth, 0, np.array(points, np.float32), view_radius=3.2)

    lower, both = seen(below), seen(below, above, below)
    # Two looks of the same plan from one storey each: what the second adds is as much as the first, and a third none.
    assert both.seen[1] == pytest.approx(2 * lower.seen[0], rel=0.02)
    assert both.seen[2] == both.seen[1] and both.visited.tolist() == [0.25, 0.5, 0.5]
    assert lower.seen_share[0] < 60
    assert (both.seen_cells == lower.seen_cells).mean() > 0.98


@pytest.mark.parametrize(("family", "storeys"), [("apartment", 1), ("rooms", 1), ("maze", 1), ("atrium", 2)])
def test_generated_families_have_the_storeys_they_are_built_with(family, storeys):
    field = Field([compile_mesh(generate_scene(family, 3), CompileConfig(resolution=128))])
    floor = FloorMap(field, 0, 0.2, 0.2)
    layers, floors = find_storeys(floor.free, floor.cell)
    assert len(layers) == storeys
    if storeys == 1:
        assert np.array_equal(floors[0], floor.reachable.numpy())


def test_tables_slopes_and_stairs_are_no_storeys():
    free = np.ones((60, 60, 60), dtype=bool)
    free[10:20, 20:22, 10:20] = False  # a shelf of 1 m² at 2 m
    assert len(find_storeys(free, 0.1)[0]) == 1
    slope = np.arange(60)[None, :, None] >= np.arange(60)[:, None, None] * 0.8
    layers, floors = find_storeys(np.broadcast_to(slope, (60, 60, 60)).copy(), 0.1)
    assert len(layers) == 1 and floors[0].all()


def test_heights_between_levels_belong_to_the_storey_below():
    assert storey_of(np.array([-1.0, 0.2, 2.7, 2.8, 9.0]), np.array([0.2, 2.8])).tolist() == [0, 0, 0, 1, 1]
