"""Sheets in one plane, each cut into triangles of its own: the lowest triangle names the hit, whatever the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from navi_core.config import CompileConfig
from navi_core.kernels.native.library import find_compiler
from navi_core.kernels.rays.brute import cast_brute, cast_brute_triangle
from navi_core.kernels.rays.tracer import LANES, NativeTracer
from navi_core.scenes import compile_mesh, mesh_from_arrays
from navi_core.world import Field
from tests.conftest import box_triangles

TRACERS = ["numba"] + (["native", "cuda"] if find_compiler() else [])
NAMES = {1: "surface"} | {number: f"sheet {number}" for number in (7, 8, 9, 10)}
CHAIN = {1: "surface"} | {number: f"sheet {number}" for number in range(6, 11)}
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
def test_lowest_coincident_face_names_the_hit_in_every_batch(size: float, tilted: bool) -> None:
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


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("lanes", LANES[1:])
def test_chained_ties_name_a_face_within_a_tie_of_the_first(lanes: int) -> None:
    """In any order of hits the nearest face counts, and the lowest index among faces within a tie of it."""
    rng = np.random.default_rng(5)
    cells = 6
    plan = cut(np.zeros(3), np.array([2.0, 0.0, 0.0]), np.array([0.0, 2.0, 0.0]), cells, rng)
    room = box_triangles((-1, -1, -1), (3, 3, 3))

    def stack(gap: float) -> tuple[np.ndarray, np.ndarray]:
        sheets = [plan + np.array([0.0, 0.0, number * gap]) for number in range(5)]
        triangles = np.concatenate([room, *sheets])
        return triangles, np.concatenate([np.full(12, 1), np.repeat([6, 7, 8, 9, 10], len(plan))])

    def field_of(gap: float, order: np.ndarray) -> Field:
        triangles, ids = (part[order] for part in stack(gap))
        loose = np.arange(3 * len(ids)).reshape(-1, 3)
        mesh = mesh_from_arrays("chain", triangles.reshape(-1, 3), loose, ids, CHAIN)
        scene = compile_mesh(mesh, CompileConfig(resolution=128))
        return Field([scene], tracer="native", threads=1, vocabulary={name: number for number, name in CHAIN.items()})

    order = rng.permutation(12 + 5 * len(plan))
    tie = float(field_of(1e-3, order).packed.hierarchy[6][0, 0])
    field = field_of(0.7 * tie, order)
    field._tracer = NativeTracer(field.packed, 1, lanes)
    number = np.empty(len(order), int)
    number[order] = np.arange(len(order))
    # Straight up through the middle of each triangle of the plan, and beside it.
    weight = rng.dirichlet([4, 4, 4], (8, len(plan)))
    at = np.einsum("rpc,pcx->rpx", weight, plan) - [0.0, 0.0, 0.5]
    origins = at.reshape(-1, 3).astype(np.float32)
    names = {}
    for batch in (1, 7):  # rays of one origin, all alike
        rays = np.tile(np.float32([0.0, 0.0, 1.0]), (batch, 1))
        hits = field.cast_rays(
            torch.from_numpy(origins), torch.from_numpy(rays), torch.zeros(len(origins), dtype=torch.int32), 9.0
        )
        names[batch] = hits.semantic.numpy()
        assert np.allclose(hits.depth, 0.5, atol=1e-6)
    piece = np.tile(np.arange(len(plan)), 8)
    near = np.stack([number[12 + sheet * len(plan) + piece] for sheet in range(2)])
    assert np.array_equal(names[1][:, 0], 6 + near.argmin(axis=0))
    assert (names[7] == names[1]).all()
