"""The runtime structure of a scene: distance to skip empty space, exact triangles at surfaces.

A coarse grid of at most 64³ cells covers the scene's cube. An empty cell knows, for each of the
eight ray octants, the edge of the largest empty cube that starts at it. A surface cell holds a list
of triangles, or splits into 4³ subcells (twice at most), so that lists stay short. Coordinates are
voxels of the scene: the cube is [0, resolution]³.
"""

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.bvh.triangles import SLIVER_RATIO

COARSE_CELLS = 64
"""Cells along an edge of the coarse grid (fewer where the resolution is smaller)."""
SPLIT = 4
"""A split cell has SPLIT³ subcells."""

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class SurfaceTree:
    """Cells and triangle lists of one scene.

    Attributes:
        cells: Coarse cells per edge, G.
        grid: (G³,) int32, x slowest: record of a surface cell, −1 for an empty one; equal cells share one.
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
