"""Sheets in one plane, each cut into triangles of its own: the lowest triangle names the hit, whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.kernels.brute import cast_brute, cast_brute_triangle
from navi_core.kernels.native import find_compiler
from navi_core.scenes import compile_mesh, mesh_from_arrays
from navi_core.world import Field
from tests.conftest import box_triangles

TRACERS = ["numba"] + (["native", "cuda"] if find_compiler() else [])
NAMES = {1: "surface"} | {number: f"sheet {number}" for number in (7, 8, 9, 10)}
ROWS, RAYS = 96, 64


def cut(corner: np.ndarray, u: np.ndarray, v: np.ndarray, cells: int, rng: np.random.Generator) -> np.ndarray:
    """Return the triangles of a parallelogram, cut along a grid whose inner points are moved at random."""
    place = np.stack(np.meshgrid(*[np.linspace(0, 1, cells + 1)] * 2, indexing="ij"), axis=2)
    place[1:-1, 1:-1] += rng.uniform(-0.3, 0.3, (cells - 1, cells - 1, 2)) / cells
    point = corner + place[..., :1] * u + place[..., 1:] * v
    a, b, c, d = point[:-1, :-1], point[1:, :-1], point[1:, 1:], point[:-1, 1:]
    return np.concatenate([np.stack(t, axis=2).reshape(-1, 3, 3) for t in ((a, b, c), (a, c, d))])


@pytest.mark.parametrize("tilted", [False, True])
@pytest.mark.parametrize("size", [4.0, 60.0])
def test_the_lowest_of_coincident_faces_names_the_hit_in_every_batch(size: float, tilted: bool) -> None:
    rng = np.random.default_rng(3)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0] if tilted else np.eye(3)
    u, v, corner = (turn @ np.array(x) * size for x in ((1, 0, 0), (0, 1, 0), (-0.5, -0.5, 0.31)))
    sheets = [cut(corner, u, v, cells, rng) for cells in (7, 1, 5, 2)]
    triangles = np.concatenate([box_triangles((-size,) * 3, (size,) * 3), *sheets])
    ids = np.repeat([1, 10, 9, 8, 7], [12, *map(len, sheets)])
    order = rng.permutation(len(ids))
    triangles, ids = triangles[order], ids[order]
    loose = np.arange(3 * len(ids)).reshape(-1, 3)
    mesh = mesh_from_arrays("sheets", triangles.reshape(-1, 3), loose, ids, NAMES)
    scene = compile_mesh(mesh, CompileConfig(resolution=512))
    origins = rng.uniform(-0.9 * size, 0.9 * size, (ROWS, 3)).astype(np.float32)
    aim = corner + rng.uniform(0.02, 0.98, (ROWS, RAYS, 1)) * u + rng.uniform(0.02, 0.98, (ROWS, RAYS, 1)) * v
    rays = aim - origins[:, None]
    rays = (rays / np.linalg.norm(rays, axis=2, keepdims=True)).astype(np.float32)
    steep = np.abs(rays @ turn[:, 2]) > 0.03  # along the sheets, rounding tells nearer from farther
    every = np.repeat(origins, RAYS, axis=0).astype(np.float64), rays.reshape(-1, 3).astype(np.float64)
    corners = scene.triangles.astype(np.float64)
    first = cast_brute(corners, *every)
    expected = ids[cast_brute_triangle(corners, *every, first, 2e-5 * size)].reshape(ROWS, RAYS)
    start, ray, rows = torch.from_numpy(origins), torch.from_numpy(rays), torch.zeros(ROWS, dtype=torch.int32)
    mixed = rng.permutation(RAYS)
    for tracer in TRACERS:
        field = Field([scene], tracer=tracer, vocabulary={name: number for number, name in NAMES.items()})
        hits = field.cast_rays(start, ray, rows, 1000.0)
        assert (hits.semantic.numpy() != expected)[steep].mean() <= 0.005, tracer
        again = field.cast_rays(start, ray[:, mixed].contiguous(), rows, 1000.0)
        assert torch.equal(again.depth, hits.depth[:, mixed]) and torch.equal(again.semantic, hits.semantic[:, mixed])
        for row, one in zip(range(0, ROWS, 5), range(0, RAYS, 3), strict=False):
            alone = field.cast_rays(start[row : row + 1], ray[row : row + 1, one : one + 1], rows[:1], 1000.0)
            assert alone.depth[0, 0] == hits.depth[row, one] and alone.semantic[0, 0] == hits.semantic[row, one]
