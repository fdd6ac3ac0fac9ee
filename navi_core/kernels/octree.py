"""Descent of version 1 octrees: ray casting per voxel and leaf look-up, as other tools' files need it.

A finest leaf holds the unsigned distance at its voxel's minimum corner. Along a ray that crosses a
surface, successive voxels are face neighbours, so the signed distance of their corners changes by at
most one voxel per step: one of the two around the crossing is at most half a voxel away. A finest
leaf whose corner is that near is therefore a hit, and no plane is ever missed.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["HIT_DISTANCE", "cast_octree", "surface_corners"]

HIT_DISTANCE = 0.5005
"""A corner at most this far from the surface makes its voxel a hit [voxel]; the excess covers fp16 rounding."""

UInt64 = npt.NDArray[np.uint64]
Float32 = npt.NDArray[np.float32]


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
    """Decode IEEE binary16; the loader has replaced every non-finite value."""
    exponent = (bits >> 10) & 31
    mantissa = bits & 1023
    value = mantissa * 2.0**-24 if exponent == 0 else (1024 + mantissa) * 2.0 ** (exponent - 25)
    return -value if bits & 0x8000 else value


@numba.njit(cache=True, inline="always", error_model="numpy")
def _popcount_below(mask: int, bit: int) -> int:
    rest = mask & ((1 << bit) - 1)
    count = 0
    while rest:
        rest &= rest - 1
        count += 1
    return count


@numba.njit(cache=True, error_model="numpy")
def _leaf_at(nodes: UInt64, base: int, resolution: int, x: int, y: int, z: int) -> tuple[int, int]:
    """Return (word index, cell edge in voxels) of the cell that holds voxel (x, y, z); index −1: absent child."""
    index = 0
    size = resolution
    while True:
        word = nodes[base + index]
        if word >> np.uint64(63):
            return base + index, size
        size >>= 1
        bit = (1 if x & size else 0) | (2 if y & size else 0) | (4 if z & size else 0)
        mask = np.int64((word >> np.uint64(55)) & np.uint64(255))
        if not (mask >> bit) & 1:
            return -1, size
        table = np.int64(word & np.uint64(0xFFFFFFFF))
        index = np.int64(nodes[base + table + _popcount_below(mask, bit)] & np.uint64(0xFFFFFFFF))


@numba.njit(cache=True, error_model="numpy")
def _cast_one(
    nodes: UInt64, base: int, resolution: int, voxel: float,
    ox: float, oy: float, oz: float, dx: float, dy: float, dz: float, t_max: float,
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
        word_index, size = _leaf_at(nodes, base, resolution, int(px), int(py), int(pz))
        x0 = float((int(px) // size) * size)
        y0 = float((int(py) // size) * size)
        z0 = float((int(pz) // size) * size)
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
                if distance <= HIT_DISTANCE:
                    foot = (x0 - ox) * dx + (y0 - oy) * dy + (z0 - oz) * dz
                    at = min(max(foot, t), until)
                    return (at, word_index) if at <= t_max else (t_max, -1)
                # The corner knows its distance, the ray's point is up to a voxel diagonal away.
                away = math.sqrt((px - x0) ** 2 + (py - y0) ** 2 + (pz - z0) ** 2)
                skip_to = max(until, t + distance - away - 2.0)
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
    block = 64
    blocks = (rays + block - 1) // block
    for job in numba.prange(rows * blocks):
        b = job // blocks
        s = scene[b]
        if s < 0:
            continue
        voxel = frame[s, 3]
        ox = (origins[b, 0] - frame[s, 0]) / voxel
        oy = (origins[b, 1] - frame[s, 1]) / voxel
        oz = (origins[b, 2] - frame[s, 2]) / voxel
        q = 0 if shared else b
        first = (job % blocks) * block
        for r in range(first, min(first + block, rays)):
            t, word = _cast_one(
                nodes, bases[s], resolution[s], voxel, ox, oy, oz,
                np.float64(directions[q, r, 0]), np.float64(directions[q, r, 1]), np.float64(directions[q, r, 2]),
                max_distance / voxel,
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


@numba.njit(cache=True, error_model="numpy")
def _collect(nodes: UInt64, resolution: int, voxel: float, out: npt.NDArray[np.int32]) -> int:
    """Write the hit voxels in depth-first order; return how many there are."""
    stack = np.zeros((8 * 16, 5), np.int64)
    stack[0, 1] = resolution
    top, n = 1, 0
    while top > 0:
        top -= 1
        index, size = stack[top, 0], stack[top, 1]
        x, y, z = stack[top, 2], stack[top, 3], stack[top, 4]
        word = nodes[index]
        if word >> np.uint64(63):
            if size == 1 and _half_to_float(np.int64(word & np.uint64(0xFFFF))) <= HIT_DISTANCE * voxel:
                if n < out.shape[0]:
                    out[n, 0], out[n, 1], out[n, 2] = x, y, z
                n += 1
            continue
        mask = np.int64((word >> np.uint64(55)) & np.uint64(255))
        child = np.int64(word & np.uint64(0xFFFFFFFF))
        half = size >> 1
        for bit in range(8):
            if (mask >> bit) & 1:
                stack[top, 0] = np.int64(nodes[child] & np.uint64(0xFFFFFFFF))
                stack[top, 1] = half
                stack[top, 2] = x + (half if bit & 1 else 0)
                stack[top, 3] = y + (half if bit & 2 else 0)
                stack[top, 4] = z + (half if bit & 4 else 0)
                top += 1
                child += 1
    return n


def surface_corners(nodes: UInt64, resolution: int, voxel: float) -> npt.NDArray[np.int32]:
    """Return (N, 3) minimum corners of the voxels that count as surface, in voxels."""
    out = np.zeros((1024, 3), np.int32)
    count = _collect(nodes, resolution, voxel, out)
    if count > len(out):
        out = np.zeros((count, 3), np.int32)
        _collect(nodes, resolution, voxel, out)
    return out[:count]
