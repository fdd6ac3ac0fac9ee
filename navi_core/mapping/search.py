"""Path planning: Dijkstra's search on a grid with a clearance cost, and geodesic distance over free voxels.

The search over a grid serves the map that a pilot drew itself and the true one. Geodesic distance is measured by Lazy
Theta* (Nash, Koenig & Tovey 2010, Lazy Theta*: any-angle path planning and path length analysis in 3D), run from a
point to every voxel: ways bend where they must and are straight between, so that their length is not that of a way
along the grid, which is up to 13 % longer.
"""

import heapq
import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_AROUND = np.array([step for step in np.ndindex(3, 3, 3) if step != (1, 1, 1)]) - 1
"""Neighbour offsets (26, 3) of a voxel."""


@numba.njit(cache=True)
def expand(  # noqa: C901 (numba kernel: one compiled loop)
    passable: npt.NDArray[np.bool_],
    near: Bytes,
    goal: npt.NDArray[np.bool_],
    start_i: int,
    start_k: int,
    hard: int,
    soft: float,
    first_only: bool,
    cost: npt.NDArray[np.float32],
    parent: npt.NDArray[np.int32],
) -> int:
    """Run Dijkstra's search from a cell on a grid with a cost for closeness to surfaces.

    A step costs its length times 1 + 3·(how much closer than `soft` the cell is to a surface, as a share of it). A
    start that is too close to a surface may only leave it.

    Args:
        passable: (X, Z) cells that may be entered.
        near: (X, Z) squared distance to the nearest surface [cells²].
        goal: (X, Z) cells at which the search may end.
        start_i: First index of the start.
        start_k: Second index of the start.
        hard: Squared distance below which a cell is not entered [cells²].
        soft: Distance up to which closeness costs [cells].
        first_only: End at the first goal; else expand everything.
        cost: (X, Z) written: cost of the way [cells], infinite where there is none.
        parent: (X, Z) written: flat index of the cell before.

    Returns:
        Flat index of the cheapest goal, −1 if none is reached.
    """
    nx, nz = passable.shape
    cost[:] = np.inf
    parent[:] = -1
    if not (0 <= start_i < nx and 0 <= start_k < nz):
        return -1
    cost[start_i, start_k] = 0.0
    queue = [(np.float32(0.0), np.int32(start_i * nz + start_k))]
    found = -1
    while len(queue) > 0:
        reached, index = heapq.heappop(queue)
        i, k = index // nz, index % nz
        if reached > cost[i, k]:
            continue
        if goal[i, k] and index != start_i * nz + start_k:
            if found < 0:
                found = int(index)
            if first_only:
                return found
        for di in range(-1, 2):
            for dk in range(-1, 2):
                ni, nk = i + di, k + dk
                if (di == 0 and dk == 0) or not (0 <= ni < nx and 0 <= nk < nz) or not passable[ni, nk]:
                    continue
                if near[ni, nk] < hard and near[ni, nk] <= near[i, k]:
                    continue
                distance = math.sqrt(near[ni, nk])
                weight = 1.0 if distance >= soft else 1.0 + 3.0 * (soft - distance) / soft
                total = np.float32(reached + weight * (1.41421356 if di != 0 and dk != 0 else 1.0))
                if total < cost[ni, nk]:
                    cost[ni, nk] = total
                    parent[ni, nk] = index
                    heapq.heappush(queue, (total, np.int32(ni * nz + nk)))
    return found


