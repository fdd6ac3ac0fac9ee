"""The reachable floor: free space over a surface, so that the open outside of a scan is no room."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig, EvalConfig, SpawnConfig
from navi_core.errors import SceneError
from navi_core.evaluate import build_course
from navi_core.evaluate.metrics.surface import SurfaceTruth
from navi_core.kernels.floor import label_components
from navi_core.scenes import Scene, compile_mesh, generate_scene
from navi_core.world import Field, FloorMap, scene_verdict, spawn_pool
from navi_core.world.floor.reachable import over_floor
from navi_core.world.spawning import scattered_spawns
from tests.conftest import box_triangles, mesh_of
from tests.world.spawning.test_spawning import sheet


def stage(*more: np.ndarray) -> Scene:
    """A floor of 6 × 6 m with a wall on three sides and no ceiling; poles far away give the scene its bounds."""
    walls = [((-3.1, 0, -3), (-3, 2.4, 3)), ((-3, 0, -3.1), (3, 2.4, -3)), ((-3, 0, 3), (3, 2.4, 3.1))]
    poles = [((7.8, 0, 7.8), (8, 2.4, 8)), ((-8, 0, -8), (-7.8, 2.4, -7.8))]
    triangles = [sheet(3.0, 0.0), *(box_triangles(*box) for box in walls + poles), *more]
    return compile_mesh(mesh_of(np.concatenate(triangles), f"stage{len(more)}"), CompileConfig(resolution=64))


@pytest.fixture(scope="module")
def open_house() -> Scene:
    return stage()


def test_space_within_the_clearance_of_a_ceiling_is_not_reachable(box_scene) -> None:
    floor = FloorMap(Field([box_scene]), 0, 0.25, 0.25)
    assert floor.contains(torch.tensor([[0.1, 2.4, 0.1], [0.1, 2.1, 0.1], [0.1, 9.0, 0.1]])).tolist() == [
        False,
        True,
        False,
    ]


def test_floor_excludes_space_without_surface_below(open_house) -> None:
    floor = FloorMap(Field([open_house]), 0, 0.1, 0.2)
    # 5.6 m from wall to wall; at the open side the floor is near up to 0.2 m beyond its edge.
    assert floor.area == pytest.approx(6.0 * 5.6, rel=0.02)
    where = floor.corner + (np.argwhere(floor.free) + 0.5) * floor.cell
    assert (np.abs(where[:, [0, 2]]) < 3.3).all()


def test_episodes_start_above_floor(open_house) -> None:
    field, config = Field([open_house]), SpawnConfig(scattered=16)
    starts = build_course([open_house], EvalConfig(starts=10)).starts
    places = [spawn_pool(field, 0, config).position, scattered_spawns(field, 0, config)[0]]
    places.append(torch.tensor([start.position for start in starts]))
    assert all(len(place) and bool((place[:, [0, 2]].abs() < 3.3).all()) for place in places)


def test_ground_around_house_is_floor() -> None:
    # Ground that is larger than the rooms is another matter: test_rooms.py.
    ground = sheet(3.6, -0.3)
    floor = FloorMap(Field([stage(ground)]), 0, 0.2, 0.2)
    assert floor.area > 45.0


def test_scene_without_floor_error_names_it() -> None:
    triangles = np.concatenate([sheet(3.0, 2.4), box_triangles((0, 0, 0), (0.1, 2.4, 0.1))])
    field = Field([compile_mesh(mesh_of(triangles, "awning"), CompileConfig(resolution=64))])
    with pytest.raises(SceneError, match="scene 'awning' has no floor: nothing lies beneath most of its free space"):
        FloorMap(field, 0, 0.1, 0.2)
    verdict = scene_verdict(field, 0)
    assert verdict.verdict == "FAIL"
    assert "no floor" in verdict.reason


def flat(low: tuple[float, float], high: tuple[float, float]) -> np.ndarray:
    """Two triangles of a horizontal rectangle at y = 0 from (x, z) to (x, z)."""
    (a, b), (c, d) = low, high
    return np.array([[(a, 0, b), (a, 0, d), (c, 0, b)], [(c, 0, d), (c, 0, b), (a, 0, d)]], float)


def two_rooms() -> np.ndarray:
    """Two rooms without a ceiling, and a corridor of 1.2 m between them whose floor has a gap of 1 m."""
    floors = [flat((0, 0), (4, 4)), flat((6, 0), (10, 4)), flat((4, 1.4), (4.5, 2.6)), flat((5.5, 1.4), (6, 2.6))]
    across = [((4, 0, z), (6, 2.4, z + 1.4)) for z in (0, 2.6)]
    walls = [*across, ((-0.1, 0, 0), (0, 2.4, 4)), ((10, 0, 0), (10.1, 2.4, 4))]
    walls += [((0, 0, z), (10, 2.4, z + 0.1)) for z in (-0.1, 4)]
    return np.concatenate([*floors, *(box_triangles(*wall) for wall in walls)])


def test_rooms_stay_connected_across_floor_hole() -> None:
    field = Field([compile_mesh(mesh_of(two_rooms(), "two_rooms"), CompileConfig(resolution=64))])
    floor = FloorMap(field, 0, 0.1, 0.2)
    assert floor.area == pytest.approx(2 * 3.6**2 + 2.4 * 0.8, rel=0.05)
    over_the_hole = torch.tensor([[5.0, 1.0, 2.0]])
    assert bool(floor.contains(over_the_hole))
    truth = SurfaceTruth.of(field, 0, floor)
    beside_it = truth.voxels[int((5.0 - truth.low[0]) / truth.cell)]
    assert beside_it.sum() * truth.cell == pytest.approx(2 * 2.4, rel=0.1)  # the corridor's two walls


@pytest.mark.parametrize("side", [(0, 2), (4, 2), (2, 0), (2, 4), None])
def test_floor_gap_open_to_plan_edge_is_not_filled(side) -> None:
    surface = np.zeros((5, 3, 5), bool)
    surface[:, 1] = True
    surface[2, :, 2] = False
    surface[1, 0, 1] = True  # low surfaces do not make their neighbours floor
    if side is not None:
        surface[(2 + side[0]) // 2, :, (2 + side[1]) // 2] = surface[side[0], :, side[1]] = False
    over = over_floor(surface)
    assert bool(over[2, 2, 2]) is (side is None)
    assert over[4, 1:, 4].all()
    assert not over[:, 0].all()
    assert over[1, 0, 1]


@pytest.mark.parametrize("hole", [(1, 2), (3, 2), (2, 1), (2, 3)])
def test_floor_hole_beside_the_plan_edge_is_filled(hole) -> None:
    surface = np.ones((5, 1, 5), bool)
    surface[hole[0], 0, hole[1]] = False
    assert over_floor(surface).all()


def test_walls_without_floor_are_refused() -> None:
    upside_down = two_rooms() * [1.0, -1.0, 1.0]
    field = Field([compile_mesh(mesh_of(upside_down, "upside_down"), CompileConfig(resolution=64))])
    with pytest.raises(SceneError, match="no floor"):
        FloorMap(field, 0, 0.1, 0.2)


@pytest.mark.parametrize(("cell", "clearance"), [(1.0, 0.2), (0.2, 0.06)])
def test_coarse_floor_cells_stay_above_the_floor(open_house, cell, clearance) -> None:
    floor = FloorMap(Field([open_house]), 0, cell, clearance)
    assert floor.area >= 30.0


@pytest.mark.parametrize("family", ["apartment", "atrium", "maze", "rooms"])
def test_closed_scene_free_space_is_all_floor(family) -> None:
    field = Field([compile_mesh(generate_scene(family, 3), CompileConfig(resolution=256))])
    floor = FloorMap(field, 0, 0.2, 0.2)
    centres = floor.corner + (np.indices(floor.free.shape).reshape(3, -1).T + 0.5) * floor.cell
    points, scene = torch.from_numpy(centres.astype(np.float32)), torch.zeros(len(centres), dtype=torch.int32)
    label, sizes = label_components(~field.within(points, scene, 0.2).numpy().reshape(floor.free.shape))
    assert np.array_equal(floor.free, label == sizes.argmax())
