"""Rooms on open ground: a house on a plane is flown indoors, a yard with a shed is a yard."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig, EnvConfig, EvalConfig, SpawnConfig
from navi_core.evaluate import build_course
from navi_core.evaluate.metrics.surface import SurfaceTruth
from navi_core.scenes import Scene, compile_mesh, generate_scene
from navi_core.world import Field, FloorMap, NavigationEnv, spawn_pool
from navi_core.world.floor import rooms
from navi_core.world.floor.rooms import _met, _met_of_all, rooms_on_open_ground
from navi_core.world.spawning import scattered_spawns
from tests.conftest import box_triangles, mesh_of
from tests.world.spawning.test_spawning import sheet

HALF = 9.0
"""Half of the ground's edge [m]."""


def house(width: float, depth: float, *, door: float = 1.0, roof: bool = False) -> np.ndarray:
    """Walls of 2.4 m around x 0 … width, z 0 … depth, with a door at x = 0."""
    w, d, gap = width, depth, door / 2
    walls = [
        ((-0.1, 0, -0.1), (w + 0.1, 2.4, 0)),
        ((-0.1, 0, d), (w + 0.1, 2.4, d + 0.1)),
        ((w, 0, 0), (w + 0.1, 2.4, d)),
    ]
    walls += [((-0.1, 0, 0), (0, 2.4, d / 2 - gap)), ((-0.1, 0, d / 2 + gap), (0, 2.4, d))]
    walls += [((-0.1, 2.4, -0.1), (w + 0.1, 2.5, d + 0.1))] if roof else []
    return np.concatenate([box_triangles(*wall) for wall in walls])


def on_ground(*things: np.ndarray, name: str = "lawn") -> Scene:
    """Things on a square of ground, with a mast that gives the air above it a height."""
    mast = box_triangles((HALF - 0.2, 0, HALF - 0.2), (HALF, 3.0, HALF))
    return compile_mesh(mesh_of(np.concatenate([sheet(HALF, 0.0), mast, *things]), name), CompileConfig(resolution=128))


def indoors(points: torch.Tensor, width: float, depth: float) -> bool:
    x, z = points[:, 0], points[:, 2]
    return bool(((x > -0.5) & (x < width) & (z > 0) & (z < depth)).all())


@pytest.mark.parametrize(("roof", "door"), [(False, 1.0), (True, 1.0), (False, 0.0)])
def test_house_on_open_ground_floor_is_its_rooms(roof, door, caplog) -> None:
    field = Field([on_ground(house(8.0, 6.0, door=door, roof=roof), name=f"house{roof}{door}")])
    with caplog.at_level(logging.WARNING, logger="navi.world"):
        floor = FloorMap(field, 0, 0.1, 0.2)
    assert floor.area == pytest.approx(7.6 * 5.6, rel=0.03)
    assert "open ground lie around rooms of" in caplog.text
    assert "house" in caplog.text
    assert indoors(torch.from_numpy(floor.corner + (np.argwhere(floor.free) + 0.5) * floor.cell), 8.0, 6.0)


@pytest.mark.parametrize("depth", [0.1, 0.2, 0.3, 0.4])
def test_wall_tops_are_not_floor(depth) -> None:
    # The well shifts the voxel origin: space below and above the wall tops shares a block, or does not.
    well = box_triangles((8.5, -depth, 8.5), (8.9, 0, 8.9))
    for cell, area in ((0.1, 7.6 * 5.6), (0.25, 7.5 * 5.5)):
        floor = FloorMap(Field([on_ground(well, house(8.0, 6.0))]), 0, cell, 0.2)
        assert floor.area == pytest.approx(area, rel=0.03)


def test_closed_house_is_a_block_without_floor() -> None:
    floor = FloorMap(Field([on_ground(house(8.0, 6.0, door=0.0, roof=True))]), 0, 0.2, 0.2)
    assert floor.area > 200.0
    assert not floor.contains(torch.tensor([[4.0, 1.2, 3.0]])).any()


def test_house_on_ground_episodes_start_indoors() -> None:
    scene = on_ground(house(8.0, 6.0, door=1.0))
    field, config = Field([scene]), SpawnConfig(scattered=16)
    starts = build_course([scene], EvalConfig(starts=10)).starts
    places = [spawn_pool(field, 0, config).position, scattered_spawns(field, 0, config)[0]]
    places.append(torch.tensor([start.position for start in starts]))
    assert all(len(place) and indoors(place, 8.0, 6.0) for place in places)


