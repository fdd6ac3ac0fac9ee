"""Soups of triangles that share no vertex: T-junctions, corners one unit in the last place apart, far and tiny."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.kernels.native import find_compiler
from navi_core.scenes import compile_mesh
from navi_core.world import Field
from tests.conftest import box_triangles, mesh_of

TRACERS = ["numba"] + (["native", "cuda"] if find_compiler() else [])
ROWS, RAYS = 150, 32


def soup(triangles: np.ndarray, cuts: int, rng: np.random.Generator) -> np.ndarray:
    """Cut triangles at random points of their edges, so that neighbours share none; move corners by an ulp."""
    pieces = list(triangles)
    for _ in range(cuts):
        piece = np.roll(pieces.pop(rng.integers(len(pieces))), rng.integers(3), axis=0)
        a, b, c = piece
        middle = a + (b - a) * rng.uniform(0.1, 0.9)
        pieces += [np.array([a, middle, c]), np.array([middle, b, c])]
    corners = np.array(pieces, np.float32)
    up, down = (np.nextafter(corners, np.float32(end)) for end in (np.inf, -np.inf))
    return np.choose(rng.integers(0, 3, corners.shape), [corners, up, down]).astype(np.float64)


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize(("size", "center"), [(8.0, 0.0), (8.0, 1000.0), (0.06, 0.0), (2000.0, 0.0)])
def test_no_ray_leaves_a_box_of_loose_triangles(size: float, center: float, tracer: str) -> None:
    rng = np.random.default_rng(7)
    low, high = np.full(3, center - size / 2), np.full(3, center + size / 2)
    scene = compile_mesh(mesh_of(soup(box_triangles(low, high), 300, rng)), CompileConfig(resolution=512))
    origins = (low + size * rng.uniform(0.05, 0.95, (ROWS, 3))).astype(np.float32)
    pieces = scene.triangles[rng.integers(len(scene.triangles), size=(ROWS, RAYS))].astype(np.float64)
    share = rng.uniform(size=(ROWS, RAYS, 1)) * (np.arange(RAYS)[:, None] % 4 > 0)  # a quarter at the corners
    rays = pieces[:, :, 0] * (1 - share) + pieces[:, :, 1] * share - origins[:, None]
    rays = (rays / np.linalg.norm(rays, axis=2, keepdims=True)).astype(np.float32)
    start, ray, rows = torch.from_numpy(origins), torch.from_numpy(rays), torch.zeros(ROWS, dtype=torch.int32)
    field = Field([scene], tracer=tracer, threads=1)
    hits = field.cast_rays(start, ray, rows, 4.0 * size)
    with np.errstate(divide="ignore"):
        walls = np.where(rays > 0, high - origins[:, None], low - origins[:, None]) / rays.astype(np.float64)
    truth = np.where(rays == 0, np.inf, walls).min(axis=2)
    assert hits.valid.all(), "a ray escaped between triangles"
    assert np.abs(hits.depth.numpy() - truth).max() <= scene.voxel_size
    if tracer != "cuda":  # its depth is rounded to float32, its range is not
        for row in range(0, ROWS, 10):
            one = slice(row, row + 1)
            reach = float(hits.depth[row, 0])
            for share, met in ((1.0, True), (1.0 - 1e-5, False)):
                again = field.cast_rays(start[one], ray[one, :1], rows[:1], reach * share)
                assert bool(again.valid[0, 0]) == met
