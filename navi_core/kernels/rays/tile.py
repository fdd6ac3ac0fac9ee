"""Traversal of the wide BVH by tiles (packets) of rays in numba: the bit-exact twin of csrc/rays/tile.h.

Float32 throughout, in the order of csrc/rays/tile.h's portable path, so that both give the same bits. The inner
loops run over flat arrays with constant offsets: that is what the compiler turns into vector instructions.
"""

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.bvh.hierarchy import NOBODY, STACK, WIDTH
from navi_core.kernels.rays.tile_leaf import (
    ACTIVE,
    BEST,
    BOUND,
    EDGES,
    FAR,
    FAR_INVERSE,
    LANES,
    LEAVE,
    NEAR,
    NEAR_INVERSE,
    ONE,
    SLOPE,
    STATE,
    ZERO,
    meet_leaf,
)

TIE = 1e-4
"""Distance below which faces are coincident [voxel]: the lowest triangle index wins."""
_HUGE = np.float32(1e30)
_FLAT = np.float32(1e-20)
_SHORT = np.float32(1.0 - 4 * 2.0**-24)
_LONG = np.float32(1.0 + 4 * 2.0**-24)

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@numba.njit(cache=True, error_model="numpy")
def _aim(state: Float32, interval: Float32, plane: Int32) -> int:
    """Compute the inverse directions of a tile's rays; `interval` (3, 2) and `plane` (3, 2) bound the whole tile.

    Returns a bit for each axis along which the rays go both ways.
    """
    mixed = 0
    for a in range(3):
        forward_near, backward_near, forward_far, backward_far = FAR, -FAR, ZERO, ZERO
        forward, backward = 0, 0
        for lane in range(LANES):
            slope = state[SLOPE + a * LANES + lane]
            inverse = _HUGE if abs(slope) < _FLAT else ONE / slope
            near, far = inverse * _SHORT, inverse * _LONG
            state[NEAR_INVERSE + a * LANES + lane] = near
            state[FAR_INVERSE + a * LANES + lane] = far
            if inverse < ZERO:
                backward += 1
                backward_near = near if near > backward_near else backward_near
                backward_far = far if far < backward_far else backward_far
            else:
                forward += 1
                forward_near = near if near < forward_near else forward_near
                forward_far = far if far > forward_far else forward_far
        if forward and backward:
            mixed |= 1 << a
            plane[a, 0], plane[a, 1] = a, 3 + a
            interval[a, 0], interval[a, 1] = forward_near, backward_near
        elif backward:
            plane[a, 0], plane[a, 1] = 3 + a, a
            interval[a, 0], interval[a, 1] = backward_near, backward_far
        else:
            plane[a, 0], plane[a, 1] = a, 3 + a
            interval[a, 0], interval[a, 1] = forward_near, forward_far
    return mixed


@numba.njit(cache=True, error_model="numpy")
def _open(
    planes: Float32, node: int, ox: np.float32, oy: np.float32, oz: np.float32, interval: Float32, plane: Int32,
    mixed: int, far: np.float32, near: Float32, leave: Float32,
) -> None:  # fmt: skip
    """Slab test of a BVH node (planes from `node`): write where the tile enters (8,) and leaves (8,) each child box."""
    for k in range(WIDTH):
        near[k] = ZERO
        leave[k] = far
    for a in range(3):
        o = ox if a == 0 else (oy if a == 1 else oz)
        enter, exit_, first, second = interval[a, 0], interval[a, 1], plane[a, 0], plane[a, 1]
        p, q = node + WIDTH * first, node + WIDTH * second
        if mixed >> a & 1:
            for k in range(WIDTH):
                n, m = (planes[p + k] - o) * enter, (planes[q + k] - o) * exit_
                n = n if n > m else m
                near[k] = n if n > near[k] else near[k]
        else:
            for k in range(WIDTH):
                n, f = (planes[p + k] - o) * enter, (planes[q + k] - o) * exit_
                near[k] = n if n > near[k] else near[k]
                leave[k] = f if f < leave[k] else leave[k]


@numba.njit(cache=True, error_model="numpy")
def _stay(
    state: Float32, ax: np.float32, ay: np.float32, az: np.float32, bx: np.float32, by: np.float32, bz: np.float32
) -> int:
    """Slab test of each ray, by its entry and exit planes: write the intervals, return the number of rays inside."""
    count = 0
    for lane in range(LANES):
        n, m, o = (
            ax * state[NEAR_INVERSE + lane],
            ay * state[NEAR_INVERSE + LANES + lane],
            az * state[NEAR_INVERSE + 2 * LANES + lane],
        )
        n = n if n > m else m
        n = n if n > o else o
        n = n if n > ZERO else ZERO
        f, g, h = (
            bx * state[FAR_INVERSE + lane],
            by * state[FAR_INVERSE + LANES + lane],
            bz * state[FAR_INVERSE + 2 * LANES + lane],
        )
        f = f if f < g else g
        f = f if f < h else h
        state[NEAR + lane] = n
        f = f if f < state[BOUND + lane] else state[BOUND + lane]
        state[ACTIVE + lane] = ONE if n <= f else ZERO
        count += 1 if n <= f else 0
    return count


