"""Mesh kernels: decimation by edge collapse with quadric errors, and triangulation of polygons.

Edges collapse in passes of edges that do not touch (Garland and Heckbert 1997). Every collapse moves two vertices to
one place and drops the triangles between them, whose remains other triangles cover: a continuous map of the surface,
so that what was closed stays closed whatever the order and the topology. Coordinates may be any unit. Polygons become
fans where these will do, ears of the others.
"""

import numba
import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
_LEAST_TURN = 0.2
"""Least cosine between a triangle's normals before and after a collapse: below it folds over its neighbours."""


@numba.njit(cache=True, error_model="numpy")
def _add_plane(quadric: Float64, normal: Float64, d: float) -> None:
    plane = np.array([normal[0], normal[1], normal[2], d])
    k = 0
    for i in range(4):
        for j in range(i, 4):
            quadric[k] += plane[i] * plane[j]
            k += 1


@numba.njit(cache=True, error_model="numpy")
def add_quadrics(vertices: Float64, faces: Int32, border: Bool, quadrics: Float64) -> None:
    """Accumulate every face's plane quadric at its vertices, plus a plane that stands on the face at border edges.

    Args:
        vertices: (V, 3).
        faces: (F, 3).
        border: (F, 3) whether edge k, from corner k to the next, is a border.
        quadrics: (V, 10) sums of squared plane distances: xx xy xz xd yy yz yd zz zd dd.
    """
    for f in range(faces.shape[0]):
        a, b, c = faces[f, 0], faces[f, 1], faces[f, 2]
        n = np.cross(vertices[b] - vertices[a], vertices[c] - vertices[a])
        length = np.sqrt((n * n).sum())
        if length <= 0.0:
            continue
        n /= length
        d = -(n * vertices[a]).sum()
        for k in range(3):
            _add_plane(quadrics[faces[f, k]], n, d)
        for k in range(3):
            if not border[f, k]:
                continue
            p, q = faces[f, k], faces[f, (k + 1) % 3]
            e = np.cross(n, vertices[q] - vertices[p])
            length = np.sqrt((e * e).sum())
            if length > 0.0:
                e /= length
                d_e = -(e * vertices[p]).sum()
                _add_plane(quadrics[p], e, d_e)
                _add_plane(quadrics[q], e, d_e)


@numba.njit(cache=True, inline="always", error_model="numpy")
def _error(q: Float64, x: float, y: float, z: float) -> float:
    error: float = (
        q[0] * x * x
        + q[4] * y * y
        + q[7] * z * z
        + q[9]
        + 2.0 * (q[1] * x * y + q[2] * x * z + q[5] * y * z + q[3] * x + q[6] * y + q[8] * z)
    )
    return error


@numba.njit(cache=True, parallel=True, error_model="numpy")
def edge_costs(vertices: Float64, quadrics: Float64, edges: Int32, cost: Float64, target: Float64) -> None:
    """Compute each edge's quadric-error cost and collapse target, the best of its ends and its middle.

    Args:
        vertices: (V, 3).
        quadrics: (V, 10).
        edges: (E, 2).
        cost: (E,) out, sum of squared plane distances.
        target: (E, 3) out.
    """
    for e in numba.prange(edges.shape[0]):
        a, b = vertices[edges[e, 0]], vertices[edges[e, 1]]
        q = quadrics[edges[e, 0]] + quadrics[edges[e, 1]]
        best = np.inf
        for k in range(3):
            wb = 0.5 * k
            x = a[0] + wb * (b[0] - a[0])
            y = a[1] + wb * (b[1] - a[1])
            z = a[2] + wb * (b[2] - a[2])
            error = max(_error(q, x, y, z), 0.0)
            if error < best:
                best = error
                target[e, 0], target[e, 1], target[e, 2] = x, y, z
        cost[e] = best


