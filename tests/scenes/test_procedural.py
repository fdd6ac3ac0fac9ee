"""Generated scenes: the same everywhere, connected, different from seed to seed; all but scans closed."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.errors import ConfigError
from navi_core.kernels import TriangleBVH
from navi_core.scenes import FAMILIES, compile_mesh, generate_scene
from navi_core.scenes.procedural.storey import _without_ball
from navi_core.world import Field, FloorMap, scene_verdict

CLOSED = [family for family in FAMILIES if family != "scan"]
LEAST_FLOOR = {"apartment": 35, "home": 35, "maze": 60, "atrium": 60, "rooms": 40, "hall": 80, "shop": 45, "stairs": 25,
               "angled": 35}  # fmt: skip
"""Least area that a drone reaches 0.75 m above the lowest floor [m²]."""
CELL = 0.15
RADIUS, MARGIN = 0.15, 0.05
ROOT = Path(__file__).resolve().parents[2]


def free_space(mesh, clearance: float):
    """Return free cells (nx, ny, nz) of a grid that reaches a metre out of the scene, and its axes."""
    lower, upper = mesh.bounds
    xs, zs = (np.arange(lower[a] - 1, upper[a] + 1, CELL) for a in (0, 2))
    ys = np.arange(0.3, upper[1] + 1, CELL)
    points = np.stack(np.meshgrid(xs, ys, zs, indexing="ij"), axis=-1)
    distance, _ = TriangleBVH(mesh.triangles).closest(points.reshape(-1, 3), 0.5)
    return (distance >= clearance).reshape(points.shape[:3])


@pytest.mark.parametrize("family", CLOSED)
@pytest.mark.parametrize("seed", [0, 7])
def test_a_drone_reaches_every_room_and_never_escapes(family, seed):
    from scipy import ndimage

    mesh = generate_scene(family, seed)
    labels, _ = ndimage.label(free_space(mesh, RADIUS + MARGIN))
    outside = labels[0, 0, 0]
    sizes = np.bincount(labels.ravel())
    sizes[[0, outside]] = 0
    main = int(np.argmax(sizes))
    assert main not in (0, outside)
    # What is left over is nooks between pieces of furniture, never a room (a small one has 1,500 cells).
    assert sizes.sum() - sizes[main] < 60
    # Closed even for a drone that may touch: cells a radius apart still do not join inside and outside.
    touching, _ = ndimage.label(free_space(mesh, CELL / 2 * 1.01))
    assert not (touching[labels == main] == touching[0, 0, 0]).any()
    floor = (labels[:, 3] == main).sum() * CELL**2
    assert floor > LEAST_FLOOR[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_scenes_are_small_valid_and_named(family):
    for seed in range(5):
        mesh = generate_scene(family, seed)
        assert mesh.name == f"{family}_{seed:04d}"
        assert 100 <= len(mesh.faces) <= (8000 if family in CLOSED else 40_000)
        assert {"wall", "floor", *(["ceiling"] if family in CLOSED else [])} <= set(mesh.semantic_names.values())
        assert set(np.unique(mesh.face_semantic)) <= set(mesh.semantic_names)
        assert mesh.semantic_names[1] == "surface"
        size = mesh.bounds[1] - mesh.bounds[0]
        assert 2.5 < size[1] < 8.0
        assert min(size[0], size[2]) > 5.0


@pytest.mark.parametrize("seed", [66, 99, 233])
def test_a_narrow_apartment_has_no_corridor_between_its_rooms(seed):
    mesh = generate_scene("apartment", seed)
    assert min(np.diff(mesh.bounds, axis=0)[0, [0, 2]]) < 7.3
    main = free_space(mesh, RADIUS + MARGIN)[:, 3].sum() * CELL**2
    assert main > 35


def test_homes_have_ordinary_doors_between_walls_at_any_angle():
    widths, angles = [], set()
    for seed in range(4):
        mesh = generate_scene("home", seed)
        names = {name: number for number, name in mesh.semantic_names.items()}
        frames = mesh.vertices[mesh.faces[mesh.face_semantic == names["door_frame"]]]
        heads = frames[frames[:, :, 1].min(axis=1) > 1.9].reshape(-1, 24, 3)[:, :, [0, 2]]
        # The head of a frame is a box: its longer side is the opening, with 4 cm beyond the wall's edge.
        spans = [np.linalg.norm(head[:, None] - head[None], axis=2).max() for head in heads]
        widths += [math.sqrt(span**2 - 0.2**2) - 0.12 for span in spans]
        a, b, c = mesh.triangles[mesh.face_semantic == names["wall"]].transpose(1, 0, 2)
        normal = np.cross(b - a, c - a)
        upright = normal[np.abs(normal[:, 1]) < 1e-6 * np.linalg.norm(normal, axis=1)]
        angle = np.degrees(np.arctan2(upright[:, 2], upright[:, 0])) % 90
        assert np.ptp(angle) < 1e-3
        angles.add(round(float(angle[0])))
    assert len(angles) == 4 and 0 not in angles
    assert 0.55 < min(widths) < 0.75 and max(widths) < 1.0


def test_stairs_join_two_storeys_of_one_building():
    scene = compile_mesh(generate_scene("stairs", 0), CompileConfig(resolution=128))
    floor = FloorMap(Field([scene]), 0, 0.2, RADIUS + MARGIN)
    assert len(floor.levels) == 2
    areas = [storey.sum().item() * floor.cell**2 for storey in floor.storeys]
    assert min(areas) > 40, areas


def test_angled_floors_have_slanted_walls():
    for seed in range(3):
        mesh = generate_scene("angled", seed)
        names = {name: number for number, name in mesh.semantic_names.items()}
        a, b, c = mesh.triangles[mesh.face_semantic == names["wall"]].transpose(1, 0, 2)
        normal = np.cross(b - a, c - a)
        upright = normal[np.abs(normal[:, 1]) < 1e-6 * np.linalg.norm(normal, axis=1)]
        angle = np.degrees(np.arctan2(upright[:, 2], upright[:, 0])) % 90
        assert len(np.unique(angle.round(1))) >= 3


def test_shops_and_halls_have_rows_of_shelves_between_aisles():
    for family, span in (("shop", 6), ("hall", 4)):
        mesh = generate_scene(family, 1)
        names = {name: number for number, name in mesh.semantic_names.items()}
        shelves = mesh.vertices[mesh.faces[mesh.face_semantic == names["shelf"]]]
        assert min(np.ptp(shelves[:, :, axis]) for axis in (0, 2)) > span
        assert 1.0 < shelves[:, :, 1].max() < 3.1


def test_furniture_has_separate_classes():
    names = set(generate_scene("apartment", 0).semantic_names.values())
    assert {"wall", "floor", "ceiling", "door_frame"} <= names
    assert len(names & {"table", "chair", "sofa", "bed", "shelf", "cabinet", "desk", "plant", "lamp"}) >= 4
    assert {"gallery", "pillar", "plant", "railing"} <= set(generate_scene("atrium", 1).semantic_names.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_seeds_differ_in_layout_and_size(family):
    meshes = [generate_scene(family, seed) for seed in range(6)]
    extents = np.array([m.bounds[1, [0, 2]] - m.bounds[0, [0, 2]] for m in meshes])
    assert extents.std(axis=0).min() > 0.5
    assert len({m.source_hash for m in meshes}) == 6
    assert len({len(m.faces) for m in meshes}) >= 4


def test_rooms_cover_the_specified_floor_sizes():
    areas = []
    for seed in range(24):
        size = np.diff(generate_scene("rooms", seed).bounds, axis=0)[0]
        areas.append(size[0] * size[2])
    assert min(areas) < 180
    assert max(areas) > 400
    assert min(areas) > 95
    assert max(areas) < 640


def test_another_process_makes_the_same_scene():
    code = (
        "from navi_core.scenes import FAMILIES, generate_scene\n"
        "print(*[generate_scene(f, 5).source_hash for f in FAMILIES])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONHASHSEED": "123", "PYTHONPATH": str(ROOT), "PATH": "", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == [generate_scene(family, 5).source_hash for family in FAMILIES]


def test_unknown_families_and_seeds_are_refused():
    with pytest.raises(
        ConfigError, match=r"did you mean 'apartment'\? allowed: angled, apartment, atrium, hall, home, maze"
    ):
        generate_scene("apartement", 0)
    for seed in (-1, 2**31, 1.5, True, "0"):
        with pytest.raises(ConfigError, match="whole number"):
            generate_scene("maze", seed)


def test_scans_have_holes_and_most_of_them_no_ceiling():
    bare, through = 0, []
    for seed in range(1, 7):
        mesh = generate_scene("scan", seed)
        bare += "ceiling" not in mesh.semantic_names.values()
        scene = compile_mesh(mesh, CompileConfig(resolution=64))
        field = Field([scene])
        floor = FloorMap(field, 0, 0.1, 0.2)
        assert scene_verdict(field, 0).verdict == "PASS"
        assert floor.area > 0.5 * np.prod(np.diff(mesh.bounds, axis=0)[0, [0, 2]])
        # Level rays to all sides from where a drone may be: those that meet nothing leave through a hole.
        where = floor.corner + (np.argwhere(floor.free)[::97] + 0.5) * floor.cell
        angle = np.arange(16) * math.pi / 8
        rays = torch.from_numpy(np.stack([np.sin(angle), 0 * angle, np.cos(angle)], axis=1).astype(np.float32))
        position = torch.from_numpy(where.astype(np.float32))
        depth = field.cast_rays(
            position, rays.expand(len(position), 16, 3), torch.zeros(len(position)).int(), 60.0
        ).depth
        through.append(float((depth >= 60.0).float().mean()))
    assert 2 <= bare <= 5
    assert 0.005 < np.median(through) < 0.2 and min(through) > 0.0


def test_floor_of_a_scan_has_no_duplicate_triangles():
    mesh = generate_scene("scan", 4)
    number = next(index for index, name in mesh.semantic_names.items() if name == "floor")
    floor = mesh.vertices[mesh.faces[mesh.face_semantic == number]].reshape(-1, 9)
    assert len(np.unique(floor, axis=0)) == len(floor) < 200


def test_ball_cut_removes_only_its_disc_of_the_wall():
    wall = np.array([[[0, 0, 0], [4, 0, 0], [4, 4, 0]], [[0, 0, 0], [4, 4, 0], [0, 4, 0]]], float)
    far = wall + np.array([0.0, 0.0, 2.0])
    left, named = _without_ball(np.concatenate([wall, far]), np.array([0, 0, 1, 1]), np.array([2.0, 2.0, 0.1]), 0.8)
    normal = np.cross(left[:, 1] - left[:, 0], left[:, 2] - left[:, 0]) / 2
    # Halving keeps the winding; of the nearer wall a disc of radius √(0.8² − 0.1²) is gone, but for its ragged rim.
    assert (normal[:, 2] > 0).all() and np.abs(normal[:, :2]).max() < 1e-12
    assert normal[named == 0, 2].sum() == pytest.approx(16 - math.pi * 0.63, rel=0.02)
    assert normal[named == 1, 2].sum() == pytest.approx(16) and (named == 1).sum() == 2


def test_triangles_cut_at_a_ball_keep_their_semantics():
    wall = np.array([[[0, 0, 0], [4, 0, 0], [4, 4, 0]], [[0, 0, 0], [4, 4, 0], [0, 4, 0]]], float)
    both = np.concatenate([wall, wall[..., [2, 1, 0]]])
    left, named = _without_ball(both, np.array([0, 0, 1, 1]), np.array([0.5, 2.0, 0.5]), 1.0)
    assert len(left) > 100 and (np.ptp(left[..., 2], axis=1)[named == 0] == 0.0).all()
    assert (np.ptp(left[..., 0], axis=1)[named == 1] == 0.0).all()
