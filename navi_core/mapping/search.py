"""Shortest path over a grid: Dijkstra's search with a cost for closeness, and shortcuts in line of sight.

The same search serves the map that a pilot drew itself and the true one.
"""

import heapq
import math

import numba
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


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
    """Expand the cheapest ways from a cell.

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
def trace_back(parent: npt.NDArray[np.int32], goal: int, path: npt.NDArray[np.int32]) -> int:
    """Write the way to `goal` into `path` (P,) as flat indices, start first; return its length.

    Of a way longer than P the first P cells are kept.
    """
    flat = parent.reshape(-1)
    length, at = 0, goal
    while at >= 0:
        length += 1
        at = flat[at]
    at, place = goal, length - 1
    while at >= 0:
        if place < path.shape[0]:
            path[place] = at
        at = flat[at]
        place -= 1
    return int(min(length, path.shape[0]))


@numba.njit(cache=True)
def visible_ahead(
    near: Bytes, path: npt.NDArray[np.int32], length: int, x: float, z: float, hard: int, farthest: float
) -> int:
    """Return the last place on the path that can be flown to straight on.

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
    """Write where each row flies at: the last place of its path that it can fly to straight on.

    Args:
        near: (S, X, Z) squared distances of all grids [cells²].
        grid: (B,) grid of each row.
        path: (B, P) flat indices.
        length: (B,) cells of the path; 0 for none.
        place: (B, 2) where the rows are [cells].
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