@numba.njit(cache=True, error_model="numpy")
def _folds(vertices: Float64, faces: Int32, at: Int64, ring: Int32, u: int, v: int, place: Float64) -> bool:
    """Test whether moving vertex u to `place` flips one of its triangles, apart from those that also hold v."""
    old = np.empty((3, 3))
    new = np.empty((3, 3))
    for i in range(at[u], at[u + 1]):
        f = ring[i]
        gone = False
        for k in range(3):
            corner = faces[f, k]
            gone |= corner == v
            old[k] = vertices[corner]
            new[k] = place if corner == u else vertices[corner]
        if gone:
            continue
        n = np.cross(old[1] - old[0], old[2] - old[0])
        m = np.cross(new[1] - new[0], new[2] - new[0])
        size = np.sqrt((n * n).sum() * (m * m).sum())
        if size <= 0.0 or (n * m).sum() < _LEAST_TURN * size:
            return True
    return False


@numba.njit(cache=True)
def _uncovers(faces: Int32, at: Int64, ring: Int32, u: int, v: int) -> bool:
    """Test whether collapsing edge uv turns a triangle into a segment that no other triangle covers."""
    for i in range(at[u], at[u + 1]):
        f = ring[i]
        a, b, c = faces[f, 0], faces[f, 1], faces[f, 2]
        if a != v and b != v and c != v:
            continue
        w = a + b + c - u - v
        covered = False
        for j in range(at[w], at[w + 1]):
            g = ring[j]
            has_u = faces[g, 0] == u or faces[g, 1] == u or faces[g, 2] == u
            has_v = faces[g, 0] == v or faces[g, 1] == v or faces[g, 2] == v
            covered |= has_u != has_v
        if not covered:
            return True
    return False


@numba.njit(cache=True, error_model="numpy")
def collapse_edges(
    vertices: Float64, faces: Int32, quadrics: Float64, edges: Int32, target: Float64, at: Int64, ring: Int32,
    parent: Int32,
) -> int:  # fmt: skip
    """Perform one edge-collapse pass of quadric-error mesh decimation, cheapest first; return the number of collapses.

    Edges are collapsed in the given order; none may touch another's triangles.

    Args:
        vertices: (V, 3), the kept ones are moved.
        faces: (F, 3) as they were before the pass.
        quadrics: (V, 10), the kept ones become sums.
        edges: (E, 2), cheapest first.
        target: (E, 3) where each edge's vertices go.
        at: (V + 1,) bounds of each vertex' faces in `ring`.
        ring: Faces of each vertex.
        parent: (V,) out, the vertex that each one became.
    """
    still = np.ones(vertices.shape[0], np.bool_)
    done = 0
    for e in range(edges.shape[0]):
        u, v = edges[e, 0], edges[e, 1]
        if not still[u] or not still[v] or _uncovers(faces, at, ring, u, v):
            continue
        if _folds(vertices, faces, at, ring, u, v, target[e]) or _folds(vertices, faces, at, ring, v, u, target[e]):
            continue
        for w in (u, v):
            for i in range(at[w], at[w + 1]):
                for k in range(3):
                    still[faces[ring[i], k]] = False
        vertices[u] = target[e]
        quadrics[u] += quadrics[v]
        parent[v] = u
        done += 1
    return done


_FLAT = 1e-6
"""Tolerance for inverted triangles in the fan of a flat polygon, as a share of its area."""
_MOST_FORCED = 8
"""Most forced corners (no ear found) before the search stops: the outline crosses itself all over."""


@numba.njit(cache=True, inline="always")
def _area(p: Float64, a: int, b: int, c: int) -> float:
    """Return twice the signed area of the 2D triangle of three points."""
    area: float = (p[b, 0] - p[a, 0]) * (p[c, 1] - p[a, 1]) - (p[b, 1] - p[a, 1]) * (p[c, 0] - p[a, 0])
    return area


@numba.njit(cache=True)
def _project(points: Float64, ring: Int64, p: Float64) -> float:
    """Project a 3-D polygon onto its dominant coordinate plane, counter-clockwise; return twice the projected area."""
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
    """Test whether corner b is an ear (ear clipping): convex, and no other corner in its triangle."""
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
    """Triangulate polygons with K corners each, by a fan or by ear clipping.

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
