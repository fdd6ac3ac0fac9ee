"""Geodesic distance over free voxels: how long the way to a point is around what stands between.

Lazy Theta* (Nash, Koenig & Tovey 2010, Lazy Theta*: any-angle path planning and path length analysis in 3D), run from
the point to every voxel: ways bend where they must and are straight between, so that their length is not that of a way
along the grid, which is up to 13 % longer.
"""

import heapq
import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt


@numba.njit(cache=True, inline="always")
def _in_sight(free: npt.NDArray[np.bool_], ax: float, ay: float, az: float, bx: float, by: float, bz: float) -> bool:
    """Return whether the segment between two points [voxels] stays in free voxels, tested every half of one."""
    dx, dy, dz = bx - ax, by - ay, bz - az
    steps = int(math.sqrt(dx * dx + dy * dy + dz * dz) * 2.0) + 1
    for n in range(1, steps):
        t = n / steps
        if not free[int(ax + dx * t), int(ay + dy * t), int(az + dz * t)]:
            return False
    return True


@numba.njit(cache=True)
def geodesic_distance(  # noqa: C901 (numba kernel: one compiled loop)
    free: npt.NDArray[np.bool_], source: npt.NDArray[np.float64], out: npt.NDArray[np.float32]
) -> None:
    """Write each free voxel's distance to a point through free voxels.

    Args:
        free: (nx, ny, nz) bool.
        source: (3,) the point, in voxels from the minimum corner of the grid; its voxel is free.
        out: (nx, ny, nz) written: distance of the centres [voxels]; infinite where there is no way, or no free voxel.
    """
    nx, ny, nz = free.shape
    out[:] = np.inf
    settled = np.zeros(free.shape, np.bool_)
    bend = np.full(free.shape, -1, np.int32)
    s0, s1, s2 = int(source[0]), int(source[1]), int(source[2])
    first = (s0 * ny + s1) * nz + s2
    beside = math.sqrt((s0 + 0.5 - source[0]) ** 2 + (s1 + 0.5 - source[1]) ** 2 + (s2 + 0.5 - source[2]) ** 2)
    out[s0, s1, s2] = beside
    bend[s0, s1, s2] = first
    queue: list[tuple[Any, Any]] = [(np.float32(beside), np.int32(first))]
    while len(queue) > 0:
        reached, index = heapq.heappop(queue)
        i, j, k = index // (ny * nz), index // nz % ny, index % nz
        if settled[i, j, k] or reached > out[i, j, k]:
            continue
        settled[i, j, k] = True
        # Where the way to this voxel bends last: an exact point for the source, a voxel's centre for others.
        at = bend[i, j, k]
        p, q, r = at // (ny * nz), at // nz % ny, at % nz
        px, py, pz, base = p + 0.5, q + 0.5, r + 0.5, np.float64(out[p, q, r])
        if at == first:
            px, py, pz, base = source[0], source[1], source[2], np.float64(0.0)
        if index != first and not _in_sight(free, px, py, pz, i + 0.5, j + 0.5, k + 0.5):
            # It was believed to be seen from there; it bends at its best settled neighbour instead.
            best = np.inf
            for di in range(-1, 2):
                for dj in range(-1, 2):
                    for dk in range(-1, 2):
                        x, y, z = i + di, j + dj, k + dk
                        if not (0 <= x < nx and 0 <= y < ny and 0 <= z < nz) or not settled[x, y, z]:
                            continue
                        if di == 0 and dj == 0 and dk == 0:
                            continue
                        length = np.float64(out[x, y, z]) + math.sqrt(di * di + dj * dj + dk * dk)
                        if length < best:
                            best = length
                            bend[i, j, k] = (x * ny + y) * nz + z
            out[i, j, k] = best
            at = bend[i, j, k]
            p, q, r = at // (ny * nz), at // nz % ny, at % nz
            px, py, pz, base = p + 0.5, q + 0.5, r + 0.5, np.float64(out[p, q, r])
        for di in range(-1, 2):
            for dj in range(-1, 2):
                for dk in range(-1, 2):
                    x, y, z = i + di, j + dj, k + dk
                    if not (0 <= x < nx and 0 <= y < ny and 0 <= z < nz) or not free[x, y, z] or settled[x, y, z]:
                        continue
                    gx, gy, gz = x + 0.5 - px, y + 0.5 - py, z + 0.5 - pz
                    shorter = np.float32(base + math.sqrt(gx * gx + gy * gy + gz * gz))
                    if shorter < out[x, y, z]:
                        out[x, y, z] = shorter
                        bend[x, y, z] = at
                        heapq.heappush(queue, (shorter, np.int32((x * ny + y) * nz + z)))
