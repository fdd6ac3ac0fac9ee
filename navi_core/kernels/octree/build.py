"""Octree build: voxelisation of triangles into the cells that they overlap, level by level.

Coordinates are voxels of the scene: the cube is [0, resolution]³. The children of a cell are numbered
x | y<<1 | z<<2, cells of one level by their Morton key (three bits a level, the octant lowest). All
results are independent of the number of threads: every place an array is written to is counted first.
"""

import math

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.bvh.triangles import triangle_overlaps_box

LIST_DILATION = 0.02
"""Dilation of a cell [voxel]: its list holds every triangle within this distance, so that boundaries cannot leak."""
CLEARANCE_STEPS = 16
"""Resolution of the empty cells' stored distances: steps per voxel (sixteenths)."""
_DESCEND = 64

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
Float64 = npt.NDArray[np.float64]


@numba.njit(cache=True, inline="always")
def _spread(value: int) -> int:
    """Spread the (at most 11) bits of a cell index with two zero bits between them, for Morton keys."""
    value = (value | value << 32) & 0x1F00000000FFFF
    value = (value | value << 16) & 0x1F0000FF0000FF
    value = (value | value << 8) & 0x100F00F00F00F00F
    value = (value | value << 4) & 0x10C30C30C30C30C3
    return (value | value << 2) & 0x1249249249249249


def cell_corners(keys: Int64) -> Int32:
    """Decode Morton keys (N,) to the cells (N, 3) of one level, in cells."""
    corner = np.empty((len(keys), 3), np.int32)
    for axis in range(3):
        value = keys >> axis & 0x1249249249249249
        value = (value | value >> 2) & 0x10C30C30C30C30C3
        value = (value | value >> 4) & 0x100F00F00F00F00F
        value = (value | value >> 8) & 0x1F0000FF0000FF
        value = (value | value >> 16) & 0x1F00000000FFFF
        corner[:, axis] = (value | value >> 32) & 0x1FFFFF
    return corner


@numba.njit(cache=True, error_model="numpy")
def _cells_of(t: Float64, cells: int, edge: float, start: int, cell: Int32, v: Float64, stack: Int32) -> int:  # noqa: C901 (numba kernel: one compiled loop)
    """Voxelise one triangle: count the cells that it overlaps; write their Morton keys from `start` if that is ≥ 0."""
    lo0 = max(math.floor((min(t[0, 0], t[1, 0], t[2, 0]) - LIST_DILATION) / edge), 0)
    lo1 = max(math.floor((min(t[0, 1], t[1, 1], t[2, 1]) - LIST_DILATION) / edge), 0)
    lo2 = max(math.floor((min(t[0, 2], t[1, 2], t[2, 2]) - LIST_DILATION) / edge), 0)
    hi0 = min(math.floor((max(t[0, 0], t[1, 0], t[2, 0]) + LIST_DILATION) / edge), cells - 1)
    hi1 = min(math.floor((max(t[0, 1], t[1, 1], t[2, 1]) + LIST_DILATION) / edge), cells - 1)
    hi2 = min(math.floor((max(t[0, 2], t[1, 2], t[2, 2]) + LIST_DILATION) / edge), cells - 1)
    span = (hi0 - lo0 + 1) * (hi1 - lo1 + 1) * (hi2 - lo2 + 1)
    n = 0
    if span <= _DESCEND:
        half = 0.5 * edge + LIST_DILATION
        for x in range(lo0, hi0 + 1):
            for y in range(lo1, hi1 + 1):
                for z in range(lo2, hi2 + 1):
                    if span == 1 or triangle_overlaps_box(
                        t, (x + 0.5) * edge, (y + 0.5) * edge, (z + 0.5) * edge, half, half, half, v
                    ):
                        if start >= 0:
                            cell[start + n] = _spread(x) | _spread(y) << 1 | _spread(z) << 2
                        n += 1
        return n
    # A large triangle passes few of the cells of its bounds: descend to them instead.
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0, 0, 0, cells
    top = 1
    while top > 0:
        top -= 1
        x, y, z, size = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3]
        if x > hi0 or y > hi1 or z > hi2 or x + size <= lo0 or y + size <= lo1 or z + size <= lo2:
            continue
        half = 0.5 * size * edge
        wide = half + LIST_DILATION
        if not triangle_overlaps_box(t, x * edge + half, y * edge + half, z * edge + half, wide, wide, wide, v):
            continue
        if size == 1:
            if start >= 0:
                cell[start + n] = _spread(x) | _spread(y) << 1 | _spread(z) << 2
            n += 1
            continue
        size >>= 1
        for octant in range(8):
            stack[top, 0] = x + (size if octant & 1 else 0)
            stack[top, 1] = y + (size if octant & 2 else 0)
            stack[top, 2] = z + (size if octant & 4 else 0)
            stack[top, 3] = size
            top += 1
    return n


