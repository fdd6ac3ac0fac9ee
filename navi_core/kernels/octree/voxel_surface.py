"""Surface reconstruction: triangles in voxels from the unsigned distances at their corners (version 1 octrees).

A corner's unsigned distance d excludes any surface nearer than d and places some surface at d. Eight distances that fit
one plane are taken for that plane, cut by the voxel. Squared distances need no sign for the fit: those to a plane are
(n·u − k)², of which sums and differences over the corners give n and k. Where no plane fits (edges, thin sheets, rods),
the surface lies outside all eight empty balls. The triangles then follow the borders between the corners' Voronoi
regions, weighted by the distances: the middle of that gap.
"""

import math

import numba
import numpy as np
import numpy.typing as npt

FP16_SLACK = 0.002
"""Reduction of the empty balls' radii [voxel]: fp16 rounds distances below two voxels by at most half of it."""
PLANE_TOLERANCE = 0.02
"""Tolerance of a plane fit: largest residual of corner distances [voxel] and of the normal's length."""
AMBIGUOUS = 0.004
"""Tolerance for ambiguous axes of a fit: across the middle of a voxel, all corners are at half a voxel."""
FLAT_NORMAL = 0.01
"""Largest deficit of a normal's squared length: above it the surface cuts all four edges of an axis; fp16: less."""
OVERLAP = 0.02
"""Growth of a plane's piece beyond its voxel [voxel], so that no ray passes between two that differ a little."""
PARTS = 3
"""Samples along an edge of a voxel in the gap between the balls."""
MARGIN = 0.03
"""Depth that faces of the gap may lie in a ball [voxel]: the gap at a face's centre is not the widest of the face."""

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]


@numba.njit(cache=True, inline="always", error_model="numpy")
def _edge_start(edge: int, stride: int) -> int:
    """Return the index of the lower corner of one of the four edges along the axis with that stride (1, 2 or 4)."""
    return (edge & (stride - 1)) | ((edge & ~(stride - 1)) << 1)


@numba.njit(cache=True, inline="always", error_model="numpy")
def _with_sign(value: float, sign: float) -> float:
    return -value if sign < 0.0 else value


@numba.njit(cache=True, inline="always", error_model="numpy")
def _height(normal: Float64, k: float, corner: int) -> float:
    """Return the signed distance of a corner of the unit voxel to a plane."""
    height: float = normal[0] * (corner & 1) + normal[1] * ((corner >> 1) & 1) + normal[2] * (corner >> 2) - k
    return height


@numba.njit(cache=True, error_model="numpy")
def fit_plane(corners: Float64) -> tuple[float, float, float, float, float]:  # noqa: C901 (numba kernel: one compiled loop)
    """Fit the plane n·u = k to a unit voxel's corner distances: (nx, ny, nz, k, residual), residual ∞ without one."""
    n, rise, fit = np.zeros(3), np.zeros(3), np.zeros(3)
    for a in range(3):
        for e in range(4):
            low = _edge_start(e, 1 << a)
            high = low + (1 << a)
            slope = corners[high] - corners[low]
            n[a] = max(n[a], abs(slope))
            rise[a] += 0.25 * slope * (corners[high] + corners[low])
    # An edge on one side of the plane rises by the normal's component; one that crosses it by less. Only along one
    # axis can all four edges cross: there the two distances add up to the component instead.
    lack = 1.0 - (n[0] * n[0] + n[1] * n[1] + n[2] * n[2])
    if lack > FLAT_NORMAL:
        best = second = np.inf
        axis, whole = 0, 0.0
        for a in range(3):
            component = math.sqrt(n[a] * n[a] + lack)
            off = 0.0
            for e in range(4):
                c = _edge_start(e, 1 << a)
                off = max(off, abs(corners[c] + corners[c + (1 << a)] - component))
            if off < best:
                best, second, axis, whole = off, best, a, component
            else:
                second = min(second, off)
        if second < best + AMBIGUOUS:
            return 0.0, 0.0, 0.0, 0.0, np.inf
        n[axis] = whole
    main = np.argmax(n)
    if n[main] <= 0.0:
        return 0.0, 0.0, 0.0, 0.0, np.inf
    # Mixed differences of squares are 2·n_a·n_b: they give the signs against the largest component.
    for a in range(3):
        cross = 0.0
        for c in range(8):
            square = corners[c] * corners[c]
            cross += square if (c >> a & 1) == (c >> main & 1) else -square
        n[a] = _with_sign(n[a], cross)
    k = 0.5 * (n[0] + n[1] + n[2] - rise[main] / n[main])
    # With the sides known, the plane is a linear fit to signed distances; that in turn knows the sides better.
    for _ in range(2):
        fit[:] = 0.0
        mean = 0.0
        for c in range(8):
            signed = _with_sign(corners[c], _height(n, k, c))
            for a in range(3):
                fit[a] += 0.25 * signed if c >> a & 1 else -0.25 * signed
            mean += 0.125 * signed
        n[:] = fit
        k = 0.5 * (n[0] + n[1] + n[2]) - mean
    residual = abs(math.sqrt(n[0] * n[0] + n[1] * n[1] + n[2] * n[2]) - 1.0)
    for c in range(8):
        residual = max(residual, abs(abs(_height(n, k, c)) - corners[c]))
    return n[0], n[1], n[2], k, residual if residual <= PLANE_TOLERANCE else np.inf


