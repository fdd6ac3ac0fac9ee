"""Wide bounding-volume hierarchy (BVH): build, and exact nearest-triangle queries.

The build is deterministic and of one thread. A binary hierarchy is split by the surface-area heuristic over binned
centroids (Wald 2007), then every node takes the children of its largest child until it has eight (Wald, Benthin &
Boulos 2008). The queries are numba, the twin of csrc/rays/closest.h.
"""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.bvh.triangles import SLIVER_RATIO, closest_distance_squared

WIDTH = 8
"""Children of a node."""
GROUP = 8
"""Most triangles of a leaf: one group, stored together."""
STACK = 192
"""Depth of the traversal stack, enough for 26 halvings by count; `kTreeStack` of csrc/rays/views.h."""
NOBODY = -(2**31)
"""Sentinel index of a missing triangle of a group, and of a missing child."""
_BINS = 16
_TRIANGLE_COST = 0.2
"""Cost of a triangle test in box tests: higher values make emptier leaves and more memory, but no more speed."""
_SPLIT_DEPTH = 48
_VOID = np.float32(3e38)

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


@numba.njit(cache=True, inline="always", error_model="numpy")
def _half_area(box: Float32, i: int) -> float:
    dx, dy, dz = box[i, 3] - box[i, 0], box[i, 4] - box[i, 1], box[i, 5] - box[i, 2]
    area: float = dx * dy + dy * dz + dz * dx
    return area


@numba.njit(cache=True, inline="always", error_model="numpy")
def _clear(box: Float32, i: int) -> None:
    """Reset an axis-aligned box to empty (lower +∞, upper −∞)."""
    box[i, :3], box[i, 3:] = np.inf, -np.inf


@numba.njit(cache=True, inline="always", error_model="numpy")
def _grow(box: Float32, i: int, other: Float32, j: int) -> None:
    """Extend an axis-aligned box to enclose another one."""
    for a in range(3):
        box[i, a] = min(box[i, a], other[j, a])
        box[i, 3 + a] = max(box[i, 3 + a], other[j, 3 + a])


@numba.njit(cache=True, error_model="numpy")
def _best_split(  # noqa: C901 (numba kernel: one compiled loop)
    bounds: Float32, order: Int32, start: int, end: int, low: Float32, scale: Float32,
    counts: Int32, box: Float32, right: Float32,
) -> tuple[float, int, int]:  # fmt: skip
    """Find the binned split of least surface-area cost: (cost, axis, bin); axis −1 where all centroids coincide."""
    best, best_axis, best_bin = np.inf, -1, 0
    counts[:] = 0
    for k in range(3 * _BINS):
        _clear(box, k)
    for i in range(start, end):
        f = order[i]
        for axis in range(3):
            if scale[axis] == 0.0:
                continue
            c = (bounds[f, axis] + bounds[f, 3 + axis] - low[axis]) * scale[axis]
            k = axis * _BINS + min(int(c), _BINS - 1)
            counts[k] += 1
            _grow(box, k, bounds, f)
    grow = np.empty((1, 6), np.float32)
    for axis in range(3):
        if scale[axis] == 0.0:
            continue
        base = axis * _BINS
        _clear(grow, 0)
        n = 0
        for k in range(_BINS - 1, 0, -1):
            n += counts[base + k]
            _grow(grow, 0, box, base + k)
            right[k] = _half_area(grow, 0) * n if n > 0 else 0.0
        _clear(grow, 0)
        n = 0
        for k in range(_BINS - 1):
            n += counts[base + k]
            _grow(grow, 0, box, base + k)
            if n == 0 or n == end - start:
                continue
            cost = _half_area(grow, 0) * n + right[k + 1]
            if cost < best:
                best, best_axis, best_bin = cost, axis, k
    return best, best_axis, best_bin


