"""Walk of rays through version 1 octrees, voxel by voxel: the oracle of the triangles that the loader makes of them.

A finest leaf holds the unsigned distance at its voxel's minimum corner; a voxel's other corners are its neighbours'.
Where all eight are known, `meet_voxel` finds the hit: on the plane that fits them, else in the middle of the gap
between the balls that they leave empty. Where some are not known and no neighbour keeps all corners of its voxel, a
voxel is a hit if its own corner is at most half a voxel from the surface.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.octree.voxel_surface import FP16_SLACK, fit_plane
from navi_core.scenes import Scene
from navi_core.scenes.gmdag.octree import HIT_DISTANCE

__all__ = ["CROSSING_SLACK", "meet_voxel", "walk_rays"]

CROSSING_SLACK = 0.005
"""A plane this much farther than it fits the corners counts as met at a voxel's face [voxel]: neighbours' fits meet."""

UNKNOWN, CLEAR = -1, -2

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@numba.njit(cache=True, error_model="numpy")
def _first_gap(
    corners: Float64, px: float, py: float, pz: float, dx: float, dy: float, dz: float, length: float
) -> tuple[float, float]:
    """Return the first part of the ray's [0, length] outside all balls [voxel]; it ends before it starts if none is."""
    start = 0.0
    moved = True
    while moved and start < length:
        moved = False
        end = length
        for c in range(8):
            radius = corners[c] - FP16_SLACK
            wx, wy, wz = (c & 1) - px, ((c >> 1) & 1) - py, (c >> 2) - pz
            foot = wx * dx + wy * dy + wz * dz
            half = radius * radius - (wx * wx + wy * wy + wz * wz - foot * foot)
            if radius <= 0.0 or half <= 0.0:
                continue
            half = math.sqrt(half)
            if foot + half <= start:
                continue
            if foot - half <= start:
                start = foot + half
                moved = True
            else:
                end = min(end, foot - half)
    return (start, end) if start < length else (length, -1.0)


@numba.njit(cache=True, error_model="numpy")
def meet_voxel(
    corners: Float64, px: float, py: float, pz: float, dx: float, dy: float, dz: float, length: float
) -> float:
    """Return where a ray meets the surface in a voxel, negative where it does not.

    Args:
        corners: (8,) unsigned distances [voxel] at corner x + 2y + 4z.
        px, py, pz: The ray's first point in the voxel, from its minimum corner [voxel].
        dx, dy, dz: Unit direction.
        length: Way through the voxel [voxel].
    """
    nx, ny, nz, k, residual = fit_plane(corners)
    if residual < np.inf:
        height = nx * px + ny * py + nz * pz - k
        slope = nx * dx + ny * dy + nz * dz
        other = height + slope * length
        slack = residual + CROSSING_SLACK
        if (height > slack and other > slack) or (height < -slack and other < -slack):
            return -1.0
        at = -height / slope if slope != 0.0 else 0.0
        return min(max(at, 0.0), length)
    start, end = _first_gap(corners, px, py, pz, dx, dy, dz, length)
    return 0.5 * (start + end) if start <= end else -1.0


@numba.njit(cache=True, inline="always", error_model="numpy")
def _clip_to_cube(
    ox: float, oy: float, oz: float, dx: float, dy: float, dz: float, ix: float, iy: float, iz: float,
    size: float, t_max: float,
) -> tuple[float, float]:  # fmt: skip
    """Return where a ray enters and leaves the cube [0, size]³; it misses it if it enters after it leaves."""
    enter = 0.0
    leave = t_max
    for a in range(3):
        o = ox if a == 0 else (oy if a == 1 else oz)
        d = dx if a == 0 else (dy if a == 1 else dz)
        inv = ix if a == 0 else (iy if a == 1 else iz)
        if d == 0.0:
            if o < 0.0 or o > size:
                leave = -1.0
        else:
            near, far = -o * inv, (size - o) * inv
            if near > far:
                near, far = far, near
            enter = max(enter, near)
            leave = min(leave, far)
    return enter, leave


@numba.njit(cache=True, inline="always", error_model="numpy")
def _forward(old: float, new: float, slope: float, last: float) -> float:
    """Return the new coordinate, not behind the old one along the ray, within [0, last]."""
    if slope > 0.0:
        return min(max(new, old), last)
    if slope < 0.0:
        return max(min(new, old), 0.0)
    return old


