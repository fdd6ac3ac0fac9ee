"""The runtime structure of a scene: distance to skip empty space, exact triangles at surfaces.

A coarse grid of at most 64³ cells covers the scene's cube. An empty cell knows, for each of the
eight ray octants, the edge of the largest empty cube that starts at it. A surface cell holds a list
of triangles, or splits into 4³ subcells (twice at most), so that lists stay short. Coordinates are
voxels of the scene: the cube is [0, resolution]³.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.geometry import SLIVER_RATIO, triangle_overlaps_box

__all__ = [
    "COARSE_CELLS",
    "LIST_DILATION",
    "SPLIT",
    "SurfaceTree",
    "build_surface_tree",
    "empty_cubes",
    "triangle_planes",
]

COARSE_CELLS = 64
"""Cells along an edge of the coarse grid (fewer where the resolution is smaller)."""
SPLIT = 4
"""A split cell has SPLIT³ subcells."""
LIST_DILATION = 0.02
"""A list holds every triangle within this distance of its cell [voxel], so that boundaries cannot leak."""
_MAX_SPLITS = 2
_MAX_CELLS = 1 << 30

Int32 = npt.NDArray[np.int32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SurfaceTree:
    """Cells and triangle lists of one scene.

    Attributes:
        cells: Coarse cells per edge, G.
        grid: (G³,) int32, x slowest: record of a surface cell, −1 for an empty one.
        records: (N, 2) int32: (start, count) of a list in `items`; count −1: start is the first of
            SPLIT³ records of the subcells, x slowest; count 0: an empty subcell.
        items: (M,) int32 triangle indices, ascending within a list.
    """

    cells: int
    grid: Int32
    records: Int32
    items: Int32

    @property
    def nbytes(self) -> int:
        """Size of the arrays [bytes]."""
        return self.grid.nbytes + self.records.nbytes + self.items.nbytes


@numba.njit(cache=True, error_model="numpy")
def _coarse_lists(triangles: Float64, cells: int, edge: float, cell: Int32, item: Int32) -> int:
    """Write every (cell, triangle) overlap; return how many there are, also beyond the arrays' length."""
    v = np.zeros((3, 3))
    lo = np.zeros(3, np.int64)
    hi = np.zeros(3, np.int64)
    half = 0.5 * edge + LIST_DILATION
    n = 0
    for f in range(triangles.shape[0]):
        t = triangles[f]
        for a in range(3):
            low = (min(t[0, a], t[1, a], t[2, a]) - LIST_DILATION) / edge
            high = (max(t[0, a], t[1, a], t[2, a]) + LIST_DILATION) / edge
            lo[a] = max(math.floor(low), 0)
            hi[a] = min(math.floor(high), cells - 1)
        for x in range(lo[0], hi[0] + 1):
            for y in range(lo[1], hi[1] + 1):
                for z in range(lo[2], hi[2] + 1):
                    if triangle_overlaps_box(
                        t, (x + 0.5) * edge, (y + 0.5) * edge, (z + 0.5) * edge, half, half, half, v
                    ):
                        if n < cell.shape[0]:
                            cell[n] = (x * cells + y) * cells + z
                            item[n] = f
                        n += 1
    return n


@numba.njit(cache=True, error_model="numpy")
def _split(
    triangles: Float64,
    members: Int32,
    x0: float,
    y0: float,
    z0: float,
    edge: float,
    counts: Int32,
    items: Int32,
    used: int,
) -> int:
    """Distribute a cell's triangles over its SPLIT³ subcells of `edge`; return the new end of `items`."""
    v = np.zeros((3, 3))
    half = 0.5 * edge + LIST_DILATION
    for s in range(SPLIT * SPLIT * SPLIT):
        i, j, k = s // (SPLIT * SPLIT), s // SPLIT % SPLIT, s % SPLIT
        cx, cy, cz = x0 + (i + 0.5) * edge, y0 + (j + 0.5) * edge, z0 + (k + 0.5) * edge
        counts[s] = 0
        for m in range(members.shape[0]):
            if triangle_overlaps_box(triangles[members[m]], cx, cy, cz, half, half, half, v):
                if used < items.shape[0]:
                    items[used] = members[m]
                used += 1
                counts[s] += 1
    return used


