"""Storeys: stacked floors are separate for coverage, rewards and maps; a view counts on the storey of the drone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig, EnvConfig, EvalConfig
from navi_core.errors import EvaluationError
from navi_core.evaluate import build_course, evaluate, top_down_map
from navi_core.evaluate.metrics.coverage import FloorTruth, measure_coverage
from navi_core.scenes import compile_mesh, generate_scene
from navi_core.world import Field, FloorMap, FloorView, NavigationEnv
from navi_core.world.floor.overhead import overhead, tint_seen
from navi_core.world.floor.rooms import find_storeys, storey_of
from tests.evaluate.conftest import boxes_scene
from tests.world.fan_oracle import fan_gain


@pytest.fixture(scope="module")
def house():
    """8 × 5 × 4 m with a slab of 0.2 m at 2.4 m over x from 0 to 6; the hall beside it is 5 m high."""
    return boxes_scene("house", ((0, 0, 0), (8, 5, 4)), ((-0.1, 2.4, -0.1), (6, 2.6, 4.1)))


def truth_of(scene):
    field = Field([scene])
    return field, FloorTruth.of(FloorMap(field, 0, 0.1, 0.2), 0.5)


def test_slab_makes_two_storeys_with_hall_in_the_lower(house):
    _, truth = truth_of(house)
    assert len(truth.levels) == 2
    assert truth.levels[1] == pytest.approx(2.8, abs=0.21)
    assert truth.reachable[0].sum() * 0.01 == pytest.approx(7.6 * 3.6, rel=0.04)
    assert truth.reachable[1].sum() * 0.01 == pytest.approx(6.0 * 3.6, rel=0.06)
    assert truth.area == pytest.approx(7.6 * 3.6 + 6.0 * 3.6, rel=0.05)


def test_view_counts_on_the_storey_of_the_drone(house):
    field, truth = truth_of(house)
    below, above = (2.0, 1.2, 2.0), (2.0, 3.8, 2.0)

    def seen(*points):
        return measure_coverage(field, truth, 0, np.array(points, np.float32), view_radius=3.2)

    lower, both = seen(below), seen(below, above, below)
    # One view of the same plan from each storey: the second adds as much as the first, a third adds nothing.
    assert both.seen[1] == pytest.approx(2 * lower.seen[0], rel=0.02)
    assert both.seen[2] == both.seen[1]
    assert both.visited.tolist() == [0.25, 0.5, 0.5]
    # High up in the hall there is no floor of that storey to be flown over.
    assert seen((7.0, 3.8, 2.0)).visited.tolist() == [0.0]
    assert seen((7.0, 1.2, 2.0)).visited.tolist() == [0.25]
    assert lower.seen_share[0] < 60
    assert (both.seen_cells[0] == lower.seen_cells[0]).all()
    assert not lower.seen_cells[1].any()
    assert both.seen_cells[1].sum() == pytest.approx(both.seen_cells[0].sum(), rel=0.02)


@pytest.mark.parametrize("program", ["native", "kernels", "tensors"])
def test_view_gain_is_rewarded_once_per_storey(house, program):
    """Views below and above one spot of the slab, far from the hall, see the same area of floor."""
    field = Field([house], tracer="numba" if program == "kernels" else "auto")
    config = EnvConfig(azimuth_bins=64, elevation_bins=16, stagger=False, reward={"view_radius": 1.5})
    env = NavigationEnv(field, 1, config, tensor_only=program == "tensors")
    env.view.seen.zero_()

    def gain(height):
        state = env.state_dict()
        state["position"][0] = torch.tensor([2.0, height, 2.0])
        state["velocity"].zero_()
        env.load_state_dict(state)
        return float(env.step(torch.zeros(1, 4)).info["reward_terms"]["view_gain"])

    below, above = gain(1.2), gain(3.8)
    assert below == pytest.approx(math.pi * 1.5**2, rel=0.15)
    assert above == below
    assert gain(1.2) == gain(3.8) == 0.0
    fraction = 2 * below / env.floors[0].area
    assert float(env.view.fraction(env.counters["scene"])[0]) == pytest.approx(fraction, rel=1e-5)


def test_kernels_and_tensors_mark_storeys_alike(house):
    field = Field([house, boxes_scene("box", ((0, 0, 0), (5, 2.4, 4)))])
    maps = [FloorMap(field, index, 0.2, 0.2) for index in (0, 1)]
    angle = torch.arange(16) * (2 * math.pi / 16)
    fan = torch.stack([angle.sin(), -angle.cos()], dim=1)
    view = FloorView(maps, 12, fan, 3.2, torch.device("cpu"))
    seen = view.seen.clone()
    generator, scene = torch.Generator().manual_seed(2), torch.arange(12) % 2
    for _ in range(10):
        place = torch.rand(12, 3, generator=generator) * torch.tensor([8.0, 5.0, 4.0])
        place[0, 1] = float(np.float32(maps[0].levels[1]))
        yaw, reach = torch.rand(12, generator=generator) * 6.0, torch.rand(12, 16, generator=generator) * 3.2
        assert torch.equal(view.mark(place, yaw, reach, scene), fan_gain(view, place, yaw, reach, scene, seen))
    assert torch.equal(view.seen, seen)
    size = maps[0].reachable.numel()
    assert view.seen[::2, :size].any()
    assert view.seen[::2, size : 2 * size].any()
    # A scene of one storey has nothing behind its plan.
    assert not view.seen[1::2, maps[1].storeys.size :].any()


def test_a_map_from_above_shows_the_floor_of_its_storey(house):
    field = Field([house])
    floor = FloorMap(field, 0, 0.1, 0.2)
    lower, upper = (overhead(field, 0, height, floor) for height in (1.2, 3.8))
    seen = np.zeros(floor.storeys.size, bool)
    seen[: floor.storeys[0].size] = True
    assert (tint_seen(lower, seen) != lower.image).any()
    assert (tint_seen(upper, seen) == upper.image).all()
    # The hall is floor below and none above.
    assert (lower.floor >= 0).sum() > 1.2 * (upper.floor >= 0).sum()
    path = np.array([[2.0, 1.2, 2.0], [7.0, 1.2, 2.0], [7.0, 3.8, 2.0], [2.0, 3.8, 2.0]], np.float32)
    plain, tinted = (
        top_down_map(field, 0, {"a": path}, floor),
        top_down_map(field, 0, {"a": path}, floor, floor.storeys),
    )
    assert plain.startswith(b"\x89PNG")
    assert plain != tinted
    with pytest.raises(EvaluationError, match="a layer for each storey"):
        top_down_map(field, 0, {"a": path}, floor, floor.storeys[0])


def test_the_planner_sees_one_storey_after_the_other(house):
    """It sees the lower one from below, flies up through the hall, and sees the upper one."""
    config = EvalConfig(starts=1, max_steps=100)
    course = build_course([house], config)
    result = evaluate("planner", course)
    path = result.trajectories[0]
    storeys = storey_of(path[:, 1], course.truths[0].levels)
    assert set(storeys) == {0, 1}
    assert result.summary["c_vis_final"] > 95
    assert result.summary["collisions_per_minute"] == 0
    changes = np.flatnonzero(np.diff(storeys))
    assert (path[changes, 0] > 6.0).all()


@pytest.mark.parametrize(("family", "storeys"), [("apartment", 1), ("rooms", 1), ("maze", 1), ("atrium", 2)])
def test_generated_families_have_the_storeys_they_are_built_with(family, storeys):
    field = Field([compile_mesh(generate_scene(family, 3), CompileConfig(resolution=128))])
    floor = FloorMap(field, 0, 0.2, 0.2)
    assert len(floor.levels) == storeys
    if storeys == 1:
        assert np.array_equal(floor.storeys[0], floor.reachable.numpy())


def test_tables_slopes_and_stairs_are_not_storeys():
    free = np.ones((60, 60, 60), dtype=bool)
    free[10:20, 20:22, 10:20] = False  # a shelf of 1 m² at 2 m
    assert len(find_storeys(free, 0.1)[0]) == 1
    slope = np.arange(60)[None, :, None] >= np.arange(60)[:, None, None] * 0.8
    layers, floors = find_storeys(np.broadcast_to(slope, (60, 60, 60)).copy(), 0.1)
    assert len(layers) == 1
    assert floors[0].all()


@pytest.mark.parametrize("layers", [1, 5, 8, 10, 30])
def test_space_of_any_height_has_a_storey(layers):
    first, floors = find_storeys(np.ones((20, layers, 20), dtype=bool), 0.1)
    assert first.tolist() == [0] and floors.all()


def test_heights_between_levels_belong_to_the_storey_below():
    assert storey_of(np.array([-1.0, 0.2, 2.7, 2.8, 9.0]), np.array([0.2, 2.8])).tolist() == [0, 0, 0, 1, 1]


def test_furniture_is_not_a_storey_in_any_quantity():
    """Beds of 2 m² each over a room with a pit: 16 m² of floor over floor, in pieces; a gallery of 9 m² is one."""
    free = np.zeros((100, 60, 80), dtype=bool)
    free[:, 20:50] = True
    free[:10, :20, :10] = True
    for n in range(8):
        free[12 * n + 2 : 12 * n + 12, 28:32, 10:30] = False
    first, floors = find_storeys(free, 0.1)
    assert first.tolist() == [0]
    assert floors.shape == (1, 100, 80)
    free[5:95, 36:40, 65:75] = False
    first, floors = find_storeys(free, 0.1)
    assert first.tolist() == [0, 40]
    assert floors[1].sum() == 90 * 10


@pytest.mark.parametrize(("ceiling", "deep", "least", "most"), [(2.6, -3.0, 1.1, 1.4), (1.8, -1.5, 0.75, 1.05)])
def test_starts_use_room_floor_height_beside_a_pit(ceiling, deep, least, most):
    """A shaft of 1.5 × 1.5 m is the lowest point of a room of 8 × 6 m: no start is at its eye height.

    In a low room starts are at half its height.
    """
    hole = ((3, 2), (4.5, 3.5))
    ground = [((0, 0), (3, 6)), ((4.5, 0), (8, 6)), ((3, 0), (4.5, 2)), ((3, 3.5), (4.5, 6))]
    walls = [((x, deep, 2), (x + 0.1, 0, 3.5)) for x in (2.9, 4.5)] + [
        ((3, deep, z), (4.5, 0, z + 0.1)) for z in (1.9, 3.5)
    ]
    slabs = [((x0, -0.1, z0), (x1, 0, z1)) for (x0, z0), (x1, z1) in ground]
    scene = boxes_scene("shaft", ((0, deep, 0), (8, ceiling, 6)), *slabs, *walls)
    course = build_course([scene], EvalConfig(starts=6))
    assert course.floors[0].height[0] < deep + 0.5
    inside = [
        hole[0][0] < x < hole[1][0] and hole[0][1] < z < hole[1][1] for x, _, z in (s.position for s in course.starts)
    ]
    heights = {round(start.position[1], 2) for start in course.starts}
    assert len(heights) == 1
    assert least < heights.pop() < most
    assert not all(inside)
