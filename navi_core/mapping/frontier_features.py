"""Frontier features of an occupancy grid, as policy inputs: directions to unseen floor, or the path to a goal.

Free and unseen cells are worth flying to, and where there are none, the edge of the known map: the frontier
(Yamauchi 1997). The way to it is measured along free cells without walls, so that a frontier behind a wall is as far
as the way around.
"""

import math

import numba
import numpy as np
import numpy.typing as npt

from navi_core.config.policy import AHEAD, RINGS, SECTORS
from navi_core.mapping.occupancy_map import FREE, SEEN, VOID, WALL

FIFTHS = 5
"""Cost of a straight step between cells; a diagonal one costs 7, √2 to one per cent (Borgefors 1986)."""
UNREACHED = 2**30
"""Path cost of a cell from which no frontier is reached."""
UNSEEN, EDGE, SLIVER, OUTSIDE = 0, 1, 2, 3
"""Frontier rules: free cells that have not been seen, with many such around; where no path leads to one, open
cells beside much that is not known, as a room is whose door was passed; where there is none either, unseen cells with
some around. Fewer are slivers in corners that a flight sees in passing. The open ground around a building, VOID cells,
comes last."""
NOWHERE = -1
"""Sentinel cell index for no goal: paths lead to the frontier."""

_DIAGONAL = 7
_BUCKETS = 16
_MANY, _MUCH, _SOME = 15, 8, 4
"""Cells in a window of 5 × 5, 5 × 5 and 3 × 3 with a frontier cell in its middle: unseen, unknown, unseen ones."""
_LOOK = 2.0
"""Distance [m] along a direction at which it is judged, or at the last free cell before."""
_MARGIN = 12
"""Margin in cells around the drawn area and a goal through which a path to the goal may lead."""
_PAST = 28
"""Bound of path costs with a goal: the cost from here and this much more [fifths]: a promise is −1 from 25 on
over 2 m, and a neighbour's way is at most two diagonal steps at double cost longer, unless a corner parts them."""
_NEAR, _HOME = 4.0, 6.0
"""Decay lengths of nearness (value 1/e) by path length to the frontier: end of a direction, and from here [m]."""
_COUNT_SCALE = 3.0
"""Divisor of the log counts."""

Floats = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int64]


@numba.njit(cache=True, nogil=True)
def _open(mark: int, hoped: bool = False) -> bool:
    """Whether a cell is traversable; on the way to a goal unknown cells count as free."""
    return mark & WALL == 0 if hoped else mark & (FREE | WALL) == FREE


@numba.njit(cache=True, nogil=True)
def _factor(marks: Bytes, i: int, k: int) -> int:
    """Return the cost factor of a step out of a cell: 2 next to unknown cells or walls, else 1."""
    last = marks.shape[0] - 1
    if i == 0 or k == 0 or i == last or k == last:
        return 2
    beside = _open(marks[i - 1, k]) and _open(marks[i + 1, k])
    return 1 if beside and _open(marks[i, k - 1]) and _open(marks[i, k + 1]) else 2


@numba.njit(cache=True, nogil=True)
def _around(marks: Bytes, i: int, k: int, window: int, mask: int, mark: int) -> int:
    """Count the cells in a window around a cell whose marks under the mask equal a value."""
    size, count = marks.shape[0], 0
    for ni in range(max(i - window, 0), min(i + window + 1, size)):
        for nk in range(max(k - window, 0), min(k + window + 1, size)):
            count += marks[ni, nk] & mask == mark
    return count


@numba.njit(cache=True, nogil=True)
def _is_frontier(marks: Bytes, i: int, k: int, rule: int) -> bool:
    """Whether a cell is a frontier by a rule: `UNSEEN`, `EDGE`, `SLIVER` or `OUTSIDE`."""
    if not _open(marks[i, k]):
        return False
    if rule != OUTSIDE and marks[i, k] & VOID:
        return False
    if rule == EDGE:
        last = marks.shape[0] - 1
        if i == 0 or k == 0 or i == last or k == last:
            return False
        known = FREE | WALL
        beside = marks[i - 1, k] & known and marks[i + 1, k] & known
        if beside and marks[i, k - 1] & known and marks[i, k + 1] & known:
            return False
        return _around(marks, i, k, 2, known, 0) >= _MUCH
    if marks[i, k] & SEEN:
        return False
    if rule == SLIVER:
        return _around(marks, i, k, 1, FREE | SEEN | WALL | VOID, FREE) >= _SOME
    mask = FREE | SEEN | WALL if rule == OUTSIDE else FREE | SEEN | WALL | VOID
    return _around(marks, i, k, 2, mask, FREE) >= _MANY