@numba.njit(cache=True, error_model="numpy")
def _stay_mixed(
    state: Float32, ax: np.float32, ay: np.float32, az: np.float32, bx: np.float32, by: np.float32, bz: np.float32
) -> int:
    """Slab test as `_stay`, for rays of both signs along an axis, by lower and upper planes."""
    for lane in range(LANES):
        state[NEAR + lane] = ZERO
        state[LEAVE + lane] = FAR
    for a in range(3):
        p, q = (ax, bx) if a == 0 else ((ay, by) if a == 1 else (az, bz))
        for lane in range(LANES):
            i, j = state[NEAR_INVERSE + a * LANES + lane], state[FAR_INVERSE + a * LANES + lane]
            n, m = p * i, q * i
            n = n if n < m else m
            f, g = p * j, q * j
            f = f if f > g else g
            state[NEAR + lane] = n if n > state[NEAR + lane] else state[NEAR + lane]
            state[LEAVE + lane] = f if f < state[LEAVE + lane] else state[LEAVE + lane]
    count = 0
    for lane in range(LANES):
        f = state[LEAVE + lane] if state[LEAVE + lane] < state[BOUND + lane] else state[BOUND + lane]
        state[ACTIVE + lane] = ONE if state[NEAR + lane] <= f else ZERO
        count += 1 if state[NEAR + lane] <= f else 0
    return count