@numba.njit(cache=True, parallel=True, error_model="numpy")
def _list_cells(triangles: Float64, cells: int, edge: float, start: Int64, count: Int64, cell: Int32) -> None:
    """Voxelise triangles onto a regular grid (CSR, pass 1 or 2): count each one's cells; list them if `start` ≥ 0."""
    block = 256
    for job in numba.prange((triangles.shape[0] + block - 1) // block):
        v, stack = np.zeros((3, 3)), np.zeros((96, 4), np.int32)
        for f in range(job * block, min((job + 1) * block, triangles.shape[0])):
            count[f + 1] = _cells_of(triangles[f], cells, edge, start[f], cell, v, stack)


@numba.njit(cache=True, error_model="numpy")
def _by_cell(start: Int64, cell: Int32, bucket: Int64, items: Int32) -> None:
    """Counting sort of (triangle, cell) pairs by cell, lists ascending; `bucket` becomes the lists' CSR offsets."""
    for i in range(cell.shape[0]):
        bucket[cell[i] + 2] += 1
    for c in range(2, bucket.shape[0]):
        bucket[c] += bucket[c - 1]
    for f in range(start.shape[0] - 1):
        for i in range(start[f], start[f + 1]):
            items[bucket[cell[i] + 1]] = f
            bucket[cell[i] + 1] += 1


def coarse_lists(triangles: Float64, cells: int, edge: float) -> tuple[Int64, Int64, Int32]:
    """Voxelise triangles onto a regular grid: build the triangle list of each overlapped cell (CSR, two passes).

    Args:
        triangles: (F, 3, 3) corners [voxel].
        cells: Cells along an edge, a power of two up to 1024.
        edge: Edge of a cell [voxel].

    Returns:
        (N,) Morton keys of the cells that a triangle meets, ascending; (N + 1,) bounds of their lists;
        (M,) triangles, ascending within a list.
    """
    count = np.zeros(len(triangles) + 1, np.int64)
    _list_cells(triangles, cells, edge, np.full(len(triangles), -1), count, np.zeros(1, np.int32))
    start = np.cumsum(count)
    cell = np.zeros(start[-1], np.int32)
    _list_cells(triangles, cells, edge, start, count, cell)
    bucket = np.zeros(cells**3 + 2, np.int64)
    items = np.zeros(start[-1], np.int32)
    _by_cell(start, cell, bucket, items)
    bounds = bucket[:-1]
    keys = np.flatnonzero(np.diff(bounds))
    return keys, np.append(bounds[keys], bounds[-1]), items


@numba.njit(cache=True, parallel=True, error_model="numpy")
def child_masks(
    triangles: Float64, corner: Int32, edge: float, bounds: Int64, items: Int32, masks: UInt8, count: Int64
) -> None:
    """Voxelise listed triangles into child octants: write each one's octant mask and the children's list lengths.

    Args:
        triangles: (F, 3, 3) corners [voxel].
        corner: (N, 3) cells, in cells of this level.
        edge: Edge of a cell [voxel].
        bounds: (N + 1,) bounds of the cells' lists.
        items: (M,) triangles of the lists.
        masks: (M,) out, bit o set where the triangle meets octant o.
        count: (N, 8) out, length of each child's list.
    """
    quarter = 0.25 * edge
    half = quarter + LIST_DILATION
    for n in numba.prange(corner.shape[0]):
        v = np.zeros((3, 3))
        mx, my, mz = (corner[n, 0] + 0.5) * edge, (corner[n, 1] + 0.5) * edge, (corner[n, 2] + 0.5) * edge
        for i in range(bounds[n], bounds[n + 1]):
            t = triangles[items[i]]
            # By its bounds the triangle may meet the lower (bit 0) and the upper half (bit 1) on each axis.
            sx = (min(t[0, 0], t[1, 0], t[2, 0]) <= mx + LIST_DILATION) + 2 * (
                max(t[0, 0], t[1, 0], t[2, 0]) >= mx - LIST_DILATION
            )
            sy = (min(t[0, 1], t[1, 1], t[2, 1]) <= my + LIST_DILATION) + 2 * (
                max(t[0, 1], t[1, 1], t[2, 1]) >= my - LIST_DILATION
            )
            sz = (min(t[0, 2], t[1, 2], t[2, 2]) <= mz + LIST_DILATION) + 2 * (
                max(t[0, 2], t[1, 2], t[2, 2]) >= mz - LIST_DILATION
            )
            alone = sx != 3 and sy != 3 and sz != 3
            mask = 0
            for o in range(8):
                if not (sx >> (o & 1)) & 1 or not (sy >> (o >> 1 & 1)) & 1 or not (sz >> (o >> 2)) & 1:
                    continue
                # It meets the cell, so it meets the only child that its bounds allow.
                if alone or triangle_overlaps_box(
                    t,
                    mx + (quarter if o & 1 else -quarter),
                    my + (quarter if o & 2 else -quarter),
                    mz + (quarter if o & 4 else -quarter),
                    half,
                    half,
                    half,
                    v,
                ):
                    mask |= 1 << o
                    count[n, o] += 1
            masks[i] = mask


@numba.njit(cache=True, parallel=True, error_model="numpy")
def gather_children(chosen: Int64, bounds: Int64, items: Int32, masks: UInt8, place: Int64, out: Int32) -> None:
    """Gather the triangle lists of the children of the chosen cells (CSR).

    Args:
        chosen: (K,) cells to split.
        bounds: (N + 1,) bounds of the cells' lists.
        items: (M,) triangles of the lists.
        masks: (M,) from `child_masks`.
        place: (K, 8) where each child's list begins.
        out: Lists of the children.
    """
    for k in numba.prange(chosen.shape[0]):
        at = place[k].copy()
        for i in range(bounds[chosen[k]], bounds[chosen[k] + 1]):
            for o in range(8):
                if masks[i] >> o & 1:
                    out[at[o]] = items[i]
                    at[o] += 1


@numba.njit(cache=True, inline="always")
def _gap(a: int, a_size: int, b: int, b_size: int) -> int:
    return max(a - b - b_size, b - a - a_size, 0)


@numba.njit(cache=True, error_model="numpy")
def _nearest_surface(children: Int32, unit: int, x: int, y: int, z: int, size: int, stack: Int64) -> int:
    """Branch-and-bound octree search: squared distance from a box to the nearest surface leaf's box [finest cells²]."""
    best = 12 * unit * unit
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3], stack[0, 4], stack[0, 5] = 0, 0, 0, 0, unit, 0
    top = 1
    while top > 0:
        top -= 1
        if stack[top, 5] >= best:
            continue
        node, nx, ny, nz, half = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3], stack[top, 4] >> 1
        # Nearest octant last, so that it is looked at first.
        near = (
            (1 if 2 * x + size >= 2 * (nx + half) else 0)
            | (2 if 2 * y + size >= 2 * (ny + half) else 0)
            | (4 if 2 * z + size >= 2 * (nz + half) else 0)
        )
        for flip in range(7, -1, -1):
            o = near ^ flip
            child = children[node, o]
            if child == -1:
                continue
            cx = nx + (half if o & 1 else 0)
            cy = ny + (half if o & 2 else 0)
            cz = nz + (half if o & 4 else 0)
            gx, gy, gz = _gap(x, size, cx, half), _gap(y, size, cy, half), _gap(z, size, cz, half)
            d = gx * gx + gy * gy + gz * gz
            if d >= best:
                continue
            if child < 0:
                best = d
                continue
            stack[top, 0], stack[top, 1], stack[top, 2] = child, cx, cy
            stack[top, 3], stack[top, 4], stack[top, 5] = cz, half, d
            top += 1
    return best


