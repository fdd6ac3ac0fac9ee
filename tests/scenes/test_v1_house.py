"""The furnished house in version 1: ours, sampled from its mesh, says what the independent writer's file says."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.kernels import TriangleBVH
from navi_core.scenes import compile_mesh, load_gmdag, read_mesh
from navi_core.scenes.octree import v1_distance_at
from navi_core.world import Field


@pytest.fixture(scope="module")
def houses(real_scenes: Path, tmp_path_factory):
    """The house as triangles, as our version 1, and as the independent writer's, all at 256."""
    exact = compile_mesh(read_mesh(real_scenes / "small_house.glb"), CompileConfig(resolution=256))
    ours = load_gmdag(exact.save(tmp_path_factory.mktemp("v1") / "house.gmdag", version=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return exact, ours, load_gmdag(real_scenes / "small_house_256_v1.gmdag")


def test_both_writers_put_the_house_into_the_same_cube(houses):
    exact, ours, theirs = houses
    assert exact.voxel_size == ours.voxel_size == theirs.voxel_size
    np.testing.assert_allclose(ours.bounds, theirs.bounds, atol=1e-6)
    np.testing.assert_allclose(ours.mesh_bounds, theirs.mesh_bounds, atol=0.01)


def test_both_writers_store_the_same_distance_at_voxel_corners(houses):
    exact, ours, theirs = houses
    rng = np.random.default_rng(0)
    corners = exact.triangles.reshape(-1, 3)
    points = corners[rng.integers(len(corners), size=3000)] + rng.normal(size=(3000, 3)) * 0.5 * exact.voxel_size
    mine, my_size, _ = v1_distance_at(ours.nodes, 256, ours.bounds[0], ours.voxel_size, points)
    other, other_size, _ = v1_distance_at(theirs.nodes, 256, theirs.bounds[0], theirs.voxel_size, points)
    both = (my_size == 1) & (other_size == 1) & np.isfinite(mine) & np.isfinite(other)
    assert both.mean() > 0.5
    difference = np.abs(mine - other)[both] / exact.voxel_size
    assert np.quantile(difference, 0.95) < 0.002
    assert difference.max() < 0.5
    # What differs is theirs: ours is exact to fp16.
    cell = np.floor((points - ours.bounds[0]) / ours.voxel_size)
    true, _ = TriangleBVH(exact.triangles).closest(ours.bounds[0] + cell * ours.voxel_size)
    fine = (my_size == 1) & np.isfinite(mine)
    np.testing.assert_allclose(mine[fine], true[fine], rtol=1e-3, atol=1e-3 * exact.voxel_size)


def test_rays_through_either_file_end_alike_and_near_the_triangles(houses):
    exact, ours, theirs = houses
    rng = np.random.default_rng(1)
    low, high = exact.mesh_bounds
    start = rng.uniform(low + 0.5, high - 0.5, (200, 3))
    ends = TriangleBVH(exact.triangles)
    origins = torch.from_numpy(start[ends.closest(start)[0] > 0.2][:30]).float()
    rays = rng.normal(size=(100, 3))
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    field = Field([exact, ours, theirs], tracer="numba", threads=1)
    depth, valid = [], []
    for number in range(3):
        rows = torch.full((len(origins),), number, dtype=torch.int32)
        hits = field.cast_rays(origins, torch.from_numpy(rays).float(), rows, 40.0)
        depth.append(hits.depth.numpy() / exact.voxel_size)
        valid.append(hits.valid.numpy())
    for number in (1, 2):
        # Rays within half a voxel of the rim of an open sheet may pass: version 1 knows corners, not rims.
        assert (valid[0] & ~valid[number]).mean() < 0.005
        place = (origins.numpy()[:, None] + exact.voxel_size * depth[number][:, :, None] * rays)[valid[number]]
        off = ends.closest(place)[0] / exact.voxel_size
        # A hit lies in a voxel whose corner is at most half a voxel from the surface.
        assert np.median(off) < 1
        assert off.max() < 0.5 + np.sqrt(3)
        assert np.median(np.abs(depth[0] - depth[number])[valid[0] & valid[number]]) < 1
    assert (valid[1] != valid[2]).mean() < 0.001
    assert np.quantile(np.abs(depth[1] - depth[2])[valid[1] & valid[2]], 0.99) < 0.1