@numba.njit(cache=True, parallel=True, error_model="numpy")
def fit_planes(corners: Float32, planes: Float64) -> None:
    """Fit a plane to the unsigned corner distances (N, 8) [voxel] of each voxel.

    Args:
        corners: (N, 8) unsigned distances [voxel] at corner x + 2y + 4z.
        planes: (N, 4) out, n and k of n·u = k in the voxel; NaN where no plane fits.
    """
    for i in numba.prange(len(corners)):
        nx, ny, nz, k, residual = fit_plane(corners[i].astype(np.float64))
        size = math.sqrt(nx * nx + ny * ny + nz * nz) if residual < np.inf else np.nan
        for column, value in enumerate((nx, ny, nz, k)):
            planes[i, column] = value / size


@numba.njit(cache=True, error_model="numpy")
def _cut(plane: Float64, edge: float, overlap: float, polygon: Float64, spare: Float64) -> int:
    """Clip a plane to a cube [0, edge]³, grown by `overlap`; write the polygon and return its number of corners.

    Args:
        plane: (4,) unit normal n and k of n·u = k.
        edge: Edge of the cube [voxel].
        overlap: Growth of the cube on each side [voxel].
        polygon: (12, 3) out, corners in order around the polygon [voxel].
        spare: (12, 3) work space.
    """
    n, middle = plane[:3], 0.5 * edge
    height = plane[3] - (n[0] + n[1] + n[2]) * middle
    # The normal crossed with the axis of its least component is never short.
    least = np.argmin(np.abs(n))
    i, j = (least + 1) % 3, (least + 2) % 3
    u = np.zeros(3)
    u[i], u[j] = -n[j], n[i]
    u *= 2.0 * (edge + overlap) / math.sqrt(u[0] * u[0] + u[1] * u[1] + u[2] * u[2])
    v = np.cross(n, u)
    for c in range(4):
        s = -1.0 if c == 0 or c == 3 else 1.0
        t = -1.0 if c < 2 else 1.0
        polygon[c] = middle + height * n + s * u + t * v
    count = 4
    for side in range(6):
        axis, sign = side >> 1, 1.0 if side & 1 else -1.0
        bound = (edge + overlap) if side & 1 else overlap
        kept = 0
        for c in range(count):
            d = (c + 1) % count
            here, there = bound - sign * polygon[c, axis], bound - sign * polygon[d, axis]
            if here >= 0.0:
                spare[kept] = polygon[c]
                kept += 1
            if (here >= 0.0) != (there >= 0.0):
                spare[kept] = polygon[c] + here / (here - there) * (polygon[d] - polygon[c])
                kept += 1
        count = kept
        polygon[:count] = spare[:count]
        if count < 3:
            return 0
    return count


@numba.njit(cache=True, parallel=True, error_model="numpy")
def plane_areas(planes: Float64, edge: float, area: Float64) -> None:
    """Compute the (N,) area [voxel²] of each plane (N, 4) inside the cube [0, edge]³."""
    for i in numba.prange(len(planes)):
        polygon, spare = np.empty((12, 3)), np.empty((12, 3))
        count = _cut(planes[i], edge, 0.0, polygon, spare)
        total = 0.0
        for c in range(1, count - 1):
            normal = np.cross(polygon[c] - polygon[0], polygon[c + 1] - polygon[0])
            for a in range(3):
                total += planes[i, a] * normal[a]
        area[i] = 0.5 * abs(total)


