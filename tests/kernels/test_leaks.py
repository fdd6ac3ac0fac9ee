"""No ray leaves a closed surface, passes a wall, or is stopped early by more than a voxel: analytic scenes.

The small version is of the default suite; the ten million rays are marked slow:
`pytest -m slow tests/kernels/test_leaks.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.kernels.native.library import find_compiler
from navi_core.scenes import Scene, compile_mesh
from navi_core.world import Field
from tests.conftest import box_triangles, mesh_of

RESOLUTIONS = (64, 256, 1024)
SIZES = (1.0, 8.0, 60.0)
RAYS = 64
Shape = Callable[[float, int], tuple[np.ndarray, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]]]
"""(size, resolution) → triangles, and (origins, directions) → (exact distance, sure): `sure` leaves out hits within
0.01 voxel of an edge and rays in the plane of a face."""


def voxel_of(size: float, resolution: int) -> float:
    """Return the voxel of a mesh of this extent: its cube is padded by a metre all round."""
    return (size + 2.0) / resolution


def inside_box(low: np.ndarray, high: np.ndarray, voxel: float) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    def exact(o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(divide="ignore"):
            t = np.where(d == 0, np.inf, np.where(d > 0, high - o, low - o) / d)
        first = np.sort(t, axis=-1)
        return first[..., 0], (first[..., 1] - first[..., 0]) > 0.01 * voxel

    return exact


def box(size: float, resolution: int):
    low, high = np.array([-0.5, -0.2, -0.5]) * size, np.array([0.5, 0.3, 0.5]) * size
    return box_triangles(low, high), inside_box(low, high, voxel_of(size, resolution))


def slab(size: float, resolution: int):
    """A wall of one voxel in a box: its triangles and the first of wall and box."""
    low, high = np.array([-0.5, -0.2, -0.5]) * size, np.array([0.5, 0.3, 0.5]) * size
    voxel = voxel_of(size, resolution)
    wall = np.array([-0.31 * size, low[1], low[2]]), np.array([-0.31 * size + voxel, high[1], high[2]])
    outer = inside_box(low, high, voxel)

    def exact(o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t, sure = outer(o, d)
        face = np.where(o[..., 0] < wall[0][0], wall[0][0], wall[1][0])
        with np.errstate(divide="ignore", invalid="ignore"):
            to = (face - o[..., 0]) / d[..., 0]
        ahead = np.isfinite(to) & (to > 0)
        to = np.where(ahead, to, np.inf)
        within = (o[..., 0] > wall[0][0] - 1e-3 * voxel) & (o[..., 0] < wall[1][0] + 1e-3 * voxel)
        return np.minimum(t, to), sure & ~within & (np.abs(to - t) > 0.01 * voxel)

    return np.concatenate([box_triangles(low, high), box_triangles(*wall)]), exact


def sheet(size: float, resolution: int):
    """A sheet of no thickness that cuts a box in two."""
    low, high = np.array([-0.5, -0.2, -0.5]) * size, np.array([0.5, 0.3, 0.5]) * size
    z = 0.137 * size
    corner = np.array([[low[0], low[1], z], [high[0], low[1], z], [high[0], high[1], z], [low[0], high[1], z]])
    voxel = voxel_of(size, resolution)
    outer = inside_box(low, high, voxel)

    def exact(o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        t, sure = outer(o, d)
        with np.errstate(divide="ignore", invalid="ignore"):
            to = (z - o[..., 2]) / d[..., 2]
        to = np.where(np.isfinite(to) & (to > 0), to, np.inf)
        return np.minimum(t, to), sure & (np.abs(o[..., 2] - z) > 1e-3 * voxel) & (np.abs(to - t) > 0.01 * voxel)

    return np.concatenate([box_triangles(low, high), corner[[[0, 1, 2], [0, 2, 3]]]]), exact


def sphere(size: float, resolution: int):
    """A ball of triangles seen from within: between its inner and outer radius the ray must end."""
    n = 48
    a, e = np.meshgrid(np.arange(2 * n) * np.pi / n, np.linspace(-np.pi / 2, np.pi / 2, n + 1), indexing="ij")
    point = np.stack([np.cos(e) * np.cos(a), np.sin(e), np.cos(e) * np.sin(a)], axis=-1) * size / 2
    right = np.roll(point, -1, axis=0)
    quads = [(point[:, :-1], right[:, :-1], right[:, 1:]), (point[:, :-1], right[:, 1:], point[:, 1:])]
    triangles = np.concatenate([np.stack(q, axis=2).reshape(-1, 3, 3) for q in quads])
    area = np.linalg.norm(np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]), axis=1)
    triangles = triangles[area > 1e-9 * size**2]

    def exact(o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        b, c = (o * d).sum(-1), (o * o).sum(-1) - size**2 / 4
        return np.sqrt(b * b - c) - b, np.ones(b.shape, bool)

    return triangles, exact


def directions_of(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Return (rows, RAYS, 3): along the axes, grazing, along diagonals, and at random."""
    d = rng.normal(size=(rows, RAYS, 3))
    d[:, :6] = np.concatenate([np.eye(3), -np.eye(3)])
    d[:, 6:14] = np.sign(d[:, 6:14])
    d[:, 14:20] *= rng.choice([1.0, 1e-3, 1e-6], (rows, 6, 3))
    d[:, 20:24, 1] = 0.0
    d /= np.linalg.norm(d, axis=2, keepdims=True)
    return d.astype(np.float32)


