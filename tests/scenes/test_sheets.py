"""Sheets without thickness, nearly coincident sheets, slivers, thin slabs: each with rays from both sides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.scenes import compile_mesh, mesh_from_arrays
from navi_core.world import Field
from tests.conftest import box_triangles, mesh_of

RESOLUTION = 64
VOXEL = float(np.float32(10 / RESOLUTION))  # sheets of 8 m, padded by 1 m on each side


def sheet(z: float) -> np.ndarray:
    """A square of 8 × 8 m at height z, two triangles."""
    a, b, c, d = [-4, -4, z], [4, -4, z], [4, 4, z], [-4, 4, z]
    return np.array([[a, b, c], [a, c, d]], float)


def named(*groups: np.ndarray):
    """A mesh of groups of triangles, group k with the semantic id k + 2."""
    corners = np.concatenate(groups)
    ids = np.repeat(np.arange(len(groups)) + 2, [len(group) for group in groups])
    names = {1: "surface"} | {k + 2: f"group {k}" for k in range(len(groups))}
    return mesh_from_arrays("sheets", corners.reshape(-1, 3), np.arange(3 * len(corners)).reshape(-1, 3), ids, names)


def look(scene, side: float, count: int = 2000):
    """Cast rays along −z·side from 2 m away, and return depth [m], what was hit, and where the rays began."""
    rng = np.random.default_rng(7)
    start = np.concatenate([rng.uniform(-3.9, 3.9, (count, 2)), np.full((count, 1), 2.0 * side)], axis=1)
    ray = torch.tensor([[0.0, 0.0, -side]])
    hits = Field([scene]).cast_rays(torch.from_numpy(start).float(), ray, torch.zeros(count, dtype=torch.int32), 50.0)
    assert bool(hits.valid.all()), "a ray passed the sheet"
    return hits.depth.numpy()[:, 0], hits.semantic.numpy()[:, 0], start


@pytest.mark.parametrize("resolution", [16, 64, 512])
@pytest.mark.parametrize("z", [0.0, 0.0781, -0.3])
def test_a_sheet_without_thickness_stops_rays_from_both_sides(resolution, z):
    scene = compile_mesh(mesh_of(sheet(z)), CompileConfig(resolution=resolution))
    for side in (1.0, -1.0):
        depth, _, _ = look(scene, side)
        np.testing.assert_allclose(depth, 2 - side * z, atol=0.01 * scene.voxel_size)


@pytest.mark.parametrize("apart", [0.0, 1e-6])
def test_coincident_sheets_tie_to_the_lowest_from_both_sides(apart):
    scene = compile_mesh(named(sheet(0.0), sheet(apart * VOXEL), sheet(-apart * VOXEL)), CompileConfig(resolution=64))
    for side in (1.0, -1.0):
        depth, semantic, _ = look(scene, side)
        assert (semantic == 2).all()
        np.testing.assert_allclose(depth, 2, atol=0.01 * VOXEL)


@pytest.mark.parametrize("apart", [0.01, 0.5])
def test_distinct_sheets_show_the_nearer_one(apart):
    scene = compile_mesh(named(sheet(0.0), sheet(apart * VOXEL)), CompileConfig(resolution=64))
    for side, seen in ((1.0, 3), (-1.0, 2)):
        depth, semantic, _ = look(scene, side)
        assert (semantic == seen).all()
        np.testing.assert_allclose(depth, 2 - (apart * VOXEL if seen == 3 else 0), atol=0.002 * VOXEL)


def test_sheets_half_a_voxel_apart_keep_rays_between_them():
    scene = compile_mesh(named(sheet(0.0), sheet(0.5 * VOXEL)), CompileConfig(resolution=64))
    rng = np.random.default_rng(0)
    start = np.concatenate([rng.uniform(-2, 2, (3000, 2)), np.full((3000, 1), 0.25 * VOXEL)], axis=1)
    ray = rng.normal(size=(3000, 1, 3))
    ray[:, :, 2] += np.sign(ray[:, :, 2]) * 0.5
    ray /= np.linalg.norm(ray, axis=2, keepdims=True)
    hits = Field([scene]).cast_rays(
        torch.from_numpy(start).float(), torch.from_numpy(ray).float(), torch.zeros(3000, dtype=torch.int32), 50.0
    )
    exact = 0.25 * VOXEL / np.abs(ray[:, 0, 2])
    np.testing.assert_allclose(hits.depth.numpy()[:, 0], exact, atol=0.01 * VOXEL)


@pytest.mark.parametrize("resolution", [64, 256])
def test_a_slab_of_one_voxel_is_met_at_its_nearer_face(resolution):
    voxel = float(np.float32(10 / resolution))
    scene = compile_mesh(mesh_of(box_triangles((-4, -4, 0), (4, 4, voxel))), CompileConfig(resolution=resolution))
    for side, plane in ((1.0, voxel), (-1.0, 0.0)):
        depth, _, _ = look(scene, side)
        np.testing.assert_allclose(depth, 2 - side * plane, atol=0.01 * voxel)


def test_slivers_do_not_change_the_depth():
    fan = [[[-4, -4, 0], [4, -4, 0], [-4 + 8e-7 * k, 4, 0]] for k in range(1, 4)]
    needle = [[[-4, 0, 0.5], [4, 0, 0.5], [0, 1e-8, 0.5]]]
    scene = compile_mesh(named(sheet(0.0), np.array(fan), np.array(needle)), CompileConfig(resolution=64))
    depth, _, start = look(scene, 1.0)
    away = np.abs(start[:, 1]) > 0.01
    np.testing.assert_allclose(depth[away], 2, atol=0.01 * VOXEL)


def test_a_scene_of_one_triangle_is_a_scene():
    one = np.array([[[0, 0, 0], [3, 0, 0], [0, 2, 1]]], float)
    scene = compile_mesh(mesh_of(one), CompileConfig(resolution=16))
    assert scene.dag.stored.surface == 1  # every leaf shares the one list
    field, ray = Field([scene]), torch.tensor([[0.0, 0.0, -1.0]])
    hits = field.cast_rays(torch.tensor([[0.5, 0.5, 3.0]]), ray, torch.zeros(1, dtype=torch.int32), 50.0)
    assert hits.depth.item() == pytest.approx(2.75, abs=1e-5)


def test_a_triangle_from_corner_to_corner_of_the_cube_is_met_everywhere():
    wide = np.array([[[-50, -50, -50], [50, 50, -50], [50, -50, 50]]], float)
    scene = compile_mesh(mesh_of(wide), CompileConfig(resolution=512, padding=0.01))
    rng = np.random.default_rng(1)
    weight = rng.dirichlet(np.ones(3), 5000)
    target = weight @ wide[0]
    normal = np.cross(wide[0, 1] - wide[0, 0], wide[0, 2] - wide[0, 0])
    normal /= np.linalg.norm(normal)
    reach = rng.uniform(0.05, 20, 5000) * np.sign(rng.normal(size=5000))
    start = target + reach[:, None] * normal
    ray = torch.from_numpy(-np.sign(reach)[:, None, None] * normal).float()
    hits = Field([scene]).cast_rays(torch.from_numpy(start).float(), ray, torch.zeros(5000, dtype=torch.int32), 100.0)
    assert bool(hits.valid.all())
    np.testing.assert_allclose(hits.depth.numpy()[:, 0], np.abs(reach), atol=0.01 * scene.voxel_size)
