"""Exact distance to a triangle set through its wide hierarchy: numba, the twin of csrc/rays/closest.h."""

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.bvh.build import GROUP, NOBODY, STACK, WIDTH, build_wide
from navi_core.kernels.bvh.triangles import closest_distance_squared

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]


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
def _closest_many(
    planes: Float32, child: Int32, corners: Float32, ids: Int32, points: Float64, limit: float,
    distance: Float64, index: Int32,
) -> None:  # fmt: skip
    for i in numba.prange(points.shape[0]):
        d, f = bvh_closest(planes, child, corners, ids, 0, 0, points[i, 0], points[i, 1], points[i, 2], limit)
        distance[i] = np.sqrt(d)
        index[i] = f


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
        distance = np.zeros(len(query))
        index = np.zeros(len(query), np.int32)
        limit = float(max_distance) ** 2
        _closest_many(self.planes, self.child, self.corners, self.ids, query, limit, distance, index)
        return distance, index