@numba.njit(cache=True)
def trace_back(
    parent: npt.NDArray[np.int32],
    goal: int,
    path: npt.NDArray[np.int32],
    stride: int,
    first_i: int = 0,
    first_k: int = 0,
) -> int:
    """Reconstruct the path to `goal` into `path` (P,), start first; return its length.

    Of a way longer than P the first P cells are kept. The path holds flat indices of a grid that is `stride` cells wide
    and in which the searched one begins at (`first_i`, `first_k`).
    """
    nz, flat = parent.shape[1], parent.reshape(-1)
    length, at = 0, goal
    while at >= 0:
        length += 1
        at = flat[at]
    at, place = goal, length - 1
    while at >= 0:
        if place < path.shape[0]:
            path[place] = (at // nz + first_i) * stride + at % nz + first_k
        at = flat[at]
        place -= 1
    return int(min(length, path.shape[0]))


@numba.njit(cache=True)
def visible_ahead(
    near: Bytes, path: npt.NDArray[np.int32], length: int, x: float, z: float, hard: int, farthest: float
) -> int:
    """Return the index of the farthest path cell in line of sight (line-of-sight waypoint).

    Args:
        near: (X, Z) squared distance to the nearest surface [cells²].
        path: (P,) flat indices.
        length: Cells of it that count.
        x: First coordinate of the drone [cells].
        z: Second coordinate [cells].
        hard: Squared distance below which a straight line is refused [cells²].
        farthest: How far ahead to look along the path [cells].
    """
    nz = near.shape[1]
    # A path is flown in order: the place closest to the drone is where it stands on it.
    begin, best = 0, 1e30
    for n in range(length):
        gap = math.hypot(path[n] // nz + 0.5 - x, path[n] % nz + 0.5 - z)
        if gap < best:
            begin, best = n, gap
        if gap > best + farthest:
            break
    chosen = min(begin + 1, length - 1)
    for n in range(begin + 1, length):
        dx, dz = path[n] // nz + 0.5 - x, path[n] % nz + 0.5 - z
        distance = math.hypot(dx, dz)
        if distance > farthest:
            break
        steps = int(distance * 2.0) + 1
        clear = True
        for s in range(1, steps + 1):
            i, k = int(x + dx * s / steps), int(z + dz * s / steps)
            # Near the drone itself the line may start closer than allowed; it must only not lead deeper in.
            if near[i, k] < hard and near[i, k] < near[int(x), int(z)]:
                clear = False
                break
        if not clear:
            break
        chosen = n
    return chosen


@numba.njit(cache=True)
def visible_rows(
    near: Bytes,
    grid: npt.NDArray[np.int64],
    path: npt.NDArray[np.int32],
    length: npt.NDArray[np.int64],
    place: npt.NDArray[np.float64],
    hard: int,
    farthest: float,
    point: npt.NDArray[np.float64],
) -> None:
    """Write each row's waypoint: the farthest cell of its path in line of sight.

    Args:
        near: (S, X, Z) squared distances of all grids [cells²].
        grid: (B,) grid of each row.
        path: (B, P) flat indices.
        length: (B,) cells of the path; 0 for none.
        place: (B, 2) positions of the rows [cells].
        hard: See `visible_ahead`.
        farthest: See `visible_ahead` [cells].
        point: (B, 2) written [cells]; the place itself where there is no path.
    """
    nx, nz = near.shape[1], near.shape[2]
    for b in range(path.shape[0]):
        x, z = place[b, 0], place[b, 1]
        point[b, 0], point[b, 1] = x, z
        if length[b] > 0 and 0.0 <= x < nx and 0.0 <= z < nz:
            n = visible_ahead(near[grid[b]], path[b], length[b], x, z, hard, farthest)
            point[b, 0], point[b, 1] = path[b, n] // nz + 0.5, path[b, n] % nz + 0.5


@numba.njit(cache=True, inline="always")
def _in_sight(free: npt.NDArray[np.bool_], ax: float, ay: float, az: float, bx: float, by: float, bz: float) -> bool:
    """Test line of sight: does the segment between two points [voxels] stay in free voxels, tested every half voxel?"""
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
    """Compute each free voxel's geodesic distance to a point through free voxels (Lazy Theta*).

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
            for n in range(len(_AROUND)):
                x, y, z = i + _AROUND[n, 0], j + _AROUND[n, 1], k + _AROUND[n, 2]
                if not (0 <= x < nx and 0 <= y < ny and 0 <= z < nz) or not settled[x, y, z]:
                    continue
                length = np.float64(out[x, y, z]) + math.sqrt(np.abs(_AROUND[n]).sum())
                if length < best:
                    best = length
                    bend[i, j, k] = (x * ny + y) * nz + z
            out[i, j, k] = best
            at = bend[i, j, k]
            p, q, r = at // (ny * nz), at // nz % ny, at % nz
            px, py, pz, base = p + 0.5, q + 0.5, r + 0.5, np.float64(out[p, q, r])
        for n in range(len(_AROUND)):
            x, y, z = i + _AROUND[n, 0], j + _AROUND[n, 1], k + _AROUND[n, 2]
            if not (0 <= x < nx and 0 <= y < ny and 0 <= z < nz) or not free[x, y, z] or settled[x, y, z]:
                continue
            gx, gy, gz = x + 0.5 - px, y + 0.5 - py, z + 0.5 - pz
            shorter = np.float32(base + math.sqrt(gx * gx + gy * gy + gz * gz))
            if shorter < out[x, y, z]:
                out[x, y, z] = shorter
                bend[x, y, z] = at
                heapq.heappush(queue, (shorter, np.int32((x * ny + y) * nz + z)))