@numba.njit(cache=True, error_model="numpy")
def plane_triangles(planes: Float64, edge: int, triangles: Float32, owner: npt.NDArray[np.int64]) -> int:
    """Triangulate planes clipped to their cubes, each slightly enlarged; return the number of triangles.

    Args:
        planes: (N, 4) unit normal and k in each cube [voxel].
        edge: Edge of the cubes [voxel].
        triangles: (T, 3, 3) out, corners from the cube's minimum corner [voxel]; as many as fit.
        owner: (T,) out, cube of each triangle.
    """
    polygon, spare = np.empty((12, 3)), np.empty((12, 3))
    n = 0
    for i in range(len(planes)):
        count = _cut(planes[i], float(edge), OVERLAP, polygon, spare)
        for c in range(1, count - 1):
            if n < len(triangles):
                triangles[n, 0], triangles[n, 1], triangles[n, 2] = polygon[0], polygon[c], polygon[c + 1]
                owner[n] = i
            n += 1
    return n


@numba.njit(cache=True, error_model="numpy")
def _nearest_ball(corners: Float32, x: float, y: float, z: float) -> tuple[float, int]:
    """Return a point's signed distance to the nearest empty ball's surface [voxel], and that ball's corner."""
    best, label = np.inf, 0
    for c in range(8):
        wx, wy, wz = x - (c & 1), y - ((c >> 1) & 1), z - (c >> 2)
        height = math.sqrt(wx * wx + wy * wy + wz * wz) - (corners[c] - FP16_SLACK)
        if height < best:
            best, label = height, c
    return best, label


@numba.njit(cache=True, inline="always", error_model="numpy")
def _at(labels: npt.NDArray[np.int64], axis: int, i: int, p: int, q: int) -> int:
    """Return the label of cell i along an axis and (p, q) along the next two axes."""
    label: int = labels[i, p, q] if axis == 0 else (labels[q, i, p] if axis == 1 else labels[p, q, i])
    return label


@numba.njit(cache=True, error_model="numpy")
def _is_border(corners: Float32, labels: npt.NDArray[np.int64], axis: int, face: int, p: int, q: int) -> bool:
    """Test whether a face between two cells of a voxel lies in the gap and on a border between two balls' regions."""
    label = _at(labels, axis, min(face, PARTS - 1), p, q)
    if 0 < face < PARTS:
        border = _at(labels, axis, face - 1, p, q) != label
    else:
        # The neighbour across this side does not know the corners that are not on it.
        border = ((label >> axis) & 1) != (1 if face else 0)
    if not border:
        return False
    x, u, v = face / PARTS, (p + 0.5) / PARTS, (q + 0.5) / PARTS
    if axis == 1:
        x, u, v = v, x, u
    elif axis == 2:
        x, u, v = u, v, x
    return _nearest_ball(corners, x, u, v)[0] >= -MARGIN


@numba.njit(cache=True, error_model="numpy")
def _write_rectangle(triangles: Float32, axis: int, face: int, p: int, begin: int, end: int) -> None:
    """Triangulate a rectangle of cell faces (p, begin…end) across an axis [voxel]: write its two triangles."""
    one, two = (axis + 1) % 3, (axis + 2) % 3
    for c in range(3):
        for t in range(2):
            corner = 0 if c == 0 else c + t  # 0, 1, 2 and 0, 2, 3 around the rectangle
            triangles[t, c, axis] = face / PARTS
            triangles[t, c, one] = (p + (1 if corner == 1 or corner == 2 else 0)) / PARTS
            triangles[t, c, two] = (end if corner > 1 else begin) / PARTS


@numba.njit(cache=True, error_model="numpy")
def gap_faces(corners: Float32, _edge: int, triangles: Float32, owner: npt.NDArray[np.int64]) -> int:  # noqa: C901 (numba kernel: one compiled loop)
    """Triangulate the gaps between the empty balls in voxels that no plane fits; return the number of triangles.

    Args:
        corners: (N, 8) unsigned distances [voxel].
        triangles: (T, 3, 3) out, corners from the voxel's minimum corner [voxel]; as many as fit.
        owner: (T,) out, voxel of each triangle.
    """
    labels = np.empty((PARTS, PARTS, PARTS), np.int64)
    n = 0
    for i in range(len(corners)):
        for x in range(PARTS):
            for y in range(PARTS):
                for z in range(PARTS):
                    _, label = _nearest_ball(corners[i], (x + 0.5) / PARTS, (y + 0.5) / PARTS, (z + 0.5) / PARTS)
                    labels[x, y, z] = label
        for axis in range(3):
            for face in range(PARTS + 1):
                for p in range(PARTS):
                    begin = -1  # of the run of faces that becomes one rectangle
                    for q in range(PARTS + 1):
                        if q < PARTS and _is_border(corners[i], labels, axis, face, p, q):
                            begin = q if begin < 0 else begin
                        elif begin >= 0:
                            if n + 1 < len(triangles):
                                _write_rectangle(triangles[n : n + 2], axis, face, p, begin, q)
                                owner[n], owner[n + 1] = i, i
                            n += 2
                            begin = -1
    return n