@numba.njit(cache=True, inline="always", error_model="numpy")
def _half_to_float(bits: int) -> float:
    """Decode IEEE binary16; the loader has refused negative values and replaced every non-finite one."""
    exponent = (bits >> 10) & 31
    mantissa = bits & 1023
    return mantissa * 2.0**-24 if exponent == 0 else ((1024 + mantissa) << exponent) * 2.0**-25


@numba.njit(cache=True, inline="always", error_model="numpy")
def _popcount_below(mask: int, bit: int) -> int:
    rest = mask & ((1 << bit) - 1)
    rest -= (rest >> 1) & 0x55
    rest = (rest & 0x33) + ((rest >> 2) & 0x33)
    return (rest + (rest >> 4)) & 15


@numba.njit(cache=True, error_model="numpy")
def _leaf_at(nodes: UInt64, base: int, resolution: int, block: Int64, x: int, y: int, z: int) -> tuple[int, int]:
    """Return (word index, cell edge in voxels) of the cell that holds voxel (x, y, z); index −1: absent child.

    `block` remembers the inner node of the 8³ voxels looked at last, for the next ones are mostly in them too.
    """
    index, size = 0, resolution
    if block[0] == x >> 3 and block[1] == y >> 3 and block[2] == z >> 3:
        index, size = block[3], 8
    while True:
        word = nodes[base + index]
        if word >> np.uint64(63):
            return base + index, size
        if size == 8:
            block[0], block[1], block[2], block[3] = x >> 3, y >> 3, z >> 3, index
        size >>= 1
        bit = (1 if x & size else 0) | (2 if y & size else 0) | (4 if z & size else 0)
        mask = np.int64((word >> np.uint64(55)) & np.uint64(255))
        if not (mask >> bit) & 1:
            return -1, size
        table = np.int64(word & np.uint64(0xFFFFFFFF))
        index = np.int64(nodes[base + table + _popcount_below(mask, bit)] & np.uint64(0xFFFFFFFF))


@numba.njit(cache=True, error_model="numpy")
def _load_corners(
    nodes: UInt64, base: int, resolution: int, voxel: float, block: Int64, x: int, y: int, z: int,
    ux: float, uy: float, uz: float, ex: float, ey: float, ez: float, corners: Float64,
) -> int:  # fmt: skip
    """Write the distances of a voxel's corners [voxel]; return the word of the least.

    UNKNOWN is returned where a corner is not known, CLEAR where the empty ball around one holds the whole way from u
    to e. The far corner comes first: together with the near one, which the walk has seen, it settles most voxels.
    """
    if max(x, y, z) >= resolution - 1:
        return UNKNOWN
    nearest = UNKNOWN
    least = np.inf
    for c in range(7, -1, -1):
        cx, cy, cz = c & 1, (c >> 1) & 1, c >> 2
        index, size = _leaf_at(nodes, base, resolution, block, x + cx, y + cy, z + cz)
        if index < 0 or size > 1:
            return UNKNOWN
        corners[c] = _half_to_float(np.int64(nodes[index] & np.uint64(0xFFFF))) / voxel
        begin = (ux - cx) * (ux - cx) + (uy - cy) * (uy - cy) + (uz - cz) * (uz - cz)
        finish = (ex - cx) * (ex - cx) + (ey - cy) * (ey - cy) + (ez - cz) * (ez - cz)
        radius = max(corners[c] - FP16_SLACK, 0.0)
        if max(begin, finish) < radius * radius:
            return CLEAR
        if corners[c] < least:
            nearest, least = index, corners[c]
    return nearest


