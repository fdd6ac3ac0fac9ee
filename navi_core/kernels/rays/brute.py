"""Brute-force reference of the ray tracer: every ray against every triangle (Möller & Trumbore 1997)."""

import numba
import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


@numba.njit(cache=True, inline="always", error_model="numpy")
def _time(t: Float64, ox: float, oy: float, oz: float, dx: float, dy: float, dz: float) -> float:
    """Intersect a ray with a triangle: the ray parameter of the hit, infinite at a miss."""
    ax, ay, az = t[1, 0] - t[0, 0], t[1, 1] - t[0, 1], t[1, 2] - t[0, 2]
    bx, by, bz = t[2, 0] - t[0, 0], t[2, 1] - t[0, 1], t[2, 2] - t[0, 2]
    px, py, pz = dy * bz - dz * by, dz * bx - dx * bz, dx * by - dy * bx
    det = ax * px + ay * py + az * pz
    if det == 0.0:
        return np.inf
    sx, sy, sz = ox - t[0, 0], oy - t[0, 1], oz - t[0, 2]
    u = (sx * px + sy * py + sz * pz) / det
    if u < 0.0 or u > 1.0:
        return np.inf
    qx, qy, qz = sy * az - sz * ay, sz * ax - sx * az, sx * ay - sy * ax
    v = (dx * qx + dy * qy + dz * qz) / det
    if v < 0.0 or u + v > 1.0:
        return np.inf
    d = (bx * qx + by * qy + bz * qz) / det
    return d if d >= 0.0 else np.inf


@numba.njit(cache=True, parallel=True, error_model="numpy")
def cast_brute(triangles: Float64, origins: Float64, directions: Float64) -> Float64:
    """Cast rays by brute force: (N,) distance to the first triangle, infinite at a miss.

    Args:
        triangles: (F, 3, 3) corners [m].
        origins: (N, 3) [m].
        directions: (N, 3) unit vectors.
    """
    out = np.full(len(origins), np.inf)
    for i in numba.prange(len(origins)):
        ox, oy, oz = origins[i]
        dx, dy, dz = directions[i]
        for f in range(len(triangles)):
            out[i] = min(out[i], _time(triangles[f], ox, oy, oz, dx, dy, dz))
    return out


@numba.njit(cache=True, parallel=True, error_model="numpy")
def cast_brute_triangle(
    triangles: Float64, origins: Float64, directions: Float64, distance: Float64, tie: float
) -> npt.NDArray[np.int64]:
    """Return the (N,) lowest triangle within `tie` [m] of the first hit, −1 at a miss; `distance` of `cast_brute`."""
    out = np.full(len(origins), -1)
    for i in numba.prange(len(origins)):
        if distance[i] == np.inf:
            continue
        ox, oy, oz = origins[i]
        dx, dy, dz = directions[i]
        for f in range(len(triangles)):
            if _time(triangles[f], ox, oy, oz, dx, dy, dz) <= distance[i] + tie:
                out[i] = f
                break
    return out
