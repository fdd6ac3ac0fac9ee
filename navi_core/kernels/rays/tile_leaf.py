"""Ray–triangle tests of a BVH leaf for a tile of rays, numba: the second half of csrc/rays/tile.h's twin."""

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.bvh.hierarchy import GROUP

LANES = 16
"""SIMD lanes: rays of a tile."""
FAR = np.float32(3e38)
ZERO, ONE = np.float32(0.0), np.float32(1.0)
_ROUNDING = np.float32(4e-7)
"""Relative rounding error of an edge test, over the one-norms of its vectors."""

# The state of a tile, rows of LANES numbers: directions and widened inverse directions by axis, the least time met
# and the bound of interest, the stay in the present box, the present triangle's time, and who takes part.
SLOPE, NEAR_INVERSE, FAR_INVERSE = 0, 3 * LANES, 6 * LANES
BEST, BOUND, NEAR, LEAVE, _TIME, ACTIVE = (k * LANES for k in (9, 10, 11, 12, 13, 14))
STATE = 15 * LANES
# A leaf, rows of GROUP numbers: edges (x, y, z, tolerance) three times, normal, height over the origin; and the
# times of one ray.
EDGES = 17 * GROUP

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


@numba.njit(cache=True, error_model="numpy")
def _prepare(
    corners: Float32, at: int, ox: np.float32, oy: np.float32, oz: np.float32, slack: np.float32, edges: Float32
) -> None:
    """Precompute edges, normals and heights of a triangle group at `at`, relative to the rays' origin."""
    for k in range(GROUP):
        ax, ay, az = corners[at + k] - ox, corners[at + GROUP + k] - oy, corners[at + 2 * GROUP + k] - oz
        bx, by, bz = (
            corners[at + 3 * GROUP + k] - ox,
            corners[at + 4 * GROUP + k] - oy,
            corners[at + 5 * GROUP + k] - oz,
        )
        cx, cy, cz = (
            corners[at + 6 * GROUP + k] - ox,
            corners[at + 7 * GROUP + k] - oy,
            corners[at + 8 * GROUP + k] - oz,
        )
        ux, uy, uz, vx, vy, vz = bx - ax, by - ay, bz - az, cx - ax, cy - ay, cz - az
        nx, ny, nz = uy * vz - uz * vy, uz * vx - ux * vz, ux * vy - uy * vx
        height = nx * ax + ny * ay + nz * az
        turn = -ONE if height < ZERO else ONE
        edges[12 * GROUP + k], edges[13 * GROUP + k], edges[14 * GROUP + k] = turn * nx, turn * ny, turn * nz
        edges[15 * GROUP + k] = turn * height
        sx, sy, sz, dx, dy, dz = bx + cx, by + cy, bz + cz, cx - bx, cy - by, cz - bz
        edges[k] = turn * (sy * dz - sz * dy)
        edges[GROUP + k] = turn * (sz * dx - sx * dz)
        edges[2 * GROUP + k] = turn * (sx * dy - sy * dx)
        edges[3 * GROUP + k] = (abs(dx) + abs(dy) + abs(dz)) * ((abs(sx) + abs(sy) + abs(sz)) * _ROUNDING + slack)
        sx, sy, sz, dx, dy, dz = cx + ax, cy + ay, cz + az, ax - cx, ay - cy, az - cz
        edges[4 * GROUP + k] = turn * (sy * dz - sz * dy)
        edges[5 * GROUP + k] = turn * (sz * dx - sx * dz)
        edges[6 * GROUP + k] = turn * (sx * dy - sy * dx)
        edges[7 * GROUP + k] = (abs(dx) + abs(dy) + abs(dz)) * ((abs(sx) + abs(sy) + abs(sz)) * _ROUNDING + slack)
        sx, sy, sz, dx, dy, dz = ax + bx, ay + by, az + bz, bx - ax, by - ay, bz - az
        edges[8 * GROUP + k] = turn * (sy * dz - sz * dy)
        edges[9 * GROUP + k] = turn * (sz * dx - sx * dz)
        edges[10 * GROUP + k] = turn * (sx * dy - sy * dx)
        edges[11 * GROUP + k] = (abs(dx) + abs(dy) + abs(dz)) * ((abs(sx) + abs(sy) + abs(sz)) * _ROUNDING + slack)


@numba.njit(cache=True, error_model="numpy")
def _by_triangle(state: Float32, edges: Float32, i: int) -> int:
    """Intersect active rays with triangle `i`: write hit times (_TIME; FAR: miss), return the number of candidates."""
    ux, uy, uz, ut = edges[i], edges[GROUP + i], edges[2 * GROUP + i], edges[3 * GROUP + i]
    vx, vy, vz, vt = edges[4 * GROUP + i], edges[5 * GROUP + i], edges[6 * GROUP + i], edges[7 * GROUP + i]
    wx, wy, wz, wt = edges[8 * GROUP + i], edges[9 * GROUP + i], edges[10 * GROUP + i], edges[11 * GROUP + i]
    nx, ny, nz, height = edges[12 * GROUP + i], edges[13 * GROUP + i], edges[14 * GROUP + i], edges[15 * GROUP + i]
    count = 0
    for lane in range(LANES):
        x, y, z = state[SLOPE + lane], state[SLOPE + LANES + lane], state[SLOPE + 2 * LANES + lane]
        u = x * ux + (y * uy + (z * uz + ut))
        v = x * vx + (y * vy + (z * vz + vt))
        w = x * wx + (y * wy + (z * wz + wt))
        slope = x * nx + (y * ny + z * nz)
        u = u if u < v else v
        u = u if u < w else w
        t = height / slope
        t = t if t > state[NEAR + lane] else state[NEAR + lane]
        hit = (u >= ZERO) & (slope > ZERO) & (state[ACTIVE + lane] > ZERO) & (t <= state[BOUND + lane])
        state[_TIME + lane] = t if hit else FAR
        count += 1 if hit else 0
    return count