def leaks(name: str, shape: Shape, size: float, resolution: int, rows: int, tracer: str, early: float) -> int:
    triangles, exact = shape(size, resolution)
    scene: Scene = compile_mesh(mesh_of(triangles, name), CompileConfig(resolution=resolution))
    rng = np.random.default_rng(resolution)
    reach = 0.28 if shape is sphere else 1.0
    low, high = scene.mesh_bounds
    origins = (low + (high - low) * (0.5 + reach * (rng.random((rows, 3)) - 0.5) * 0.998)).astype(np.float32)
    # A third begins on the corners of cells.
    third, cell = rows // 3, scene.voxel_size * 2
    origins[:third] = np.clip(np.round(origins[:third] / cell) * cell, low + 1e-3 * size, high - 1e-3 * size)
    directions = directions_of(rng, rows)
    field = Field([scene], tracer=tracer)
    hits = field.cast_rays(
        torch.from_numpy(origins), torch.from_numpy(directions), torch.zeros(rows, dtype=torch.int32), 4 * size
    )
    truth, sure = exact(origins[:, None].astype(float), directions.astype(float))
    off = (hits.depth.numpy() - truth) / scene.voxel_size
    facets = 0.01 * size / scene.voxel_size if shape is sphere else 0.0  # a ball of facets lies within its sphere
    wrong = ~hits.valid.numpy() | (off > early) | (off < -early - facets)
    return int((wrong & sure).sum())


TRACERS = ["numba", pytest.param("native", marks=pytest.mark.skipif(find_compiler() is None, reason="no compiler"))]
SHAPES: dict[str, Shape] = {"box": box, "slab": slab, "sheet": sheet, "sphere": sphere}


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("name", SHAPES)
def test_no_ray_leaks_or_stops_early(name: str, tracer: str) -> None:
    for size, resolution in zip(SIZES, RESOLUTIONS, strict=True):
        assert leaks(name, SHAPES[name], size, resolution, 300, tracer, 0.02) == 0, (size, resolution)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_ten_million_rays_do_not_leak(name: str) -> None:
    rows = 10_000_000 // (len(SHAPES) * len(SIZES) * len(RESOLUTIONS) * RAYS) + 1
    for size in SIZES:
        for resolution in RESOLUTIONS:
            for tracer in ("native", "numba", "cuda") if find_compiler() else ("numba",):
                assert leaks(name, SHAPES[name], size, resolution, rows, tracer, 1.0) == 0, (tracer, size, resolution)