@numba.njit(cache=True, error_model="numpy")
def _grow_items(items: Int32, need: int) -> Int32:
    if need <= items.shape[0]:
        return items
    bigger = np.zeros(max(need, 2 * items.shape[0]), np.int32)
    bigger[: items.shape[0]] = items
    return bigger


@numba.njit(cache=True, error_model="numpy")
def _refine(
    triangles: Float64,
    cells: int,
    edge: float,
    cell: Int32,
    start: Int32,
    count: Int32,
    flat: Int32,
    max_leaf: int,
    long_leaf: int,
) -> tuple[Int32, Int32, Int32]:
    """Turn the coarse lists into records, splitting long ones once, and very long ones twice."""
    children = SPLIT * SPLIT * SPLIT
    grid = np.full(cells * cells * cells, -1, np.int32)
    surface = cell.shape[0]
    records = np.zeros((surface + 16 * children, 2), np.int32)
    items = np.zeros(max(16, 2 * flat.shape[0]), np.int32)
    counts = np.zeros(children, np.int32)
    deep = np.zeros(children, np.int32)
    used, next_record = 0, surface
    fine, finest = edge / SPLIT, edge / (SPLIT * SPLIT)
    for c in range(surface):
        grid[cell[c]] = c
        members = flat[start[c] : start[c] + count[c]]
        if count[c] <= max_leaf or fine < 0.25:
            items = _grow_items(items, used + count[c])
            items[used : used + count[c]] = members
            records[c, 0], records[c, 1] = used, count[c]
            used += count[c]
            continue
        x, y, z = cell[c] // (cells * cells), cell[c] // cells % cells, cell[c] % cells
        x0, y0, z0 = x * edge, y * edge, z * edge
        items = _grow_items(items, used + count[c] * children)
        begin = used
        used = _split(triangles, members, x0, y0, z0, fine, counts, items, used)
        if next_record + children > records.shape[0]:
            bigger = np.zeros((2 * records.shape[0] + children, 2), np.int32)
            bigger[: records.shape[0]] = records
            records = bigger
        block = next_record
        next_record += children
        records[c, 0], records[c, 1] = block, -1
        for s in range(children):
            records[block + s, 0], records[block + s, 1] = begin, counts[s]
            if counts[s] > long_leaf and finest >= 0.25:
                i, j, k = s // (SPLIT * SPLIT), s // SPLIT % SPLIT, s % SPLIT
                inner = items[begin : begin + counts[s]].copy()
                items = _grow_items(items, used + counts[s] * children)
                position = used
                used = _split(triangles, inner, x0 + i * fine, y0 + j * fine, z0 + k * fine, finest, deep, items, used)
                if next_record + children > records.shape[0]:
                    bigger = np.zeros((2 * records.shape[0] + children, 2), np.int32)
                    bigger[: records.shape[0]] = records
                    records = bigger
                records[block + s, 0], records[block + s, 1] = next_record, -1
                for q in range(children):
                    records[next_record + q, 0], records[next_record + q, 1] = position, deep[q]
                    position += deep[q]
                next_record += children
            begin += counts[s]
    return grid, records[:next_record].copy(), items[:used].copy()


