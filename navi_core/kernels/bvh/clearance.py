"""Clearance queries over many scenes: exact, or only whether a radius is kept."""

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.bvh.query import bvh_closest

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@numba.njit(cache=True, parallel=True, error_model="numpy")
def scene_distance(
    planes: Float32, child: Int32, corners: Float32, ids: Int32, bases: Int64,
    points: Float32, scene: Int32, out: Float32,
) -> None:  # fmt: skip
    """Write the exact distance of each point to the surface of its scene.

    Args:
        planes: (N, 6, 8), with `child`, `corners` and `ids` the wide hierarchies of all scenes.
        child: (N, 8).
        corners: (L, 9, 8).
        ids: (L, 8).
        bases: (S, 3) first node, group and triangle of each scene.
        points: (Q, 3) [m].
        scene: (Q,) scene of each point.
        out: (Q,) distance [m].
    """
    for i in numba.prange(points.shape[0]):
        s = scene[i]
        d, _ = bvh_closest(
            planes, child, corners, ids, bases[s, 0], bases[s, 1],
            np.float64(points[i, 0]), np.float64(points[i, 1]), np.float64(points[i, 2]), np.inf,
        )  # fmt: skip
        out[i] = np.sqrt(d)


@numba.njit(cache=True, parallel=True, error_model="numpy")
def scene_within(
    planes: Float32, child: Int32, corners: Float32, ids: Int32, bases: Int64,
    points: Float32, scene: Int32, radius: float, out: npt.NDArray[np.bool_],
) -> None:  # fmt: skip
    """Write whether the surface is nearer to each point than `radius` [m]; cheaper than the distance itself."""
    limit = radius * radius
    for i in numba.prange(points.shape[0]):
        s = scene[i]
        d, _ = bvh_closest(
            planes, child, corners, ids, bases[s, 0], bases[s, 1],
            np.float64(points[i, 0]), np.float64(points[i, 1]), np.float64(points[i, 2]), limit,
        )  # fmt: skip
        out[i] = d < limit
