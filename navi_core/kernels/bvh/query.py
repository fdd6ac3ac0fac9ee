"""Exact distance to triangle sets through their wide hierarchies: numba, the twin of csrc/rays/closest.h."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.bvh.build import GROUP, NOBODY, STACK, WIDTH, build_wide
from navi_core.kernels.bvh.triangles import closest_distance_squared

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@numba.njit(cache=True, error_model="numpy")
def bvh_closest(  # noqa: C901 (numba kernel: one compiled loop)
    planes: Float32, child: Int32, corners: Float32, ids: Int32, node: int, group: int,
    x: float, y: float, z: float, best: float,
) -> tuple[float, int]:  # fmt: skip
    """Return (squared distance, triangle) of the nearest triangle closer than sqrt(`best`), else (`best`, −1).

    Args:
        planes: (N, 6, 8), with `child`, `corners` and `ids` as `build_wide` makes them.
        child: (N, 8).
        corners: (L, 9, 8).
        ids: (L, 8).
        node: The root.
        group: Where the groups of the scene begin.
        x: Query x (likewise y, z).
        y: Query y.
        z: Query z.
        best: Squared distance beyond which nothing counts.
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
    """Return the squared distance of each point to the surface of its scene, and its nearest triangle.

    Args:
        planes: (N, 6, 8), with `child`, `corners` and `ids` the wide hierarchies of all scenes.
        child: (N, 8).
        corners: (L, 9, 8).
        ids: (L, 8).
        bases: (S, 3) first node, group and triangle of each scene.
        points: (Q, 3) [m].
        scene: (Q,) scene of each point.
        limit: Squared distance beyond which nothing counts [m²]; a small one is cheaper.

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
    """Nearest-triangle queries over a fixed triangle set.

    Args:
        triangles: (F, 3, 3) corners [m], F ≥ 1, finite; kept as float32.
    """

    def __init__(self, triangles: npt.NDArray[np.floating]) -> None:
        self.planes, self.child, self.corners, self.ids = build_wide(np.ascontiguousarray(triangles, np.float32))

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
        bases, scene = np.zeros((1, 3), np.int64), np.zeros(len(query), np.int32)
        squared, index = closest_triangles(
            self.planes, self.child, self.corners, self.ids, bases, query, scene, float(max_distance) ** 2
        )
        return np.sqrt(squared), index
