"""Polygons into triangles: fans where they will do, ears of the others."""

import numba
import numpy as np
import numpy.typing as npt

_FLAT = 1e-6
"""Share of a polygon's area that a triangle of its fan may be turned over by and still be called flat."""
_MOST_FORCED = 8
"""Corners cut off where there was no ear after which none is looked for: the outline crosses itself all over."""

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


@numba.njit(cache=True, inline="always")
def _area(p: Float64, a: int, b: int, c: int) -> float:
    """Return twice the signed area of three points."""
    area: float = (p[b, 0] - p[a, 0]) * (p[c, 1] - p[a, 1]) - (p[b, 1] - p[a, 1]) * (p[c, 0] - p[a, 0])
    return area


@numba.njit(cache=True)
def _project(points: Float64, ring: Int64, p: Float64) -> float:
    """Write a polygon's corners in the plane, counter-clockwise; return twice their area."""
    count = ring.shape[0]
    # Newell's normal, from the first corner: the polygon may lie far from the origin.
    n = np.zeros(3)
    for k in range(1, count - 1):
        for a in range(3):
            i, j = (a + 1) % 3, (a + 2) % 3
            ui, uj = points[ring[k], i] - points[ring[0], i], points[ring[k], j] - points[ring[0], j]
            vi, vj = points[ring[k + 1], i] - points[ring[0], i], points[ring[k + 1], j] - points[ring[0], j]
            n[a] += ui * vj - uj * vi
    drop = 0
    for a in range(1, 3):
        if abs(n[a]) > abs(n[drop]):
            drop = a
    i, j = (drop + 1) % 3, (drop + 2) % 3
    if n[drop] < 0.0:
        i, j = j, i
    for k in range(count):
        p[k, 0] = points[ring[k], i] - points[ring[0], i]
        p[k, 1] = points[ring[k], j] - points[ring[0], j]
    area: float = abs(n[drop])
    return area


@numba.njit(cache=True)
def _is_ear(p: Float64, before: Int64, after: Int64, a: int, b: int, c: int) -> bool:
    """Return whether corner b can be cut off: it is not turned inwards, and nothing else lies in its triangle."""
    turn = _area(p, a, b, c)
    if turn <= 0.0:
        return turn == 0.0
    k = after[c]
    while k != a:
        inside = _area(p, a, b, k) >= 0.0 and _area(p, b, c, k) >= 0.0 and _area(p, c, a, k) >= 0.0
        # A hole is joined to the outline by a seam whose corners are there twice.
        same = False
        for q in (a, b, c):
            same |= p[k, 0] == p[q, 0] and p[k, 1] == p[q, 1]
        if inside and not same:
            return False
        # Where a hole touches the outline in a corner, its sides leave the triangle through the cut. A side that is
        # gone along twice goes first.
        if p[k, 0] == p[b, 0] and p[k, 1] == p[b, 1]:
            for q in (before[k], after[k]):
                if q in (a, c) or (_area(p, a, b, q) > 0.0 and _area(p, b, c, q) > 0.0):
                    return False
        k = after[k]
    return True


@numba.njit(cache=True)
def split_polygons(points: Float64, rings: Int64, faces: Int64) -> None:
    """Write the triangles of polygons with K corners each.

    Where all of a polygon can be seen from its first corner, it becomes the fan around that. Of another one ears are
    cut off (Meisters 1975) in the plane that it nearly lies in: a wall with a doorway stays open. One that crosses
    itself still gives K − 2 triangles.

    Args:
        points: (V, 3) positions.
        rings: (N, K) vertices of the polygons.
        faces: (N, K − 2, 3) out.
    """
    count = rings.shape[1]
    p = np.empty((count, 2))
    before, after = np.empty(count, np.int64), np.empty(count, np.int64)
    for i in range(rings.shape[0]):
        ring = rings[i]
        slack = -_FLAT * _project(points, ring, p)
        fan = True
        for k in range(count):
            before[k], after[k] = (k - 1) % count, (k + 1) % count
            fan &= not _area(p, 0, k, after[k]) < slack
        left, at, tried, forced, out = count, 0, 0, 0, 0
        while left > 2:
            if fan:
                a, b, c = 0, out + 1, out + 2
            else:
                a, b, c = before[at], at, after[at]
                if tried < left and forced < _MOST_FORCED and not _is_ear(p, before, after, a, b, c):
                    at = c
                    tried += 1
                    continue
                forced += tried == left
                after[a], before[c] = c, a
                at, tried = c, 0
            faces[i, out, 0], faces[i, out, 1], faces[i, out, 2] = ring[a], ring[b], ring[c]
            out += 1
            left -= 1
