"""Geometric predicates of triangles for compiler and queries: exact box overlap and closest distance.

All functions are numba-compiled scalars in float64. Slivers are handled as segments: the plane of a
triangle whose height is far below its length is noise, its edges are not.
"""

import math

import numba
import numpy as np
import numpy.typing as npt

SLIVER_RATIO = 1e-7
"""Height over longest edge under which a triangle is treated as its edges."""
_PLANE_SLACK = 0.01
"""Tolerance of a computed plane's position [voxel]; at 2048 voxels rounding is far below."""

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


@numba.njit(cache=True, inline="always", error_model="numpy")
def _axis_separates(ax: float, ay: float, az: float, v: FloatArray, hx: float, hy: float, hz: float) -> bool:
    p0 = ax * v[0, 0] + ay * v[0, 1] + az * v[0, 2]
    p1 = ax * v[1, 0] + ay * v[1, 1] + az * v[1, 2]
    p2 = ax * v[2, 0] + ay * v[2, 1] + az * v[2, 2]
    r = hx * abs(ax) + hy * abs(ay) + hz * abs(az)
    separates: bool = min(p0, p1, p2) > r or max(p0, p1, p2) < -r
    return separates


@numba.njit(cache=True, error_model="numpy")
def triangle_overlaps_box(
    triangle: FloatArray, cx: float, cy: float, cz: float, hx: float, hy: float, hz: float, v: FloatArray
) -> bool:
    """Test whether a triangle overlaps an axis-aligned box (separating axes, Akenine-Möller 2001).

    Args:
        triangle: (3, 3) corners.
        cx: Box centre x (likewise cy, cz).
        cy: Box centre y.
        cz: Box centre z.
        hx: Half extent x (likewise hy, hz).
        hy: Half extent y.
        hz: Half extent z.
        v: (3, 3) scratch, overwritten with the corners relative to the box centre.
    """
    for i in range(3):
        v[i, 0] = triangle[i, 0] - cx
        v[i, 1] = triangle[i, 1] - cy
        v[i, 2] = triangle[i, 2] - cz
    for a in range(3):
        h = hx if a == 0 else (hy if a == 1 else hz)
        if min(v[0, a], v[1, a], v[2, a]) > h or max(v[0, a], v[1, a], v[2, a]) < -h:
            return False
    e0x, e0y, e0z = v[1, 0] - v[0, 0], v[1, 1] - v[0, 1], v[1, 2] - v[0, 2]
    e1x, e1y, e1z = v[2, 0] - v[1, 0], v[2, 1] - v[1, 1], v[2, 2] - v[1, 2]
    nx, ny, nz = e0y * e1z - e0z * e1y, e0z * e1x - e0x * e1z, e0x * e1y - e0y * e1x
    d = nx * v[0, 0] + ny * v[0, 1] + nz * v[0, 2]
    if abs(d) > hx * abs(nx) + hy * abs(ny) + hz * abs(nz):
        return False
    for e in range(3):
        i, j = e, (e + 1) % 3
        ex, ey, ez = v[j, 0] - v[i, 0], v[j, 1] - v[i, 1], v[j, 2] - v[i, 2]
        if _axis_separates(0.0, -ez, ey, v, hx, hy, hz):
            return False
        if _axis_separates(ez, 0.0, -ex, v, hx, hy, hz):
            return False
        if _axis_separates(-ey, ex, 0.0, v, hx, hy, hz):
            return False
    return True


@numba.njit(cache=True, inline="always", error_model="numpy")
def segment_distance_squared(
    px: float, py: float, pz: float, ax: float, ay: float, az: float, bx: float, by: float, bz: float
) -> float:
    """Return the squared distance of point p to segment ab; a may equal b."""
    dx, dy, dz = bx - ax, by - ay, bz - az
    wx, wy, wz = px - ax, py - ay, pz - az
    length = dx * dx + dy * dy + dz * dz
    t = 0.0
    if length > 0.0:
        t = min(max((wx * dx + wy * dy + wz * dz) / length, 0.0), 1.0)
    rx, ry, rz = wx - t * dx, wy - t * dy, wz - t * dz
    return rx * rx + ry * ry + rz * rz