@numba.njit(cache=True, parallel=True, error_model="numpy")
def clearances(children: Int32, frame: Int32, steps: int, out: npt.NDArray[np.uint16]) -> None:
    """Compute the octree's distance field: each empty leaf's box distance to the nearest surface leaf, rounded down.

    Args:
        children: (N, 8) octree, root first: index of an inner node, −1 an empty leaf, −2 a surface leaf.
        frame: (N, 4) corner and edge of each inner node, in units of the finest cells.
        steps: Sixteenths of a voxel that such a unit holds.
        out: (N, 8) distance of the empty leaves in sixteenths of a voxel; the others stay 0.
    """
    unit = np.int64(frame[0, 3])
    for n in numba.prange(children.shape[0]):
        stack = np.zeros((128, 6), np.int64)
        half = np.int64(frame[n, 3]) >> 1
        for o in range(8):
            if children[n, o] != -1:
                continue
            d = _nearest_surface(
                children,
                unit,
                frame[n, 0] + (half if o & 1 else 0),
                frame[n, 1] + (half if o & 2 else 0),
                frame[n, 2] + (half if o & 4 else 0),
                half,
                stack,
            ) * (steps * steps)
            # Exact: the squares are whole numbers far below 2⁵³.
            out[n, o] = min(int(math.sqrt(d)), 65535)