@numba.njit(cache=True, error_model="numpy")
def _is_elsewhere(nodes: UInt64, base: int, resolution: int, block: Int64, x: int, y: int, z: int) -> bool:
    """Tell whether the surface near the minimum corner of a voxel that lacks corners is surely in another voxel.

    It lies in one of the eight voxels around that corner. Writers that keep all corners of surface voxels give
    themselves away: one of the eight has all. Eight neighbours that hold leaves only because the surface passes
    through each of them do not occur around one plane.
    """
    for around in range(1, 8):
        ax, ay, az = x - (around & 1), y - ((around >> 1) & 1), z - (around >> 2)
        known = min(ax, ay, az) >= 0 and max(ax, ay, az) < resolution - 1
        c = 7
        while known and c >= 0:
            index, size = _leaf_at(nodes, base, resolution, block, ax + (c & 1), ay + ((c >> 1) & 1), az + (c >> 2))
            known = index >= 0 and size == 1
            c -= 1
        if known:
            return True
    return False


@numba.njit(cache=True, error_model="numpy")
def _cast_one(
    nodes: UInt64, base: int, resolution: int, voxel: float,
    ox: float, oy: float, oz: float, dx: float, dy: float, dz: float, t_max: float,
    block: Int64, corners: Float64,
) -> tuple[float, int]:  # fmt: skip
    """Return (t [voxel], word index) of the first hit, (t_max, −1) where there is none."""
    huge = 1e30
    ix = 1.0 / dx if dx != 0.0 else huge
    iy = 1.0 / dy if dy != 0.0 else huge
    iz = 1.0 / dz if dz != 0.0 else huge
    t, leave = _clip_to_cube(ox, oy, oz, dx, dy, dz, ix, iy, iz, resolution, t_max)
    if t > leave:
        return t_max, -1
    last = resolution - 1e-6
    px = min(max(ox + t * dx, 0.0), last)
    py = min(max(oy + t * dy, 0.0), last)
    pz = min(max(oz + t * dz, 0.0), last)
    for _ in range(8 * resolution + 16):
        word_index, size = _leaf_at(nodes, base, resolution, block, int(px), int(py), int(pz))
        x0 = float(int(px) & -size)
        y0 = float(int(py) & -size)
        z0 = float(int(pz) & -size)
        bx = x0 + size if dx > 0.0 else x0
        by = y0 + size if dy > 0.0 else y0
        bz = z0 + size if dz > 0.0 else z0
        tx = (bx - ox) * ix if dx != 0.0 else huge
        ty = (by - oy) * iy if dy != 0.0 else huge
        tz = (bz - oz) * iz if dz != 0.0 else huge
        exit_t = min(tx, ty, tz)
        # A ray that begins on a boundary and barely falls back over it has left this cell before it entered it.
        until = max(exit_t, t)
        skip_to = until
        if word_index >= 0:
            distance = _half_to_float(np.int64(nodes[word_index] & np.uint64(0xFFFF))) / voxel
            if size == 1:
                ux, uy, uz = px - x0, py - y0, pz - z0
                way = until - t
                ex, ey, ez = ux + way * dx, uy + way * dy, uz + way * dz
                free = max(distance - FP16_SLACK, 0.0)
                if max(ux * ux + uy * uy + uz * uz, ex * ex + ey * ey + ez * ez) >= free * free:
                    x, y, z = int(px), int(py), int(pz)
                    nearest = _load_corners(
                        nodes, base, resolution, voxel, block, x, y, z, ux, uy, uz, ex, ey, ez, corners
                    )
                    at = -1.0
                    if nearest >= 0:
                        at = meet_voxel(corners, ux, uy, uz, dx, dy, dz, way)
                        if at >= 0.0:
                            at += t
                    elif (
                        nearest == UNKNOWN
                        and distance <= HIT_DISTANCE
                        and not _is_elsewhere(nodes, base, resolution, block, x, y, z)
                    ):
                        foot = (x0 - ox) * dx + (y0 - oy) * dy + (z0 - oz) * dz
                        at = min(max(foot, t), until)
                        nearest = word_index
                    if at >= 0.0:
                        return (at, nearest) if at <= t_max else (t_max, -1)
                # The corner knows its distance, the ray's point is up to a voxel diagonal away.
                skip_to = max(until, t + distance - math.sqrt(ux * ux + uy * uy + uz * uz) - 2.0)
            else:
                skip_to = max(until, t + distance - 2.0)
        if skip_to >= leave:
            return t_max, -1
        t = skip_to
        # Never back over a boundary already crossed: rounding at an edge would trap the walk.
        px = _forward(px, ox + t * dx, dx, last)
        py = _forward(py, oy + t * dy, dy, last)
        pz = _forward(pz, oz + t * dz, dz, last)
        if skip_to == until:
            if exit_t == tx:
                px = bx + 1e-6 if dx > 0.0 else bx - 1e-6
                if px < 0.0 or px >= resolution:
                    return t_max, -1
            elif exit_t == ty:
                py = by + 1e-6 if dy > 0.0 else by - 1e-6
                if py < 0.0 or py >= resolution:
                    return t_max, -1
            else:
                pz = bz + 1e-6 if dz > 0.0 else bz - 1e-6
                if pz < 0.0 or pz >= resolution:
                    return t_max, -1
    return t_max, -1