def build_surface_tree(
    triangles: npt.NDArray[np.floating], lower: npt.ArrayLike, size: float, resolution: int, max_leaf: int = 16
) -> SurfaceTree:
    """Build the cells and lists of a triangle set.

    Args:
        triangles: (F, 3, 3) corners [m], all inside the cube.
        lower: (3,) minimum corner of the cube [m].
        size: Edge of the cube [m].
        resolution: Voxels along an edge; the finest subcell is half a voxel.
        max_leaf: A cell with more triangles is split.
    """
    scaled = np.ascontiguousarray(
        (np.asarray(triangles, np.float64) - np.asarray(lower, np.float64)) * (resolution / size)
    )
    cells = min(COARSE_CELLS, resolution)
    edge = resolution / cells
    cell = np.zeros(4 * len(scaled) + 4096, np.int32)
    item = np.zeros(len(cell), np.int32)
    total = _coarse_lists(scaled, cells, edge, cell, item)
    if total > len(cell):
        cell, item = np.zeros(total, np.int32), np.zeros(total, np.int32)
        _coarse_lists(scaled, cells, edge, cell, item)
    order = np.argsort(cell[:total], kind="stable")  # stable: lists stay ascending by triangle
    occupied, start, count = np.unique(cell[:total][order], return_index=True, return_counts=True)
    grid, records, items = _refine(
        scaled,
        cells,
        edge,
        occupied.astype(np.int32),
        start.astype(np.int32),
        count.astype(np.int32),
        item[:total][order],
        max_leaf,
        4 * max_leaf,
    )
    return SurfaceTree(cells=cells, grid=grid, records=records, items=items)


@numba.njit(cache=True, error_model="numpy")
def _cube_pass(empty: npt.NDArray[np.bool_], n: int, octant: int, cubes: npt.NDArray[np.uint8]) -> None:
    """Dynamic programme over one octant: 1 + the least of the seven forward neighbours."""
    sx = -1 if octant & 1 else 1
    sy = -1 if octant & 2 else 1
    sz = -1 if octant & 4 else 1
    for a in range(n):
        x = n - 1 - a if sx > 0 else a
        for b in range(n):
            y = n - 1 - b if sy > 0 else b
            for c in range(n):
                z = n - 1 - c if sz > 0 else c
                here = (x * n + y) * n + z
                if not empty[here]:
                    continue
                least = 254
                for q in range(1, 8):
                    i = x + (sx if q & 1 else 0)
                    j = y + (sy if q & 2 else 0)
                    k = z + (sz if q & 4 else 0)
                    if 0 <= i < n and 0 <= j < n and 0 <= k < n:
                        least = min(least, int(cubes[octant, (i * n + j) * n + k]))
                    # Outside the scene there is nothing: it does not bound the cube.
                cubes[octant, here] = least + 1


def empty_cubes(grid: Int32, cells: int) -> npt.NDArray[np.uint8]:
    """Return (8, G³) edges of the largest empty cube that starts at each cell and extends into each octant.

    A ray stays in one octant, so its cells lie together. Octant bit a is set where the ray goes towards
    lower coordinates on axis a (x=1, y=2, z=4). A surface cell has 0.
    """
    cubes = np.zeros((8, cells**3), np.uint8)
    empty = grid < 0
    for octant in range(8):
        _cube_pass(empty, cells, octant, cubes)
    return cubes


def triangle_planes(triangles: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Return each triangle as its plane and three inward edge planes, all of unit normal.

    Args:
        triangles: (F, 3, 3) corners in any unit; distances come out in that unit.

    Returns:
        (F, 16) float32 rows (n, −n·a | e, −e·a for the edges ab, bc, ca). A point p of the plane is
        inside where e·p + offset ≥ 0 for all three. A sliver gets a zero normal, which no ray hits.
    """
    corners = np.asarray(triangles, np.float64)
    out = np.zeros((len(corners), 16))
    a, b, c = corners[:, 0], corners[:, 1], corners[:, 2]
    normal = np.cross(b - a, c - a)
    area = np.linalg.norm(normal, axis=1)
    longest = np.max([((b - a) ** 2).sum(1), ((c - b) ** 2).sum(1), ((a - c) ** 2).sum(1)], axis=0)
    good = area > SLIVER_RATIO * longest
    n = normal / np.where(good, area, 1.0)[:, None]
    n[~good] = 0.0
    out[:, 0:3] = n
    out[:, 3] = -(n * a).sum(1)
    for i, (p, q) in enumerate(((a, b), (b, c), (c, a))):
        e = np.cross(n, q - p)
        length = np.linalg.norm(e, axis=1)
        e /= np.where(length > 0, length, 1.0)[:, None]
        out[:, 4 + 4 * i : 7 + 4 * i] = e
        out[:, 7 + 4 * i] = -(e * p).sum(1)
    return out.astype(np.float32)