def test_notch_of_angled_house_is_not_a_room() -> None:
    # Two wings around a notch of 8 × 8 m, which is larger than either of them.
    wings = [house(4.0, 12.0) - (8.0, 0, 6.0), house(8.0, 4.0) - (3.9, 0, 6.0)]
    floor = FloorMap(Field([on_ground(*wings)]), 0, 0.2, 0.2)
    assert floor.area < 60.0
    notch = torch.tensor([[0.0, 1.2, 2.0], [2.0, 1.2, 4.0]])
    assert not floor.contains(notch).any()


def test_podium_is_not_a_room() -> None:
    # Closed bodies are hollow, and every ray from inside hits them.
    podium = box_triangles((-6, 0, -3), (3, 1.2, 6))
    floor = FloorMap(Field([on_ground(podium)]), 0, 0.2, 0.2)
    assert floor.area > 250.0


def test_house_on_closed_ground_body_is_flown_indoors() -> None:
    ground = box_triangles((-HALF, -0.8, -HALF), (HALF, 0, HALF))
    field = Field([on_ground(ground, house(8.0, 6.0))])
    floor = FloorMap(field, 0, 0.1, 0.2)
    assert floor.area == pytest.approx(7.6 * 5.6, rel=0.03)
    assert floor.height[0] > 0.0


def test_a_yard_with_a_shed_is_a_yard() -> None:
    shed = house(3.0, 3.0)
    floor = FloorMap(Field([on_ground(shed)]), 0, 0.2, 0.2)
    assert floor.area > 250.0


@pytest.mark.parametrize(("half", "width"), [(9.0, 5.0), (4.0, 3.4)])  # below a tenth of the floor; below 16 m²
def test_a_shed_is_small_or_takes_little_of_the_yard(half, width) -> None:
    mast = box_triangles((half - 0.2, 0, half - 0.2), (half, 3.0, half))
    triangles = np.concatenate([sheet(half, 0.0), mast, house(width, width) - (width / 2, 0, width / 2)])
    floor = FloorMap(Field([compile_mesh(mesh_of(triangles, "shed"), CompileConfig(resolution=64))]), 0, 0.2, 0.2)
    assert floor.area > 0.8 * (2 * half) ** 2


def test_open_ground_with_crates_has_no_rooms() -> None:
    crates = [box_triangles((x, 0, z), (x + 1, 1, z + 1)) for x in (-6, 0, 5) for z in (-5, 1, 6)]
    floor = FloorMap(Field([on_ground(*crates)]), 0, 0.2, 0.2)
    assert floor.area > 250.0


@pytest.mark.parametrize(("width", "depth"), [(17.0, 16.0), (14.4, 13.4)])
def test_ground_is_floor_where_rooms_are_the_larger_part(width, depth) -> None:
    floor = FloorMap(Field([on_ground(house(width, depth) - (width / 2, 0, depth / 2))]), 0, 0.2, 0.2)
    strip = torch.tensor([[-8.8, 1.2, 0.0]])
    assert bool(floor.contains(strip))


@pytest.mark.parametrize("family", ["apartment", "atrium", "maze", "rooms", "scan"])
def test_generated_scenes_keep_every_voxel(family) -> None:
    field = Field([compile_mesh(generate_scene(family, 3), CompileConfig(resolution=256))])
    floor = FloorMap(field, 0, 0.2, 0.2)
    assert rooms_on_open_ground(field, 0, floor.free, floor.free, floor.corner, floor.cell) is None


def test_room_without_one_wall_is_a_room() -> None:
    lacking = house(6.0, 6.0, door=6.0) - (3.0, 0, 3.0)
    triangles = np.concatenate([sheet(3.2, 0.0), lacking])
    scene = compile_mesh(mesh_of(triangles, "lacking"), CompileConfig(resolution=64))
    assert FloorMap(Field([scene]), 0, 0.2, 0.2).area > 31.0


def test_maps_of_one_field_agree() -> None:
    field = Field([on_ground(house(8.0, 6.0))])
    areas = [FloorMap(field, 0, cell, clearance).area for cell, clearance in ((0.25, 0.2), (0.1, 0.3), (0.05, 0.2))]
    assert areas == pytest.approx([7.6 * 5.6, 7.4 * 5.4, 7.6 * 5.6], rel=0.08)