@numba.njit(cache=True, error_model="numpy")
def _by_ray(edges: Float32, x: np.float32, y: np.float32, z: np.float32, near: np.float32, bound: np.float32) -> int:
    """Intersect one ray with a triangle group: write hit times (row 16; FAR: miss), return the candidates' number."""
    count = 0
    for k in range(GROUP):
        u = x * edges[k] + (y * edges[GROUP + k] + (z * edges[2 * GROUP + k] + edges[3 * GROUP + k]))
        v = x * edges[4 * GROUP + k] + (y * edges[5 * GROUP + k] + (z * edges[6 * GROUP + k] + edges[7 * GROUP + k]))
        w = x * edges[8 * GROUP + k] + (y * edges[9 * GROUP + k] + (z * edges[10 * GROUP + k] + edges[11 * GROUP + k]))
        slope = x * edges[12 * GROUP + k] + (y * edges[13 * GROUP + k] + z * edges[14 * GROUP + k])
        u = u if u < v else v
        u = u if u < w else w
        t = edges[15 * GROUP + k] / slope
        t = t if t > near else near
        hit = (u >= ZERO) & (slope > ZERO) & (t <= bound)
        edges[16 * GROUP + k] = t if hit else FAR
        count += 1 if hit else 0
    return count


@numba.njit(cache=True, error_model="numpy")
def _meet(
    state: Float32,
    triangle: Int32,
    flags: Int32,
    lane: int,
    t: np.float32,
    who: int,
    tie: np.float32,
    reach: np.float32,
) -> None:
    """Record a hit of ray `lane` with triangle `who` at t; ties as csrc/rays/tile.h; `flags`: tied, chained bits."""
    best = state[BEST + lane]
    bit = 1 << lane
    if np.float32(t + tie) < best:
        state[BEST + lane] = best = t
        triangle[lane] = who
        flags[0] &= ~bit
    else:
        if t < best:
            flags[1] |= flags[0] & bit
            state[BEST + lane] = best = t
            flags[0] |= bit
        elif t > best:
            flags[0] |= bit
        triangle[lane] = min(triangle[lane], who)
    bound = np.float32(best + tie)
    state[BOUND + lane] = bound if bound < reach else reach


@numba.njit(cache=True, error_model="numpy")
def _meet_all(state: Float32, triangle: Int32, flags: Int32, who: int, tie: np.float32, reach: np.float32) -> None:
    """Record the hits in _TIME of all rays, as `_meet`; vectorised where no face is within a tie of another."""
    near = 0
    for lane in range(LANES):
        t = state[_TIME + lane]
        near += 1 if (t <= state[BOUND + lane]) & (t + tie >= state[BEST + lane]) else 0
    if near or flags[0]:
        for lane in range(LANES):
            if state[_TIME + lane] <= state[BOUND + lane]:
                _meet(state, triangle, flags, lane, state[_TIME + lane], who, tie, reach)
        return
    for lane in range(LANES):
        t = state[_TIME + lane]
        triangle[lane] = who if t <= state[BOUND + lane] else triangle[lane]
    for lane in range(LANES):
        t = state[_TIME + lane]
        best = t if t <= state[BOUND + lane] else state[BEST + lane]
        bound = best + tie
        state[BEST + lane] = best
        state[BOUND + lane] = bound if bound < reach else reach


@numba.njit(cache=True, error_model="numpy")
def meet_leaf(
    corners: Float32, ids: Int32, group: int, ox: np.float32, oy: np.float32, oz: np.float32, active: int,
    tie: np.float32, slack: np.float32, reach: np.float32,
    state: Float32, edges: Float32, triangle: Int32, flags: Int32,
) -> bool:  # fmt: skip
    """Intersect a tile's active rays with a leaf's triangles; return whether a hit was recorded."""
    _prepare(corners, 9 * GROUP * group, ox, oy, oz, slack, edges)
    first = GROUP * group
    count = GROUP
    while count > 1 and ids[first + count - 1] < 0:
        count -= 1
    changed = False
    if 2 * active <= count:
        for lane in range(LANES):
            if state[ACTIVE + lane] == ZERO:
                continue
            if not _by_ray(
                edges, state[SLOPE + lane], state[SLOPE + LANES + lane], state[SLOPE + 2 * LANES + lane],
                state[NEAR + lane], state[BOUND + lane],
            ):  # fmt: skip
                continue
            for i in range(count):
                t = edges[16 * GROUP + i]
                if t <= state[BOUND + lane] and ids[first + i] >= 0:
                    _meet(state, triangle, flags, lane, t, ids[first + i], tie, reach)
                    changed = True
        return changed
    for i in range(count):
        if ids[first + i] < 0 or not _by_triangle(state, edges, i):
            continue
        _meet_all(state, triangle, flags, ids[first + i], tie, reach)
        changed = True
    return changed
