"""Exact distance to a triangle set through a bounding-volume hierarchy."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.geometry import closest_distance_squared

__all__ = ["TriangleBVH", "bvh_closest"]

_LEAF = 4


@numba.njit(cache=True, error_model="numpy")
def _build(
    lower: npt.NDArray[np.float64], upper: npt.NDArray[np.float64], order: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Split at the median centroid of the longest axis, depth first; `order` is permuted in place."""
    n = order.shape[0]
    capacity = max(1, 2 * n)
    box = np.zeros((capacity, 6), np.float32)
    link = np.zeros((capacity, 2), np.int32)  # inner: (left, right); leaf: (-1 - start, count)
    stack = np.zeros((96, 3), np.int32)
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, 0, n
    top, used = 1, 1
    while top > 0:
        top -= 1
        node, start, end = stack[top, 0], stack[top, 1], stack[top, 2]
        lo = np.full(3, np.inf)
        hi = np.full(3, -np.inf)
        clo = np.full(3, np.inf)
        chi = np.full(3, -np.inf)
        for i in range(start, end):
            f = order[i]
            for a in range(3):
                lo[a] = min(lo[a], lower[f, a])
                hi[a] = max(hi[a], upper[f, a])
                c = lower[f, a] + upper[f, a]
                clo[a] = min(clo[a], c)
                chi[a] = max(chi[a], c)
        for a in range(3):
            # Outward rounding keeps the float32 box around the float64 one.
            box[node, a] = np.nextafter(np.float32(lo[a]), np.float32(-np.inf))
            box[node, 3 + a] = np.nextafter(np.float32(hi[a]), np.float32(np.inf))
        axis = 0
        for a in range(1, 3):
            if chi[a] - clo[a] > chi[axis] - clo[axis]:
                axis = a
        if end - start <= _LEAF:
            link[node, 0], link[node, 1] = -1 - start, end - start
            continue
        keys = np.zeros(end - start)
        for i in range(start, end):
            keys[i - start] = lower[order[i], axis] + upper[order[i], axis]
        rank = np.argsort(keys, kind="mergesort")
        part = order[start:end].copy()
        for i in range(end - start):
            order[start + i] = part[rank[i]]
        middle = (start + end) // 2
        link[node, 0], link[node, 1] = used, used + 1
        stack[top, 0], stack[top, 1], stack[top, 2] = used, start, middle
        stack[top + 1, 0], stack[top + 1, 1], stack[top + 1, 2] = used + 1, middle, end
        top += 2
        used += 2
    return box[:used].copy(), link[:used].copy()


@numba.njit(cache=True, inline="always", error_model="numpy")
def _box_distance_squared(box: npt.NDArray[np.float32], node: int, x: float, y: float, z: float) -> float:
    dx = max(box[node, 0] - x, x - box[node, 3], 0.0)
    dy = max(box[node, 1] - y, y - box[node, 4], 0.0)
    dz = max(box[node, 2] - z, z - box[node, 5], 0.0)
    return dx * dx + dy * dy + dz * dz


@numba.njit(cache=True, error_model="numpy")
def bvh_closest(
    box: npt.NDArray[np.float32],
    link: npt.NDArray[np.int32],
    triangles: npt.NDArray[np.float64],
    root: int,
    x: float,
    y: float,
    z: float,
    best: float,
    winner: int,
) -> tuple[float, int]:
    """Return (squared distance, triangle) of the nearest triangle closer than sqrt(`best`), else the inputs.

    Args:
        box: (N, 6) node bounds.
        link: (N, 2) children, or (−1 − first triangle, count) at a leaf.
        triangles: (F, 3, 3) corners in tree order.
        root: Index of the root node.
        x: Query x (likewise y, z).
        y: Query y.
        z: Query z.
        best: Squared distance already known.
        winner: Triangle that gave `best`, or −1.
    """
    stack = np.zeros(64, np.int32)
    bound = np.zeros(64)
    stack[0] = root
    bound[0] = _box_distance_squared(box, root, x, y, z)
    top = 1
    while top > 0:
        top -= 1
        if bound[top] >= best:
            continue
        node = stack[top]
        first = link[node, 0]
        if first < 0:
            start = -1 - first
            for f in range(start, start + link[node, 1]):
                d = closest_distance_squared(x, y, z, triangles[f])
                if d < best:
                    best, winner = d, f
            continue
        second = link[node, 1]
        d0 = _box_distance_squared(box, first, x, y, z)
        d1 = _box_distance_squared(box, second, x, y, z)
        if d0 > d1:
            first, second = second, first
            d0, d1 = d1, d0
        if d1 < best:
            stack[top], bound[top] = second, d1
            top += 1
        if d0 < best:
            stack[top], bound[top] = first, d0
            top += 1
    return best, winner


@numba.njit(cache=True, parallel=True, error_model="numpy")
def _closest_many(
    box: npt.NDArray[np.float32],
    link: npt.NDArray[np.int32],
    triangles: npt.NDArray[np.float64],
    points: npt.NDArray[np.float64],
    limit: float,
    distance: npt.NDArray[np.float64],
    index: npt.NDArray[np.int32],
) -> None:
    for i in numba.prange(points.shape[0]):
        d, f = bvh_closest(box, link, triangles, 0, points[i, 0], points[i, 1], points[i, 2], limit, -1)
        distance[i] = np.sqrt(d)
        index[i] = f


class TriangleBVH:
    """Nearest-triangle queries over a fixed triangle set.

    Args:
        triangles: (F, 3, 3) corners [m], F ≥ 1, finite.
    """

    def __init__(self, triangles: npt.NDArray[np.floating]) -> None:
        corners = np.ascontiguousarray(triangles, np.float64)
        order = np.arange(len(corners), dtype=np.int32)
        self.box, self.link = _build(corners.min(axis=1), corners.max(axis=1), order)
        self.order = order
        """(F,) original index of each triangle in tree order."""
        self.triangles = np.ascontiguousarray(corners[order])
        """(F, 3, 3) float64 corners in tree order."""

    def closest(
        self, points: npt.ArrayLike, max_distance: float = np.inf
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]:
        """Return the distance to the nearest triangle and its index.

        Args:
            points: (N, 3) [m].
            max_distance: Search radius [m].

        Returns:
            (N,) distance [m] (`max_distance` where nothing is nearer) and (N,) triangle index (−1 there).
        """
        query = np.ascontiguousarray(points, np.float64).reshape(-1, 3)
        distance = np.zeros(len(query))
        index = np.zeros(len(query), np.int32)
        _closest_many(self.box, self.link, self.triangles, query, float(max_distance) ** 2, distance, index)
        hit = index >= 0
        index[hit] = self.order[index[hit]]
        return distance, index
