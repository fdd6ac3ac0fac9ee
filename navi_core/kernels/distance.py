"""Clearance queries over many scenes: exact, or only whether a radius is kept."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.bvh import bvh_closest

__all__ = ["scene_distance", "scene_within"]

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@numba.njit(cache=True, parallel=True, error_model="numpy")
def scene_distance(
    box: Float32, link: Int32, triangles: Float64, node_base: Int64, triangle_base: Int64,
    points: Float32, scene: Int32, out: Float32,
) -> None:  # fmt: skip
    """Write the exact distance of each point to the surface of its scene.

    Args:
        box: (N, 6) node bounds of all scenes.
        link: (N, 2) links of all scenes, local to their scene.
        triangles: (F, 3, 3) corners in tree order of all scenes [m].
        node_base: (S + 1,) first node of each scene.
        triangle_base: (S + 1,) first triangle of each scene.
        points: (Q, 3) [m].
        scene: (Q,) scene of each point.
        out: (Q,) distance [m].
    """
    for i in numba.prange(points.shape[0]):
        s = scene[i]
        d, _ = bvh_closest(
            box[node_base[s] : node_base[s + 1]],
            link[node_base[s] : node_base[s + 1]],
            triangles[triangle_base[s] : triangle_base[s + 1]],
            0,
            np.float64(points[i, 0]), np.float64(points[i, 1]), np.float64(points[i, 2]), np.inf, -1,
        )  # fmt: skip
        out[i] = np.sqrt(d)


@numba.njit(cache=True, parallel=True, error_model="numpy")
def scene_within(
    box: Float32, link: Int32, triangles: Float64, node_base: Int64, triangle_base: Int64,
    points: Float32, scene: Int32, radius: float, out: npt.NDArray[np.bool_],
) -> None:  # fmt: skip
    """Write whether the surface is nearer to each point than `radius` [m]; cheaper than the distance itself."""
    limit = radius * radius
    for i in numba.prange(points.shape[0]):
        s = scene[i]
        d, _ = bvh_closest(
            box[node_base[s] : node_base[s + 1]],
            link[node_base[s] : node_base[s + 1]],
            triangles[triangle_base[s] : triangle_base[s + 1]],
            0,
            np.float64(points[i, 0]), np.float64(points[i, 1]), np.float64(points[i, 2]), limit, -1,
        )  # fmt: skip
        out[i] = d < limit
