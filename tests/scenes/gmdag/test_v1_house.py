"""The furnished house in version 1: ours, sampled from its mesh, agrees with the independent writer's file."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.kernels import TriangleBVH
from navi_core.scenes import compile_mesh, load_gmdag, read_mesh
from navi_core.world import Field
from tests.kernels.octree.octree_walk import walk_rays
from tests.scenes.gmdag.v1_oracle import v1_distance_at

pytestmark = pytest.mark.slow


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


@pytest.fixture(scope="module")
def rays(houses):
    """Return 60 free origins in the house and 100 directions."""
    exact, rng = houses[0], np.random.default_rng(1)
    low, high = exact.mesh_bounds
    start = rng.uniform(low + 0.5, high - 0.5, (300, 3))
    origins = start[TriangleBVH(exact.triangles).closest(start)[0] > 0.2][:60].astype(np.float32)
    directions = rng.normal(size=(100, 3))
    return origins, (directions / np.linalg.norm(directions, axis=1, keepdims=True)).astype(np.float32)


def cast(scene, rays):
    """Return depth (P, R) [voxel] and valid of rays through a scene's triangles."""
    origins, directions = (torch.from_numpy(part) for part in rays)
    hits = Field([scene], threads=1).cast_rays(origins, directions, torch.zeros(len(origins), dtype=torch.int32), 40.0)
    return hits.depth.numpy() / scene.voxel_size, hits.valid.numpy()


def ends(depth, valid, rays, voxel_size):
    """Return where the rays that hit end [m]."""
    return (rays[0][:, None] + voxel_size * depth[:, :, None] * rays[1])[valid]


def test_triangles_of_either_file_lie_on_the_mesh(houses, rays):
    exact = houses[0]
    depth, valid = cast(exact, rays)
    surface = TriangleBVH(exact.triangles)
    found = [cast(scene, rays) for scene in houses[1:]]
    for other, met in found:
        # Rays that pass what stops them, and rays that stop within a voxel of a rim.
        assert (valid & ~met).mean() < 0.001
        assert (~valid & met).mean() < 0.01
        off = surface.closest(ends(other, met, rays, exact.voxel_size))[0] / exact.voxel_size
        assert np.median(off) < 0.01
        assert np.quantile(off, 0.95) < 0.5
        assert np.quantile(off, 0.99) < 0.55
        assert np.quantile(off, 0.999) < 1.0
        wrong = np.abs(depth - other)[valid & met]
        assert np.median(wrong) < 0.01
        assert np.quantile(wrong, 0.9) < 1.0
    (one, one_valid), (two, two_valid) = found
    assert (one_valid != two_valid).mean() < 0.002
    assert np.quantile(np.abs(one - two)[one_valid & two_valid], 0.99) < 1.0


@pytest.mark.parametrize("which", [1, 2])
def test_triangles_agree_with_the_walk_through_the_octree(houses, rays, which):
    scene = houses[which]
    depth, _, hit = walk_rays(scene, *rays, 40.0)
    walked, (found, valid) = depth / scene.voxel_size, cast(scene, rays)
    # Where the walk ends, triangles are at most half a voxel away (p99; measured 0.24).
    off = TriangleBVH(scene.triangles).closest(ends(walked, hit, rays, scene.voxel_size))[0] / scene.voxel_size
    assert np.quantile(off, 0.99) < 0.5
    assert off.max() < 1.0
    # Both differ where a ray grazes a rim, and no more than the walk from the mesh.
    assert (valid != hit).mean() < 0.005
    difference = np.abs(found - walked)[valid & hit]
    assert np.median(difference) < 0.001
    assert np.quantile(difference, 0.95) < 0.75
    assert (difference > 1.0).mean() < 0.02
    assert len(scene.triangles) < 2_000_000