@numba.njit(cache=True, parallel=True, error_model="numpy")
def cast_octree(
    nodes: UInt64, bases: npt.NDArray[np.int64], frame: npt.NDArray[np.float64], resolution: npt.NDArray[np.int32],
    remap: npt.NDArray[np.int32], remap_base: npt.NDArray[np.int64],
    origins: Float32, directions: Float32, scene: npt.NDArray[np.int32], max_distance: float,
    depth: Float32, label: npt.NDArray[np.int32], valid: npt.NDArray[np.bool_],
) -> None:  # fmt: skip
    """Cast rays through version 1 octrees; arguments as `cast_tiles`, a row of scene −1 is skipped.

    Args:
        nodes: Words of all octrees, one after the other.
        bases: (S,) first word of each octree.
        frame: (S, 4) minimum corner [m] and voxel size [m].
        resolution: (S,) voxels per edge.
        remap: Corpus-wide semantic id by scene-local id, all scenes.
        remap_base: (S + 1,) first entry of each scene in `remap`.
        origins: (B, 3) [m].
        directions: (B or 1, R, 3) unit vectors.
        scene: (B,) octree of each row.
        max_distance: Range [m].
        depth: (B, R) out [m].
        label: (B, R) out.
        valid: (B, R) out.
    """
    rows, rays = depth.shape
    shared = directions.shape[0] == 1
    chunk = 64
    chunks = (rays + chunk - 1) // chunk
    for job in numba.prange(rows * chunks):
        b = job // chunks
        s = scene[b]
        if s < 0:
            continue
        voxel = frame[s, 3]
        ox = (origins[b, 0] - frame[s, 0]) / voxel
        oy = (origins[b, 1] - frame[s, 1]) / voxel
        oz = (origins[b, 2] - frame[s, 2]) / voxel
        q = 0 if shared else b
        first = (job % chunks) * chunk
        block = np.full(4, -1, np.int64)
        corners = np.empty(8)
        for r in range(first, min(first + chunk, rays)):
            t, word = _cast_one(
                nodes, bases[s], resolution[s], voxel, ox, oy, oz,
                np.float64(directions[q, r, 0]), np.float64(directions[q, r, 1]), np.float64(directions[q, r, 2]),
                max_distance / voxel, block, corners,
            )  # fmt: skip
            if word >= 0:
                local = np.int64((nodes[word] >> np.uint64(16)) & np.uint64(0xFFFF))
                table = remap_base[s + 1] - remap_base[s]
                depth[b, r] = t * voxel
                label[b, r] = remap[remap_base[s] + local] if local < table else 1
                valid[b, r] = True
            else:
                depth[b, r] = max_distance
                label[b, r] = 0
                valid[b, r] = False


def walk_rays(scene: Scene, origins: Float32, directions: Float32, max_distance: float) -> tuple[np.ndarray, ...]:
    """Return depth [m], semantic id and hit, each (B, R), of the rays (R, 3) from the origins (B, 3) in an octree."""
    shape = len(origins), len(directions)
    out = np.zeros(shape, np.float32), np.zeros(shape, np.int32), np.zeros(shape, np.bool_)
    ids = np.arange(65536, dtype=np.int32)
    frame = np.array([[*scene.bounds[0], scene.voxel_size]])
    resolution, row = np.array([scene.resolution], np.int32), np.zeros(len(origins), np.int32)
    cast_octree(
        scene.nodes, np.zeros(1, np.int64), frame, resolution, ids, np.array([0, len(ids)]),
        origins, directions[None], row, max_distance, *out,
    )  # fmt: skip
    return out
