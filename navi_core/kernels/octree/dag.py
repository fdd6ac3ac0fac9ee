"""Octree DAG: references between nodes, their validation, and the runtime grid unfolded from them.

At run time a coarse grid of at most 64³ cells covers the scene's cube. An empty cell knows, for each of the eight ray
octants, the edge of the largest empty cube that starts at it. A surface cell holds a list of triangles, or splits into
4³ subcells (twice at most), so that lists stay short. Coordinates are voxels of the scene: the cube is
[0, resolution]³.
"""

from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.bvh.triangles import SLIVER_RATIO

COARSE_CELLS = 64
"""Cells along an edge of the coarse grid (fewer where the resolution is smaller)."""
SPLIT = 4
"""Subdivisions of a split cell along an edge: SPLIT³ subcells."""

UInt32 = npt.NDArray[np.uint32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SurfaceTree:
    """Runtime grid of one scene: coarse cells, subcells and triangle lists, as rays traverse it.

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
        """Memory size of the arrays [bytes]."""
        return self.grid.nbytes + self.records.nbytes + self.items.nbytes


@numba.njit(cache=True, error_model="numpy")
def _cube_pass(empty: npt.NDArray[np.bool_], n: int, octant: int, cubes: npt.NDArray[np.uint8]) -> None:
    """Dynamic programme for the largest empty cubes of one octant: 1 + the least of the seven forward neighbours."""
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
    """Compute the (8, G³) edges of the largest empty cube that starts at each cell and extends into each octant.

    A ray stays in one octant, so its cells lie together. Octant bit a is set where the ray goes towards
    lower coordinates on axis a (x=1, y=2, z=4). A surface cell has 0.
    """
    cubes = np.zeros((8, cells**3), np.uint8)
    empty = grid < 0
    for octant in range(8):
        _cube_pass(empty, cells, octant, cubes)
    return cubes


def triangle_planes(triangles: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Convert triangles to their plane and three inward edge planes, all of unit normal, for ray tests.

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


KIND_SHIFT = 30
"""Bit position of a reference's kind: the two highest bits of a uint32."""
VALUE_MASK = (1 << KIND_SHIFT) - 1
"""Mask of a reference's value, the lower bits: a distance, a list's number, or a row."""
EMPTY, SURFACE, INNER = 0, 1, 2
LEVELS_BELOW = 4
"""Levels below the coarse grid: two splits of 4³ at run time."""


# Octants in Morton order give the subcells of 4³, x slowest, in this order.
_MORTON_4 = np.array(
    [
        (x >> 1 | (y >> 1) << 1 | (z >> 1) << 2) * 8 + (x & 1 | (y & 1) << 1 | (z & 1) << 2)
        for x in range(SPLIT)
        for y in range(SPLIT)
        for z in range(SPLIT)
    ]
)


@numba.njit(cache=True)
def path_counts(children: UInt32) -> Int64:
    """Count the paths from the root to each row (N,) of the DAG; every child stands behind its parents."""
    paths = np.zeros(children.shape[0], np.int64)
    paths[0] = 1
    for n in range(children.shape[0]):
        for o in range(8):
            if children[n, o] >> np.uint32(KIND_SHIFT) == INNER:
                paths[children[n, o] & np.uint32(VALUE_MASK)] += paths[n]
    return paths


@numba.njit(cache=True)
def check_references(children: UInt32, lists: int, depth: int) -> tuple[int, int]:  # noqa: C901 (numba kernel: one compiled loop)
    """Validate the DAG's references: (fault, 8·row + octant) of the first invalid one; fault 0 where all are valid.

    Faults: 1 an unknown kind, 2 a distance with stray bits, 3 a list that does not exist, 4 a row that does
    not exist, 5 a row that does not stand behind its parent (a cycle), 6 a row below the finest level,
    7 a row that nothing refers to.

    Args:
        children: (N, 8) references.
        lists: How many lists there are.
        depth: Inner nodes may have at most this many levels.
    """
    rows = children.shape[0]
    level = np.full(rows, -1, np.int64)
    level[0] = 0
    for n in range(rows):
        if level[n] < 0:
            return 7, 8 * n
        for o in range(8):
            kind = children[n, o] >> np.uint32(KIND_SHIFT)
            value = np.int64(children[n, o] & np.uint32(VALUE_MASK))
            fault = 0
            if kind == EMPTY:
                fault = 2 if value > 65535 else 0
            elif kind == SURFACE:
                fault = 3 if value >= lists else 0
            elif kind != INNER:
                fault = 1
            elif value >= rows:
                fault = 4
            elif value <= n:
                fault = 5
            elif level[n] + 1 >= depth:
                fault = 6
            else:
                level[value] = max(level[value], level[n] + 1)
            if fault:
                return fault, 8 * n + o
    return 0, 0


def unfold(children: UInt32, bounds: Int64, items: Int32, resolution: int) -> SurfaceTree:
    """Unfold a DAG into the coarse grid and records that rays traverse.

    Equal cells share their records, and records share their lists with the DAG: nothing here can grow
    beyond the grid and 64 records for each pair of rows.

    Args:
        children: (N, 8) references, see `Dag`.
        bounds: (L + 1,) bounds of the lists.
        items: (M,) triangles of the lists.
        resolution: Voxels along an edge.
    """
    cells = min(COARSE_CELLS, resolution)
    refs = np.full(1, INNER << KIND_SHIFT, np.uint32)
    size = 1
    while size < cells:
        # (x, y, z) cells of this level become (2x + bit, 2y + bit, 2z + bit) of the next.
        refs = _halve(children, refs).reshape(size, size, size, 2, 2, 2)
        size *= 2
        refs = refs.transpose(0, 5, 1, 4, 2, 3).reshape(-1)
    distinct, record = np.unique(refs, return_inverse=True)
    surface = distinct >> KIND_SHIFT != EMPTY
    number = np.where(surface, np.cumsum(surface) - 1, -1).astype(np.int32)
    grid = number[record.reshape(-1)]
    records = [distinct[surface]]
    first = len(records[0])
    links = []
    while True:
        # One more round: every distinct inner reference gets one block of 4³ records.
        inner, block = np.unique(records[-1][records[-1] >> KIND_SHIFT == INNER], return_inverse=True)
        links.append(first + SPLIT**3 * block.reshape(-1))
        if not len(inner):
            break
        below = _halve(children, _halve(children, inner).reshape(-1)).reshape(len(inner), -1)[:, _MORTON_4]
        records.append(below.reshape(-1))
        first += below.size
    return SurfaceTree(cells, grid, _as_records(records, links, bounds), items)


def _halve(children: UInt32, refs: UInt32) -> UInt32:
    """Subdivide references by one octree level into their (N, 8) children; the eight parts of a leaf are that leaf."""
    inner = refs >> KIND_SHIFT == INNER
    out = np.repeat(refs[:, None], 8, axis=1)
    out[inner] = children[refs[inner] & VALUE_MASK]
    return out


def _as_records(groups: list[UInt32], links: list[Int64], bounds: Int64) -> Int32:
    """Encode octree node references as (start, count) records: triangle list, empty cell, or (first child, −1)."""
    out = np.zeros((sum(len(refs) for refs in groups), 2), np.int32)
    at = 0
    for refs, link in zip(groups, links):
        here = out[at : at + len(refs)]
        kind, value = refs >> KIND_SHIFT, refs & VALUE_MASK
        lists = value[kind == SURFACE]
        here[kind == SURFACE] = np.stack([bounds[lists], bounds[lists + 1] - bounds[lists]], axis=1)
        here[kind == INNER, 0], here[kind == INNER, 1] = link, -1
        at += len(refs)
    return out
