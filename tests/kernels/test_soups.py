"""Soups of triangles that share no vertex: T-junctions, corners one unit in the last place apart, far and tiny."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.kernels.bvh.triangles import closest_distance_squared
from navi_core.kernels.native.library import find_compiler
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


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("away", [3.0, 300.0])
def test_no_ray_leaks_through_a_sheet_of_loose_triangles(away: float, tracer: str) -> None:
    """Rays aim at edges and corners, from distances whose rounding exceeds that of the sheet's coordinates."""
    rng = np.random.default_rng(3)
    x, y = np.meshgrid(np.arange(9.0), np.arange(9.0), indexing="ij")
    corner = (np.stack([x, y, np.zeros((9, 9))], axis=2) + rng.uniform(-0.3, 0.3, (9, 9, 3))).astype(np.float32)
    a, b, c, d = corner[:-1, :-1], corner[1:, :-1], corner[1:, 1:], corner[:-1, 1:]
    sheet = np.concatenate([np.stack(t, axis=2).reshape(-1, 3, 3) for t in ((a, b, c), (a, c, d))])
    sheet = soup(sheet, 300, rng)
    field = Field([compile_mesh(mesh_of(sheet), CompileConfig(resolution=128))], tracer=tracer, threads=1)
    inner = sheet[(np.abs(sheet.mean(axis=1)[:, :2] - 4) < 2.5).all(axis=1)]
    ends = inner[rng.integers(len(inner), size=(60, 64))]
    share = rng.uniform(size=(60, 64, 1)) * (np.arange(64)[:, None] % 4 > 0)
    origins = np.array([4, 4, 0]) + away * rng.uniform([-1, -1, 1], [1, 1, 2], (60, 3)) * rng.choice([-1, 1], (60, 1))
    origins = origins.astype(np.float32)
    rays = ends[:, :, 0] * (1 - share) + ends[:, :, 1] * share - origins[:, None]
    rays = (rays / np.linalg.norm(rays, axis=2, keepdims=True)).astype(np.float32)
    hits = field.cast_rays(torch.from_numpy(origins), torch.from_numpy(rays), torch.zeros(60, dtype=torch.int32), 1e4)
    assert hits.valid.all(), f"{int((~hits.valid).sum())} rays passed"


@pytest.mark.parametrize("tracer", TRACERS)
def test_slivers_count_for_clearance_and_not_for_rays(tracer: str) -> None:
    """A floor crossed by triangles as thin as rounding: rays along them hit the floor, with its semantic id.

    Clearance is that of a search over every triangle; the slivers also rise from the floor.
    """
    rng = np.random.default_rng(11)
    a, b = rng.uniform(-4, 4, (2, 40, 3))
    a[:20, 2] = b[:20, 2] = 0.0
    thin = np.stack([a, b, a + rng.uniform(0.3, 0.7, (40, 1)) * (b - a)], axis=1)
    floor = box_triangles((-5, -5, -1), (5, 5, 0))
    triangles = np.concatenate([thin[:20], floor, thin[20:]]).astype(np.float32).astype(float)
    scene = compile_mesh(mesh_of(triangles), CompileConfig(resolution=64))
    field = Field([scene], tracer=tracer, threads=1)
    assert (field.packed.hierarchy[3] < 0).sum() - (field.packed.hierarchy[3] == -(2**31)).sum() > 25
    aim = a[:20, None] + rng.uniform(0.1, 0.9, (20, 1, 1)) * (b - a)[:20, None]
    aim = aim + rng.uniform(-1e-6, 1e-6, (20, 64, 1)) * (b - a)[:20, None]
    origins = np.float32([0.3, -0.2, 7.0]) * np.ones((20, 1), np.float32)
    rays = aim - origins[:, None]
    rays = torch.from_numpy((rays / np.linalg.norm(rays, axis=2, keepdims=True)).astype(np.float32))
    hits = field.cast_rays(torch.from_numpy(origins), rays, torch.zeros(20, dtype=torch.int32), 100.0)
    assert hits.valid.all()
    points = rng.uniform(-4, 4, (60, 3)).astype(np.float32)
    points[:, 2] = np.abs(points[:, 2])
    near = field.distance(torch.from_numpy(points), torch.zeros(60, dtype=torch.int32)).numpy()
    every = [np.sqrt(min(closest_distance_squared(*p.astype(float), t) for t in triangles)) for p in points]
    assert near == pytest.approx(every, abs=1e-6)