@numba.njit(cache=True, error_model="numpy")
def _walk(  # noqa: C901 (numba kernel: one compiled loop)
    planes: Float32, child: Int32, corners: Float32, ids: Int32, root: int, groups: int,
    ox: np.float32, oy: np.float32, oz: np.float32, mixed: int, tie: np.float32, slack: np.float32, reach: np.float32,
    state: Float32, edges: Float32, triangle: Int32, flags: Int32, interval: Float32, plane: Int32,
    near: Float32, leave: Float32, stack: Int32, bound: Float32,
) -> None:  # fmt: skip
    """Traverse the BVH with the tile of rays in `state`."""
    far = reach
    top, node = 0, 0
    while True:
        if node >= 0:
            flags[2] += 1
            _open(planes, 6 * WIDTH * (root + node), ox, oy, oz, interval, plane, mixed, far, near, leave)
            bottom = top
            for k in range(WIDTH):
                n = near[k]
                if n <= leave[k]:
                    i = top
                    top += 1
                    while i > bottom and bound[i - 1] < n:
                        stack[i], bound[i] = stack[i - 1], bound[i - 1]
                        i -= 1
                    stack[i], bound[i] = WIDTH * node + k, n
            node = -1
        if top == 0:
            return
        top -= 1
        if bound[top] > far:
            continue
        box = stack[top]
        at = 6 * WIDTH * (root + box // WIDTH) + box % WIDTH
        ax, ay, az = (
            planes[at + WIDTH * plane[0, 0]] - ox,
            planes[at + WIDTH * plane[1, 0]] - oy,
            planes[at + WIDTH * plane[2, 0]] - oz,
        )
        bx, by, bz = (
            planes[at + WIDTH * plane[0, 1]] - ox,
            planes[at + WIDTH * plane[1, 1]] - oy,
            planes[at + WIDTH * plane[2, 1]] - oz,
        )
        active = _stay_mixed(state, ax, ay, az, bx, by, bz) if mixed else _stay(state, ax, ay, az, bx, by, bz)
        if active == 0:
            continue
        node = child[WIDTH * root + box]
        if node == NOBODY:  # rays that are no unit vectors may reach a void
            node = -1
        elif node < 0:
            flags[3] += 1
            if meet_leaf(
                corners, ids, groups - 1 - node, ox, oy, oz, active, tie, slack, reach, state, edges, triangle, flags
            ):
                far = state[BOUND]
                for lane in range(1, LANES):
                    far = state[BOUND + lane] if state[BOUND + lane] > far else far
            node = -1


def tile_layout(directions: Float32) -> tuple[int, int, int]:
    """Detect the ray grid of directions (R, 3): (elevations, azimuths of a tile, elevations of a tile); 0: no grid.

    A panorama lies azimuth by azimuth, so that the heights of its rays come again and again.
    """
    height = directions[:, 1]
    again = np.flatnonzero(height[1:] == height[0])
    period = int(again[0]) + 1 if len(again) else 0
    if not period or len(height) % period or not (height.reshape(-1, period) == height[:period]).all():
        return 0, LANES, 1
    columns = len(height) // period
    shapes = [LANES >> k for k in range(LANES.bit_length())]
    wide = min(shapes, key=lambda w: (2 * w / columns + (LANES // w) / period, -w))
    return period, wide, LANES // wide


@numba.njit(cache=True, parallel=True, error_model="numpy")
def cast_tiles(  # noqa: C901 (numba kernel: one compiled loop)
    planes: Float32, child: Int32, corners: Float32, ids: Int32, semantic: Int32, bases: Int64, limits: Float32,
    elevations: int, wide: int, high: int,
    origins: Float32, directions: Float32, scene: Int32, max_distance: float,
    depth: Float32, hit_semantic: Int32, valid: npt.NDArray[np.bool_],
) -> Int64:  # fmt: skip
    """Cast R rays from each of B origins, tile by tile; return (2,) counts of opened nodes and tested leaves.

    Args:
        planes: Flat, with `child`, `corners`, `ids` the wide hierarchies of all scenes, see `build_wide`.
        child: Flat.
        corners: Flat.
        ids: Flat.
        semantic: (F,) corpus-wide semantic ids.
        bases: (S, 3) first node, group and triangle of each scene.
        limits: (S, 2) tie and slack of each scene [m].
        elevations: Layout of the rays, see `tile_layout`.
        wide: Azimuths of a tile.
        high: Elevations of a tile.
        origins: (B, 3) [m].
        directions: (B or 1, R, 3) unit vectors; one set serves all rows.
        scene: (B,) scene of each row; a row of −1 is skipped.
        max_distance: Range [m].
        depth: (B, R) out [m]; `max_distance` at a miss.
        hit_semantic: (B, R) out; 0 at a miss.
        valid: (B, R) out.
    """
    rows, rays = depth.shape
    shared = directions.shape[0] == 1
    columns = rays // elevations if elevations else 0
    bands = (elevations + high - 1) // high if elevations else 1
    tiles = (columns + wide - 1) // wide * bands if elevations else (rays + LANES - 1) // LANES
    block = 64
    blocks = (tiles + block - 1) // block
    work = np.zeros((rows * blocks, 2), np.int64)
    for job in numba.prange(rows * blocks):
        b = job // blocks
        s = scene[b]
        if s < 0:
            continue
        q = 0 if shared else b
        range_ = np.float32(max_distance)
        reach = range_ if range_ < _HUGE else _HUGE
        tie, slack = limits[s, 0], limits[s, 1]
        ox, oy, oz = origins[b, 0], origins[b, 1], origins[b, 2]
        state, edges = np.empty(STATE, np.float32), np.empty(EDGES, np.float32)
        triangle, flags = np.empty(LANES, np.int32), np.zeros(4, np.int32)
        interval, plane = np.empty((3, 2), np.float32), np.empty((3, 2), np.int32)
        near, leave = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.float32)
        stack, bound, ray = np.empty(STACK, np.int32), np.empty(STACK, np.float32), np.empty(LANES, np.int64)
        for tile in range(job % blocks * block, min(job % blocks * block + block, tiles)):
            for lane in range(LANES):
                if elevations:
                    azimuth = min(tile // bands * wide + lane // high, columns - 1)
                    ray[lane] = azimuth * elevations + min(tile % bands * high + lane % high, elevations - 1)
                else:
                    ray[lane] = min(tile * LANES + lane, rays - 1)
                for a in range(3):
                    state[SLOPE + a * LANES + lane] = directions[q, ray[lane], a]
                state[BEST + lane] = FAR
                state[BOUND + lane] = reach
                triangle[lane] = -1
            flags[0] = flags[1] = 0
            mixed = _aim(state, interval, plane)
            for again in range(2):
                if again:
                    if not flags[1]:
                        break
                    for lane in range(LANES):
                        triangle[lane] = 2147483647 if triangle[lane] >= 0 else -1
                _walk(
                    planes, child, corners, ids, bases[s, 0], bases[s, 1], ox, oy, oz, mixed, tie, slack, reach,
                    state, edges, triangle, flags, interval, plane, near, leave, stack, bound,
                )  # fmt: skip
            for lane in range(LANES):
                f = triangle[lane]
                depth[b, ray[lane]] = state[BEST + lane] if f >= 0 else range_
                hit_semantic[b, ray[lane]] = semantic[bases[s, 2] + f] if f >= 0 else 0
                valid[b, ray[lane]] = f >= 0
        work[job, 0], work[job, 1] = flags[2], flags[3]
    total: npt.NDArray[np.int64] = work.sum(axis=0)
    return total