@numba.njit(cache=True, error_model="numpy")
def closest_distance_squared(px: float, py: float, pz: float, t: FloatArray) -> float:
    """Return the squared distance of a point to a triangle.

    Args:
        px: Point x (likewise py, pz).
        py: Point y.
        pz: Point z.
        t: (3, 3) corners.
    """
    ax, ay, az = t[0, 0], t[0, 1], t[0, 2]
    bx, by, bz = t[1, 0], t[1, 1], t[1, 2]
    cx, cy, cz = t[2, 0], t[2, 1], t[2, 2]
    ux, uy, uz = bx - ax, by - ay, bz - az
    vx, vy, vz = cx - ax, cy - ay, cz - az
    nx, ny, nz = uy * vz - uz * vy, uz * vx - ux * vz, ux * vy - uy * vx
    area2 = nx * nx + ny * ny + nz * nz
    longest = max(
        ux * ux + uy * uy + uz * uz,
        vx * vx + vy * vy + vz * vz,
        (bx - cx) * (bx - cx) + (by - cy) * (by - cy) + (bz - cz) * (bz - cz),
    )
    wx, wy, wz = px - ax, py - ay, pz - az
    if area2 > SLIVER_RATIO * SLIVER_RATIO * longest * longest:
        # Barycentric coordinates of the projection (Ericson 2005, 3.4).
        beta = ((wy * vz - wz * vy) * nx + (wz * vx - wx * vz) * ny + (wx * vy - wy * vx) * nz) / area2
        gamma = ((uy * wz - uz * wy) * nx + (uz * wx - ux * wz) * ny + (ux * wy - uy * wx) * nz) / area2
        if beta >= 0.0 and gamma >= 0.0 and beta + gamma <= 1.0:
            h = wx * nx + wy * ny + wz * nz
            squared: float = h * h / area2
            return squared
    return min(
        segment_distance_squared(px, py, pz, ax, ay, az, bx, by, bz),
        segment_distance_squared(px, py, pz, bx, by, bz, cx, cy, cz),
        segment_distance_squared(px, py, pz, cx, cy, cz, ax, ay, az),
    )


@numba.njit(cache=True, error_model="numpy")
def _voxel_keys(triangles: FloatArray, resolution: int, keys: npt.NDArray[np.int64]) -> int:  # noqa: C901 (numba kernel: one compiled loop)
    """Voxelise triangles: write the key of every overlapping (triangle, voxel) pair to `keys`; return their number."""
    v = np.zeros((3, 3))
    n = 0
    cell, lo, hi, normal = np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(3)
    for f in range(triangles.shape[0]):
        t = triangles[f]
        longest = 0.0
        for a in range(3):
            lo[a] = max(math.floor(min(t[0, a], t[1, a], t[2, a])), 0)
            hi[a] = min(math.floor(max(t[0, a], t[1, a], t[2, a])), resolution - 1)
            i, j = (a + 1) % 3, (a + 2) % 3
            normal[a] = (t[1, i] - t[0, i]) * (t[2, j] - t[0, j]) - (t[1, j] - t[0, j]) * (t[2, i] - t[0, i])
            longest = max(longest, abs(t[1, a] - t[0, a]), abs(t[2, a] - t[0, a]))
        # Columns along the axis that the plane is steepest to: in each it passes a few voxels at most.
        k = 0
        for a in range(1, 3):
            if abs(normal[a]) > abs(normal[k]):
                k = a
        i, j = (k + 1) % 3, (k + 2) % 3
        flat = abs(normal[k]) > SLIVER_RATIO * longest * longest
        reach = 0.5 * (abs(normal[i]) + abs(normal[j])) / abs(normal[k]) + _PLANE_SLACK if flat else 0.0
        for p in range(lo[i], hi[i] + 1):
            for q in range(lo[j], hi[j] + 1):
                first, last = lo[k], hi[k]
                if flat:
                    away = normal[i] * (p + 0.5 - t[0, i]) + normal[j] * (q + 0.5 - t[0, j])
                    middle = t[0, k] - away / normal[k]
                    first, last = max(first, math.floor(middle - reach)), min(last, math.floor(middle + reach))
                cell[i], cell[j] = p, q
                for r in range(first, last + 1):
                    cell[k] = r
                    if triangle_overlaps_box(t, cell[0] + 0.5, cell[1] + 0.5, cell[2] + 0.5, 0.5, 0.5, 0.5, v):
                        if n < keys.shape[0]:
                            keys[n] = (cell[0] * resolution + cell[1]) * resolution + cell[2]
                        n += 1
    return n


def surface_voxels(triangles: FloatArray, lower: npt.ArrayLike, voxel: float, resolution: int) -> IntArray:
    """Voxelise a triangle surface: return the voxels that it overlaps.

    Args:
        triangles: (F, 3, 3) corners [m].
        lower: (3,) minimum corner of the grid [m].
        voxel: Edge of a voxel [m].
        resolution: Voxels along an edge.

    Returns:
        (N, 3) int32 voxel indices, unique, sorted by x, then y, then z.
    """
    scaled = (np.asarray(triangles, np.float64) - np.asarray(lower, np.float64)) / voxel
    keys = np.zeros(max(1024, 8 * len(scaled)), np.int64)
    count = _voxel_keys(scaled, resolution, keys)
    if count > len(keys):
        keys = np.zeros(count, np.int64)
        _voxel_keys(scaled, resolution, keys)
    # Sorting and comparing takes a third of the time of `np.unique`, which hashes.
    unique = np.sort(keys[:count])
    unique = unique[np.diff(unique, prepend=-1) > 0]
    return np.stack(np.unravel_index(unique, (resolution,) * 3), axis=1).astype(np.int32)