def test_maps_of_one_field_choose_the_same_house() -> None:
    # Of the coarser map the left one is the larger, of the finer one the right one.
    left, right = house(9.6, 7.0) - (11.7, 0, 3.5), house(7.0, 9.77, door=1.3) - (-4.8, 0, 4.8)
    mast = box_triangles((11.8, 0, 11.8), (12.0, 3.0, 12.0))
    mesh = mesh_of(np.concatenate([sheet(12.0, 0.0), left, right, mast]), "two")
    scene = compile_mesh(mesh, CompileConfig(resolution=128))
    coarse, fine = (0.2, 0.2), (0.1, 0.25)
    alone = [_side(FloorMap(Field([scene]), 0, *how)) for how in (coarse, fine)]
    assert alone == ["left", "right"]
    for order, side in (((coarse, fine), "left"), ((fine, coarse), "right")):
        field = Field([scene])
        assert [_side(FloorMap(field, 0, *how)) for how in order] == [side, side]


def _side(floor: FloorMap) -> str:
    return "left" if floor.origin[0] + np.argwhere(floor.reachable.numpy())[:, 0].mean() * floor.cell < 0 else "right"


def test_the_first_map_of_a_field_decides(monkeypatch) -> None:
    scene = on_ground(house(8.0, 6.0))
    for first, then in ((False, True), (True, False)):
        field, areas = Field([scene]), []
        for seems in (first, then):
            monkeypatch.setattr(rooms, "_seems_open", lambda *_, seems=seems: seems)
            areas.append(FloorMap(field, 0, 0.2, 0.2).area)
        assert areas[0] == areas[1]


def test_surface_truth_counts_only_faces_towards_rooms() -> None:
    field = Field([on_ground(house(8.0, 6.0, roof=True))])
    truth = SurfaceTruth.of(field, 0, FloorMap(field, 0, 0.1, 0.2))
    places = torch.from_numpy(truth.low + (np.argwhere(truth.voxels) + 0.5) * truth.cell)
    x, y, z = places.T
    assert bool(((x > -0.3) & (x < 8.2) & (y < 2.6) & (z > -0.2) & (z < 6.2)).all())
    # Floor, ceiling and walls of 8 × 6 × 2.4 m without the door; where they meet they share voxels.
    assert len(places) * truth.cell**2 == pytest.approx(2 * 8 * 6 + 2 * 2.4 * 14 - 2.4, rel=0.1)


def test_voxel_block_shares_the_wall_hits_of_one_voxel() -> None:
    scene = on_ground(house(8.0, 6.0))
    field, cell = Field([scene]), 0.1
    floor = FloorMap(field, 0, cell, 0.2)
    met = _met_of_all(field, 0, floor.free, floor.corner, cell)
    below_the_walls_top = floor.free.copy()
    below_the_walls_top[:, 20:] = False
    each = _met(field, 0, floor.corner + (np.argwhere(below_the_walls_top) + 0.5) * cell)
    strays = np.abs(met[below_the_walls_top].astype(int) - each)
    assert not met[~floor.free].any()
    assert strays.max() <= 4
    assert (strays <= 1).mean() > 0.95


def test_wall_hits_inside_and_outside_by_hand() -> None:
    # A door of 6 m at 3 m from the middle of the house: 90° of 360° lead outside, 4 looks of 16. Beyond a corner the
    # house lies between 21.8° and 68.2°, where two of the looks are, at 33.75° and 56.25°.
    field = Field([on_ground(house(6.0, 6.0, door=6.0))])
    assert _met(field, 0, np.array([[3.0, 1.2, 3.0], [-4.0, 1.2, -4.0]])).tolist() == [12, 2]


def test_restored_state_with_larger_floor_caps_fraction_at_one() -> None:
    env = NavigationEnv(Field([on_ground(house(8.0, 6.0))]), 2, EnvConfig(azimuth_bins=32, elevation_bins=8), seed=1)
    state = env.state_dict()
    state["floor"].fill_(True)
    env.load_state_dict(state)
    assert env.view.fraction(env.counters["scene"]).tolist() == [1.0, 1.0]