@numba.njit(cache=True, nogil=True)
def path_costs(  # noqa: C901 (numba kernel: one compiled loop)
    marks: Bytes,
    box: Rows,
    rule: int,
    way: Ints,
    queue: Ints,
    fill: Rows,
    factor: Bytes,
    goal: int = NOWHERE,
    here: int = NOWHERE,
) -> None:
    """Compute shortest-path costs (Dial's algorithm) from each free cell to a frontier or goal; no corner cutting.

    Shortest paths with small whole costs, in buckets (Dial 1969). To a goal the path may lead through unknown cells,
    which cost double, as do cells beside them (the free-space assumption, Koenig and Likhachev 2002).

    Args:
        marks: (G, G) marks of one row.
        box: (4,) first and last index that may be marked, along x and along z.
        rule: Frontier rule.
        way: (G, G) fifths of a cell, `UNREACHED` where there is no way; written within the box.
        queue: (16, G²) scratch.
        fill: (16,) scratch.
        factor: (G, G) scratch.
        goal: Flat index of the cell that the way leads to; `NOWHERE`: to the frontier by the rule.
        here: Flat index of a cell: ways that are more than `_PAST` longer than its own are not all measured; they
            are `UNREACHED` or too long. `NOWHERE`: all are.
    """
    size, hoped = marks.shape[0], goal != NOWHERE
    fill[:] = 0
    for i in range(box[0], box[1] + 1):
        for k in range(box[2], box[3] + 1):
            way[i, k] = UNREACHED
            # What a step into a cell costs is asked for from up to eight sides.
            factor[i, k] = _factor(marks, i, k) if _open(marks[i, k], hoped) else 0
            if i * size + k == goal if hoped else _is_frontier(marks, i, k, rule):
                way[i, k] = 0
                queue[0, fill[0]] = i * size + k
                fill[0] += 1
    waiting = fill[0]
    now = 0
    while waiting > 0:
        if here != NOWHERE and way[here // size, here % size] < now - _PAST:
            break
        bucket = now % _BUCKETS
        # Steps cost 5 or 7, so nothing is added to the bucket that is being emptied; a cell enters a bucket at most
        # once before that is emptied, for all its entries mean the same way.
        for n in range(fill[bucket]):
            i, k = queue[bucket, n] // size, queue[bucket, n] % size
            if way[i, k] != now:
                continue
            for ni in range(max(i - 1, box[0]), min(i + 2, box[1] + 1)):
                for nk in range(max(k - 1, box[2]), min(k + 2, box[3] + 1)):
                    if factor[ni, nk] == 0:
                        continue
                    diagonal = ni != i and nk != k
                    if diagonal and (factor[ni, k] == 0 or factor[i, nk] == 0):
                        continue
                    there = now + (_DIAGONAL if diagonal else FIFTHS) * factor[ni, nk]
                    if there < way[ni, nk]:
                        way[ni, nk] = there
                        into = there % _BUCKETS
                        queue[into, fill[into]] = ni * size + nk
                        fill[into] += 1
                        waiting += 1
        waiting -= fill[bucket]
        fill[bucket] = 0
        now += 1


@numba.njit(cache=True, nogil=True)
def _along(marks: Bytes, way: Ints, box: Rows, i: int, k: int, cells: int, hoped: bool) -> tuple[int, int]:
    """Follow the shortest path for a number of cells; return the cell there, or the path's end if nearer."""
    for _ in range(cells):
        best, bi, bk = way[i, k], i, k
        for ni in range(max(i - 1, box[0]), min(i + 2, box[1] + 1)):
            for nk in range(max(k - 1, box[2]), min(k + 2, box[3] + 1)):
                # The way may end in a wall's cell: a goal beside it.
                if (not _open(marks[ni, nk], hoped) and way[ni, nk] != 0) or (ni == i and nk == k):
                    continue
                diagonal = ni != i and nk != k
                if diagonal and not (_open(marks[ni, k], hoped) and _open(marks[i, nk], hoped)):
                    continue
                there = way[ni, nk] + (_DIAGONAL if diagonal else FIFTHS) * _factor(marks, i, k)
                if there == way[i, k] and way[ni, nk] < best:
                    best, bi, bk = way[ni, nk], ni, nk
        if bi == i and bk == k:
            break
        i, k = bi, bk
    return i, k


@numba.njit(cache=True, nogil=True)
def _beside(
    marks: Bytes, way: Ints, box: Rows, px: float, pz: float, yaw: float, reach: Floats, hoped: bool
) -> tuple[int, int]:
    """Return the best visible neighbour, by path cost, of a drone's cell that is marked as a wall.

    Args:
        marks: (G, G) marks.
        way: (G, G) ways.
        box: (4,) where they are written.
        px: x of the drone, in cells.
        pz: z of the drone, in cells.
        yaw: Yaw of the drone [rad].
        reach: (Az,) horizontal ranges, in cells.
        hoped: Whether unknown cells count as free.
    """
    i, k = math.floor(px), math.floor(pz)
    bins, best, bi, bk = len(reach), UNREACHED, i, k
    for ni in range(max(i - 1, box[0]), min(i + 2, box[1] + 1)):
        for nk in range(max(k - 1, box[2]), min(k + 2, box[3] + 1)):
            if not _open(marks[ni, nk], hoped):
                continue
            x, z = ni + 0.5 - px, nk + 0.5 - pz
            turn = math.floor((math.atan2(x, -z) + yaw) / (2.0 * math.pi) * bins + 0.5) % bins
            if reach[turn] >= math.hypot(x, z) and way[ni, nk] < best:
                best, bi, bk = way[ni, nk], ni, nk
    return bi, bk


@numba.njit(cache=True, nogil=True)
def _goal_cell(goal: Floats, cell: float, size: int, area: Rows) -> int:
    """Return the flat index of a goal's cell (clamped to the map) and widen the search area to it."""
    if math.isnan(goal[0]):
        return NOWHERE
    gi = min(max(math.floor(goal[0] / cell + size / 2.0), 1), size - 2)
    gk = min(max(math.floor(goal[1] / cell + size / 2.0), 1), size - 2)
    area[0], area[1] = max(min(area[0], gi) - _MARGIN, 0), min(max(area[1], gi) + _MARGIN, size - 1)
    area[2], area[3] = max(min(area[2], gk) - _MARGIN, 0), min(max(area[3], gk) + _MARGIN, size - 1)
    return int(gi * size + gk)


@numba.njit(cache=True, nogil=True)
def _write_sectors(
    marks: Bytes,
    way: Ints,
    area: Rows,
    where: tuple[float, float, float],
    own: int,
    most: int,
    cell: float,
    sight: float,
    out: Float32,
) -> None:
    """Write each sector's features: promise (path saved per metre), nearness; `own`: path cost here, or `UNREACHED`.

    Ways are bounded by `most`.
    """
    (px, pz, yaw), metres, reached = where, cell / FIFTHS, own < UNREACHED
    for s in range(SECTORS):
        angle = 2.0 * math.pi * s / SECTORS - yaw
        dx, dz = math.sin(angle), -math.cos(angle)
        least, promise = math.inf, -1.0
        for n in range(1, int(sight / cell) + 1):
            ni, nk = math.floor(px + dx * n), math.floor(pz + dz * n)
            if not (area[0] <= ni <= area[1] and area[2] <= nk <= area[3]) or not _open(marks[ni, nk]):
                break
            there = min(way[ni, nk], most)
            if there < UNREACHED:
                left = there * metres
                least = min(least, left)
                if n * cell <= _LOOK:
                    promise = ((own * metres if reached else 0.0) - left) / (n * cell)
        out[s] = min(max(promise, -1.0), 1.0) if reached else 0.0
        out[SECTORS + s] = math.exp(-least / _NEAR)


@numba.njit(cache=True, nogil=True)
def _write_counts(
    way: Ints, area: Rows, i: int, k: int, where: tuple[float, float, float], cell: float, out: Float32
) -> None:
    """Write the frontier-count features around a cell: log(1 + frontier cells) / 3 of each (sector, ring)."""
    (px, pz, yaw), bands = where, len(RINGS)
    count = np.zeros((SECTORS, bands), np.float64)
    around = int(RINGS[bands - 1] / cell)
    for ni in range(max(i - around, area[0]), min(i + around, area[1]) + 1):
        for nk in range(max(k - around, area[2]), min(k + around, area[3]) + 1):
            if way[ni, nk] != 0:
                continue
            x, z = ni + 0.5 - px, nk + 0.5 - pz
            away = math.hypot(x, z) * cell
            for r in range(bands):
                if away <= RINGS[r]:
                    turn = (math.atan2(x, -z) + yaw) / (2.0 * math.pi) * SECTORS + 0.5
                    count[math.floor(turn) % SECTORS, r] += 1.0
                    break
    for s in range(SECTORS):
        for r in range(bands):
            out[s * bands + r] = math.log1p(count[s, r]) / _COUNT_SCALE


@numba.njit(cache=True, nogil=True)
def _write_bearings(
    marks: Bytes,
    way: Ints,
    area: Rows,
    i: int,
    k: int,
    where: tuple[float, float, float],
    hoped: bool,
    stride: int,
    out: Float32,
) -> None:
    """Write the bearings (cosine, sine) of the waypoints `stride`·`AHEAD` along the path from a cell."""
    px, pz, yaw = where
    for n in range(len(AHEAD)):
        ni, nk = _along(marks, way, area, i, k, stride * AHEAD[n], hoped)
        x, z = ni + 0.5 - px, nk + 0.5 - pz
        if math.hypot(x, z) > 0.0:
            turn = math.atan2(x, -z) + yaw
            out[2 * n], out[2 * n + 1] = math.cos(turn), math.sin(turn)


@numba.njit(cache=True, nogil=True)
def frontier_features(  # its length is the list of arguments
    marks: Bytes,
    rows: Rows,
    pose: Floats,
    reach: Floats,
    box: Rows,
    cell: float,
    sight: float,
    scratch: tuple[Ints, Ints, Rows, Bytes],
    goal: Floats,
    out: Float32,
    everywhere: bool = False,
    stride: int = 1,
) -> None:
    """Compute the frontier features of some rows of occupancy grids.

    A goal takes the frontier's place: its way may lead through unknown cells, and ways longer than the one from here
    plus `_PAST` count as that long. Each sector, relative to the heading, has three features. Its *promise* is the
    shortening of the way to the frontier per metre of straight flight through known free cells, over 2 m, in [−1, 1].
    Its *nearness* is exp(−way / 4 m) from the best cell within sight on that line. Its counts are log(1 + frontier
    cells) / 3 for each ring. Then follow the bearings, cosine and sine, of waypoints along the way to the nearest
    frontier, exp(−way from here / 6 m), and whether there is a way.

    Args:
        marks: (R, G, G) marks.
        rows: (B,) the rows.
        pose: (R, 4) x, y, z [m] from the middle of the map, and yaw [rad].
        reach: (R, Az) horizontal ranges [m].
        box: (R, 4) first and last index that may be marked, along x and along z.
        cell: Edge of a cell [m].
        sight: Length of a straight flight that is followed [m].
        scratch: (G, G) ways, (16, G²) queue, (16,) fill, (G, G) factors of `path_costs`.
        goal: (R, 2) x and z of goals [m] from the middle of the map; NaN for rows without.
        out: (R, OCCUPANCY_INPUTS): promise of each sector, nearness of each sector, counts (sector, ring), bearings
            (waypoint, 2), the way from here, whether there is one; written, but for the last `MOVED`.
        everywhere: Measure all ways to a goal; slower, with the same features.
        stride: Cells for one of `AHEAD`.
    """
    way, queue, fill, factor = scratch
    size, half = marks.shape[1], marks.shape[1] / 2.0
    counts = 2 * SECTORS
    bearings = counts + SECTORS * len(RINGS)
    last = bearings + 2 * len(AHEAD)
    area = np.empty(4, np.int64)
    for b in rows:
        area[:] = box[b]
        where = (pose[b, 0] / cell + half, pose[b, 2] / cell + half, pose[b, 3])
        i, k = math.floor(where[0]), math.floor(where[1])
        to = _goal_cell(goal[b], cell, size, area)
        hoped = to != NOWHERE
        inside, reached = area[0] <= i <= area[1] and area[2] <= k <= area[3], False
        for rule in (UNSEEN, EDGE, SLIVER, OUTSIDE):
            # Without open ground the features are those of the last rule.
            if rule == OUTSIDE and _around(marks[b], i, k, size, VOID, VOID) == 0:
                break
            here = i * size + k if hoped and inside and not everywhere else NOWHERE
            path_costs(marks[b], area, rule, way, queue, fill, factor, to, here)
            if inside and marks[b, i, k] & WALL and way[i, k] != 0:
                i, k = _beside(marks[b], way, area, where[0], where[1], where[2], reach[b] / cell, hoped)
            reached = inside and way[i, k] < UNREACHED
            if reached or hoped:
                break
        own = way[i, k] if reached else UNREACHED
        most = own + _PAST if hoped and reached else UNREACHED
        _write_sectors(marks[b], way, area, where, own, most, cell, sight, out[b])
        _write_counts(way, area, i, k, where, cell, out[b, counts:bearings])
        out[b, bearings : last + 2] = 0.0
        if reached:
            _write_bearings(marks[b], way, area, i, k, where, hoped, stride, out[b, bearings:last])
            out[b, last], out[b, last + 1] = math.exp(-own * (cell / FIFTHS) / _HOME), 1.0
