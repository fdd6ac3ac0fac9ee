"""Rays through version 1 octrees that begin exactly on voxel boundaries and barely lean over them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.kernels.native.library import find_compiler
from navi_core.scenes import Scene, compile_mesh, load_gmdag
from navi_core.world import Field
from tests.conftest import box_triangles, mesh_of

LOW, HIGH = np.array([-2.0, 0.0, -2.0]), np.array([2.0, 2.5, 2.0])
TRACERS = ["numba"] + (["native", "cuda"] if find_compiler() else [])
LEANS = (0.0, -0.0, 1e-30, 1e-17, 6e-17, 1e-12, 1e-8, 1e-6)


@pytest.fixture(scope="module")
def octree(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The closed box of the suite as a version 1 file."""
    file = tmp_path_factory.mktemp("v1") / "box.gmdag"
    compile_mesh(mesh_of(box_triangles(LOW, HIGH)), CompileConfig(resolution=128)).save(file, version=1)
    return load_gmdag(file)


def leaning() -> np.ndarray:
    """Return unit vectors along the axes and the diagonals of their planes, leaning by next to nothing."""
    rays = []
    for axis in range(3):
        for sign in (1.0, -1.0):
            for lean in LEANS:
                for one, other in ((-1, -1), (-1, 1), (1, -1), (1, 1), (0, -1), (-1, 0)):
                    ray = np.full(3, sign)
                    ray[(axis + 1) % 3], ray[(axis + 2) % 3] = one * lean, other * lean
                    rays.append(ray)
                    diagonal = np.array(ray)
                    diagonal[(axis + 1) % 3] = 1.0
                    rays.append(diagonal)
    found = np.array(rays)
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("tracer", TRACERS)
def test_leaning_boundary_rays_hit_the_wall_ahead(octree: Scene, tracer: str) -> None:
    rays = leaning()
    rng = np.random.default_rng(0)
    low, voxel = np.asarray(octree.bounds[0]), octree.voxel_size
    corners = np.arange(octree.resolution + 1)[:, None] * voxel + low
    inner = [c[(c > a + 3 * voxel) & (c < b - 3 * voxel)] for c, a, b in zip(corners.T, LOW, HIGH, strict=True)]
    origins = np.stack([rng.choice(axis, 300) for axis in inner], axis=1).astype(np.float32)
    origins[100:200, 0] += np.float32(0.4 * voxel)
    origins[200:, :2] += np.float32(0.3 * voxel)
    origins[0] = 0.0, 1.0, 0.0
    scene = torch.zeros(len(origins), dtype=torch.int32)
    field = Field([octree], tracer=tracer)
    hits = field.cast_rays(torch.from_numpy(origins), torch.from_numpy(rays), scene, 50.0)
    with np.errstate(divide="ignore"):
        ahead = np.where(rays > 0, HIGH - origins[:, None], LOW - origins[:, None]) / rays
    truth = np.where(rays == 0, np.inf, ahead).min(axis=2)
    assert hits.valid.all()
    assert np.abs(hits.depth.numpy() - truth).max() <= 2.0 * voxel