@numba.njit(cache=True, error_model="numpy")
def _build_binary(bounds: Float32, order: Int32, split_depth: int) -> tuple[Float32, Int32]:  # noqa: C901 (numba kernel: one compiled loop)
    """Build the binary BVH: boxes (N, 6) and links (N, 3) = (left, start, count); left 0 is a leaf, right is left + 1.

    `order` is permuted in place. Nodes deeper than `split_depth` are halved by count.
    """
    n = order.shape[0]
    box = np.empty((2 * n, 6), np.float32)
    link = np.zeros((2 * n, 3), np.int32)
    stack = np.empty((split_depth + 64, 2), np.int32)
    link[0, 2] = n
    stack[0, 0], stack[0, 1] = 0, 0
    top, used = 1, 1
    low, scale, high = np.empty(3, np.float32), np.empty(3, np.float32), np.empty(3, np.float32)
    counts = np.empty(3 * _BINS, np.int32)
    bins, right = np.empty((3 * _BINS, 6), np.float32), np.empty(_BINS, np.float32)
    while top > 0:
        top -= 1
        node, depth = stack[top, 0], stack[top, 1]
        start, count = link[node, 1], link[node, 2]
        end = start + count
        _clear(box, node)
        low[:], high[:] = np.inf, -np.inf
        for i in range(start, end):
            f = order[i]
            _grow(box, node, bounds, f)
            for a in range(3):
                c = bounds[f, a] + bounds[f, 3 + a]
                low[a] = min(low[a], c)
                high[a] = max(high[a], c)
        if count == 1:
            continue
        for a in range(3):
            extent = high[a] - low[a]
            scale[a] = np.float32(_BINS * 0.9999) / extent if extent > 1e-30 else np.float32(0.0)
        axis, cut = -1, 0
        if depth < split_depth:
            cost, axis, cut = _best_split(bounds, order, start, end, low, scale, counts, bins, right)
            area = _half_area(box, node)
            if count <= GROUP and (axis < 0 or area + cost * _TRIANGLE_COST >= area * count * _TRIANGLE_COST):
                continue
        elif count <= GROUP:
            continue
        middle = start
        if axis >= 0:
            i, j = start, end - 1
            while i <= j:
                f = order[i]
                c = (bounds[f, axis] + bounds[f, 3 + axis] - low[axis]) * scale[axis]
                if min(int(c), _BINS - 1) <= cut:
                    i += 1
                else:
                    order[i], order[j] = order[j], f
                    j -= 1
            middle = i
        if not start < middle < end:
            middle = (start + end) // 2
        link[node, 0] = used
        link[used, 1], link[used, 2] = start, middle - start
        link[used + 1, 1], link[used + 1, 2] = middle, end - middle
        stack[top, 0], stack[top, 1] = used, depth + 1
        stack[top + 1, 0], stack[top + 1, 1] = used + 1, depth + 1
        top += 2
        used += 2
    return box[:used], link[:used]


