"""The reachable floor: free space over a surface, so that the open outside of a scan is no room."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig, EvalConfig, SpawnConfig
from navi_core.errors import SceneError
from navi_core.evaluate import build_course
from navi_core.kernels.floor import label_components
from navi_core.scenes import Scene, compile_mesh, generate_scene
from navi_core.world import Field, FloorMap, scene_verdict, spawn_pool
from navi_core.world.spawning import scattered_spawns
from tests.conftest import box_triangles, mesh_of
from tests.world.test_spawning import sheet


def stage(*more: np.ndarray) -> Scene:
    """A floor of 6 × 6 m with a wall on three sides and no ceiling; poles far away give the scene its bounds."""
    walls = [((-3.1, 0, -3), (-3, 2.4, 3)), ((-3, 0, -3.1), (3, 2.4, -3)), ((-3, 0, 3), (3, 2.4, 3.1))]
    poles = [((7.8, 0, 7.8), (8, 2.4, 8)), ((-8, 0, -8), (-7.8, 2.4, -7.8))]
    triangles = [sheet(3.0, 0.0), *(box_triangles(*box) for box in walls + poles), *more]
    return compile_mesh(mesh_of(np.concatenate(triangles), f"stage{len(more)}"), CompileConfig(resolution=64))


@pytest.fixture(scope="module")
def open_house() -> Scene:
    return stage()


def test_what_lies_over_nothing_is_no_floor(open_house) -> None:
    floor = FloorMap(Field([open_house]), 0, 0.1, 0.2)
    # 5.6 m from wall to wall; at the open side the floor is near up to 0.2 m beyond its edge.
    assert floor.area == pytest.approx(6.0 * 5.6, rel=0.02)
    where = floor.corner + (np.argwhere(floor.free) + 0.5) * floor.cell
    assert (np.abs(where[:, [0, 2]]) < 3.3).all()


def test_no_episode_begins_over_nothing(open_house) -> None:
    field, config = Field([open_house]), SpawnConfig(scattered=16)
    starts = build_course([open_house], EvalConfig(starts=10)).starts
    places = [spawn_pool(field, 0, config).position, scattered_spawns(field, 0, config)[0]]
    places.append(torch.tensor([start.position for start in starts]))
    assert all(len(place) and bool((place[:, [0, 2]].abs() < 3.3).all()) for place in places)


def test_ground_around_a_house_is_floor() -> None:
    ground = sheet(8.0, -0.3)
    floor = FloorMap(Field([stage(ground)]), 0, 0.2, 0.2)
    assert floor.area > 200.0


def test_a_scene_without_a_floor_says_so() -> None:
    triangles = np.concatenate([sheet(3.0, 2.4), box_triangles((0, 0, 0), (0.1, 2.4, 0.1))])
    field = Field([compile_mesh(mesh_of(triangles, "awning"), CompileConfig(resolution=64))])
    with pytest.raises(SceneError, match="scene 'awning' has no floor: nothing lies beneath its free space"):
        FloorMap(field, 0, 0.1, 0.2)
    verdict = scene_verdict(field, 0)
    assert verdict.verdict == "FAIL" and "no floor" in verdict.reason


@pytest.mark.parametrize("family", ["apartment", "atrium", "maze", "rooms"])
def test_in_closed_scenes_all_connected_free_space_is_over_a_floor(family) -> None:
    field = Field([compile_mesh(generate_scene(family, 3), CompileConfig(resolution=256))])
    floor = FloorMap(field, 0, 0.2, 0.2)
    centres = floor.corner + (np.indices(floor.free.shape).reshape(3, -1).T + 0.5) * floor.cell
    points, scene = torch.from_numpy(centres.astype(np.float32)), torch.zeros(len(centres), dtype=torch.int32)
    label, sizes = label_components(~field.within(points, scene, 0.2).numpy().reshape(floor.free.shape))
    assert np.array_equal(floor.free, label == sizes.argmax())
