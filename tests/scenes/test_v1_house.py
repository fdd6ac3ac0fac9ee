"""The furnished house in version 1: ours, sampled from its mesh, says what the independent writer's file says."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.kernels import TriangleBVH
from navi_core.kernels.native.library import find_compiler
from navi_core.scenes import compile_mesh, load_gmdag, read_mesh
from navi_core.world import Field
from tests.scenes.v1_oracle import v1_distance_at


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


def cast(houses, tracer: str):
    """Return origins, directions, depth (3, P, R) [voxel] and valid of rays through the three scenes."""
    exact = houses[0]
    rng = np.random.default_rng(1)
    low, high = exact.mesh_bounds
    start = rng.uniform(low + 0.5, high - 0.5, (300, 3))
    origins = start[TriangleBVH(exact.triangles).closest(start)[0] > 0.2][:60].astype(np.float32)
    rays = rng.normal(size=(100, 3))
    rays = (rays / np.linalg.norm(rays, axis=1, keepdims=True)).astype(np.float32)
    field = Field(list(houses), tracer=tracer, threads=1)
    rows = torch.arange(3, dtype=torch.int32).repeat_interleave(len(origins))
    hits = field.cast_rays(torch.from_numpy(np.tile(origins, (3, 1))), torch.from_numpy(rays), rows, 40.0)
    shape = 3, len(origins), len(rays)
    return origins, rays, hits.depth.numpy().reshape(shape) / exact.voxel_size, hits.valid.numpy().reshape(shape)


def test_rays_through_either_file_end_on_the_triangles_and_alike(houses):
    exact = houses[0]
    origins, rays, depth, valid = cast(houses, "numba")
    ends = TriangleBVH(exact.triangles)
    for number in (1, 2):
        # No ray passes what stops it; a few stop within a voxel of a rim that they miss.
        assert (valid[0] & ~valid[number]).mean() < 0.0005
        assert (~valid[0] & valid[number]).mean() < 0.01
        place = (origins[:, None] + exact.voxel_size * depth[number][:, :, None] * rays)[valid[number]]
        off = ends.closest(place)[0] / exact.voxel_size
        assert np.median(off) < 0.01
        assert np.quantile(off, 0.95) < 0.5
        assert np.quantile(off, 0.999) < 1.0
        assert off.max() < 0.5 + np.sqrt(3)
        wrong = np.abs(depth[0] - depth[number])[valid[0] & valid[number]]
        assert np.median(wrong) < 0.01
        assert np.quantile(wrong, 0.9) < 1.0
    assert (valid[1] != valid[2]).mean() < 0.001
    assert np.quantile(np.abs(depth[1] - depth[2])[valid[1] & valid[2]], 0.99) < 1.0


def test_both_tracers_end_rays_through_the_house_alike(houses):
    if find_compiler() is None:
        pytest.skip("no C++ compiler here")
    _, _, twin, twin_valid = cast(houses, "numba")
    _, _, fast, fast_valid = cast(houses, "native")
    np.testing.assert_array_equal(fast_valid[1:], twin_valid[1:])
    np.testing.assert_allclose(fast[1:], twin[1:], atol=1e-3)