@numba.njit(cache=True, error_model="numpy")
def _collapse(box: Float32, link: Int32, pad: float) -> tuple[Float32, Int32, Int32, int]:  # noqa: C901 (numba kernel: one compiled loop)
    """Collapse a binary BVH to eight children a node: planes (N, 6, 8), children (N, 8), leaves (L, 2), stack depth."""
    used = box.shape[0]
    planes = np.empty((used // 2 + 1, 6, WIDTH), np.float32)
    child = np.empty((used // 2 + 1, WIDTH), np.int32)
    leaves = np.empty((used // 2 + 1, 2), np.int32)
    source = np.zeros(used // 2 + 1, np.int32)
    waiting = np.zeros(used // 2 + 1, np.int32)  # boxes on the stack when the walk opens a node, at most
    nodes, done, leaf, deepest = 1, 0, 0, 0
    members = np.empty(WIDTH, np.int32)
    while done < nodes:
        members[0] = source[done]
        count = 1
        while count < WIDTH:
            widest, pick = np.float32(-1.0), -1
            for k in range(count):
                if link[members[k], 0] > 0:
                    area = _half_area(box, members[k])
                    if area > widest:
                        widest, pick = area, k
            if pick < 0:
                break
            left = link[members[pick], 0]
            members[pick] = left
            members[count] = left + 1
            count += 1
        deepest = max(deepest, waiting[done] + WIDTH)
        for k in range(WIDTH):
            if k >= count:
                for a in range(3):
                    planes[done, a, k] = _VOID
                    planes[done, 3 + a, k] = -_VOID
                child[done, k] = NOBODY
                continue
            m = members[k]
            for a in range(3):
                planes[done, a, k] = box[m, a] - pad
                planes[done, 3 + a, k] = box[m, 3 + a] + pad
            if link[m, 0] > 0:
                source[nodes] = m
                waiting[nodes] = waiting[done] + WIDTH - 1
                child[done, k] = nodes
                nodes += 1
            else:
                child[done, k] = -1 - leaf
                leaves[leaf, 0], leaves[leaf, 1] = link[m, 1], link[m, 2]
                leaf += 1
        done += 1
    return planes[:nodes].copy(), child[:nodes].copy(), leaves[:leaf], deepest


@numba.njit(cache=True, error_model="numpy")
def _groups(triangles: Float32, order: Int32, leaves: Int32) -> tuple[Float32, Int32]:
    """Pack the leaves' triangles as structure of arrays for SIMD: corners (L, 9, 8) and ids (L, 8)."""
    corners = np.empty((leaves.shape[0], 9, GROUP), np.float32)
    ids = np.full((leaves.shape[0], GROUP), NOBODY, np.int32)
    for g in range(leaves.shape[0]):
        for k in range(GROUP):
            present = k < leaves[g, 1]
            f = order[leaves[g, 0] + (k if present else 0)]
            t = triangles[f]
            for c in range(3):
                for a in range(3):
                    corners[g, 3 * c + a, k] = t[c, a]
            if present:
                ids[g, k] = -1 - f if _is_sliver(t) else f
    return corners, ids


@numba.njit(cache=True, inline="always", error_model="numpy")
def _is_sliver(t: Float32) -> bool:
    ux, uy, uz = np.float64(t[1, 0]) - t[0, 0], np.float64(t[1, 1]) - t[0, 1], np.float64(t[1, 2]) - t[0, 2]
    vx, vy, vz = np.float64(t[2, 0]) - t[0, 0], np.float64(t[2, 1]) - t[0, 1], np.float64(t[2, 2]) - t[0, 2]
    nx, ny, nz = uy * vz - uz * vy, uz * vx - ux * vz, ux * vy - uy * vx
    wx, wy, wz = ux - vx, uy - vy, uz - vz
    longest = max(ux * ux + uy * uy + uz * uz, vx * vx + vy * vy + vz * vz, wx * wx + wy * wy + wz * wz)
    return not nx * nx + ny * ny + nz * nz > SLIVER_RATIO * SLIVER_RATIO * longest * longest


def build_wide(triangles: Float32) -> tuple[Float32, Int32, Float32, Int32]:
    """Build the wide BVH (eight children a node) of a triangle set.

    Args:
        triangles: (F, 3, 3) float32 corners [m], F ≥ 1, finite.

    Returns:
        planes (N, 6, 8) float32: lower x y z and upper x y z of each child [m], rounded outwards by `slack_of`;
        a child that is not there is a void box, which contains nothing.
        child (N, 8) int32: node, −1 − group at a leaf, or `NOBODY`. The root is node 0.
        corners (L, 9, 8) float32: the corners of each group, coordinate by coordinate [m].
        ids (L, 8) int32: triangle; −1 − triangle for a sliver, which no ray meets; `NOBODY` behind the last.
    """
    bounds = np.concatenate([triangles.min(axis=1), triangles.max(axis=1)], axis=1)
    for split_depth in (_SPLIT_DEPTH, 0):
        order = np.arange(len(triangles), dtype=np.int32)
        box, link = _build_binary(bounds, order, split_depth)
        planes, child, leaves, waiting = _collapse(box, link, np.float32(slack_of(bounds)))
        # Triangles nested like Russian dolls make a deep hierarchy; halving them by count bounds the depth.
        if waiting <= STACK:
            break
    return planes, child, *_groups(triangles, order, leaves)


def slack_of(coordinates: Float32) -> float:
    """Return the float32 rounding slack [m]: two units in the last place of the largest coordinate."""
    return float(np.abs(coordinates).max()) * 2.0**-22


Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@numba.njit(cache=True, error_model="numpy")
def bvh_closest(  # noqa: C901 (numba kernel: one compiled loop)
    planes: Float32, child: Int32, corners: Float32, ids: Int32, node: int, group: int,
    x: float, y: float, z: float, best: float,
) -> tuple[float, int]:  # fmt: skip
    """Traverse one scene's BVH for the triangle nearest to a point: (squared distance, triangle), else (`best`, −1).

    Args:
        planes: (N, 6, 8), with `child`, `corners` and `ids` as `build_wide` makes them.
        child: (N, 8).
        corners: (L, 9, 8).
        ids: (L, 8).
        node: The root.
        group: Offset of the scene's first group.
        x: Query x (likewise y, z).
        y: Query y.
        z: Query z.
        best: Squared search radius; triangles beyond are ignored.
    """
    stack = np.empty(STACK, np.int32)
    bound = np.empty(STACK)
    triangle = np.empty((3, 3))
    stack[0], bound[0] = 0, 0.0
    top, winner = 1, -1
    while top > 0:
        top -= 1
        if bound[top] >= best:
            continue
        at = stack[top]
        if at == NOBODY:
            continue
        if at < 0:
            g = group - 1 - at
            for i in range(GROUP):
                f = ids[g, i]
                if f == NOBODY:
                    break
                for k in range(9):
                    triangle[k // 3, k % 3] = corners[g, k, i]
                d = closest_distance_squared(x, y, z, triangle)
                if d < best:
                    best, winner = d, f if f >= 0 else -1 - f
            continue
        bottom = top
        for k in range(WIDTH):
            p = planes[node + at]
            dx = max(np.float64(p[0, k]) - x, x - np.float64(p[3, k]), 0.0)
            dy = max(np.float64(p[1, k]) - y, y - np.float64(p[4, k]), 0.0)
            dz = max(np.float64(p[2, k]) - z, z - np.float64(p[5, k]), 0.0)
            d = dx * dx + dy * dy + dz * dz
            if d >= best:
                continue
            i = top
            top += 1
            while i > bottom and bound[i - 1] < d:
                stack[i], bound[i] = stack[i - 1], bound[i - 1]
                i -= 1
            stack[i], bound[i] = child[node + at, k], d
    return best, winner


@numba.njit(cache=True, parallel=True, error_model="numpy")
def closest_triangles(
    planes: Float32, child: Int32, corners: Float32, ids: Int32, bases: Int64,
    points: npt.NDArray[Any], scene: Int32, limit: float,
) -> tuple[Float64, Int32]:  # fmt: skip
    """Nearest-triangle query for many points: squared distance to the surface of the point's scene, and the triangle.

    Args:
        planes: (N, 6, 8), with `child`, `corners` and `ids` the wide hierarchies of all scenes.
        child: (N, 8).
        corners: (L, 9, 8).
        ids: (L, 8).
        bases: (S, 3) first node, group and triangle of each scene.
        points: (Q, 3) [m].
        scene: (Q,) scene of each point.
        limit: Squared search radius [m²]; a small one is cheaper.

    Returns:
        (Q,) [m²], `limit` where nothing is nearer, and (Q,) triangle within the scene, −1 there.
    """
    squared, index = np.empty(len(points)), np.empty(len(points), np.int32)
    for i in numba.prange(len(points)):
        base, point = bases[scene[i]], points[i].astype(np.float64)
        squared[i], index[i] = bvh_closest(
            planes, child, corners, ids, base[0], base[1], point[0], point[1], point[2], limit
        )
    return squared, index


class TriangleBVH:
    """Bounding-volume hierarchy (BVH) of a fixed triangle set, for nearest-triangle queries.

    Args:
        triangles: (F, 3, 3) corners [m], F ≥ 1, finite; kept as float32.
    """

    def __init__(self, triangles: npt.NDArray[np.floating]) -> None:
        self.planes, self.child, self.corners, self.ids = build_wide(np.ascontiguousarray(triangles, np.float32))

    def closest(
        self, points: npt.ArrayLike, max_distance: float = np.inf
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]:
        """Query the distance to the nearest triangle and its index.

        Args:
            points: (N, 3) [m].
            max_distance: Search radius [m].

        Returns:
            (N,) distance [m] (`max_distance` where nothing is nearer) and (N,) triangle index (−1 there).
        """
        query = np.ascontiguousarray(points, np.float64).reshape(-1, 3)
        bases, scene = np.zeros((1, 3), np.int64), np.zeros(len(query), np.int32)
        squared, index = closest_triangles(
            self.planes, self.child, self.corners, self.ids, bases, query, scene, float(max_distance) ** 2
        )
        return np.sqrt(squared), index
