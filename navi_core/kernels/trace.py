"""Ray casting through the surface trees of many scenes, numba, float64 arithmetic on float32 planes.

Positions are in voxels of the row's scene. A ray walks from cell to cell; an empty cell is left
through its empty cube, a surface cell through its box after its triangles have been tested. The exit
axis is set to the cell boundary exactly, so the walk always makes progress and skips no cell.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

from navi_core.kernels.surface_tree import SPLIT

__all__ = ["EDGE_DILATION", "TIE", "cast_surface", "clip_to_cube", "forward"]

EDGE_DILATION = 1e-3
"""Triangles are widened by this much in their plane [voxel], so that shared edges cannot leak."""
_BEFORE = 0.02
"""A hit this far before the cell's entry is still accepted [voxel]; lists are dilated by as much."""
_AFTER = 0.01
"""A hit this far behind the cell's exit is accepted at once [voxel]."""
TIE = 1e-4
"""Faces closer together than this are coincident: the lowest triangle index wins [voxel]."""
_NUDGE = 1e-6
"""Offset past a cell boundary on the exit axis [voxel]."""

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


@numba.njit(cache=True, inline="always", error_model="numpy")
def clip_to_cube(
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
def forward(old: float, new: float, slope: float, last: float) -> float:
    """Return the new coordinate, not behind the old one along the ray, within [0, last]."""
    if slope > 0.0:
        return min(max(new, old), last)
    if slope < 0.0:
        return max(min(new, old), 0.0)
    return old


@numba.njit(cache=True, inline="always", error_model="numpy")
def _nearest_in_list(
    planes: Float32, items: Int32, base: int, start: int, count: int,
    ox: float, oy: float, oz: float, dx: float, dy: float, dz: float, t_low: float, best: float,
) -> tuple[float, int]:  # fmt: skip
    winner = -1
    for m in range(start, start + count):
        f = base + items[m]
        nx, ny, nz = planes[f, 0], planes[f, 1], planes[f, 2]
        slope = nx * dx + ny * dy + nz * dz
        if slope == 0.0:
            continue
        t = -(nx * ox + ny * oy + nz * oz + planes[f, 3]) / slope
        if t < t_low or t > best - TIE:
            continue
        px, py, pz = ox + t * dx, oy + t * dy, oz + t * dz
        if planes[f, 4] * px + planes[f, 5] * py + planes[f, 6] * pz + planes[f, 7] < -EDGE_DILATION:
            continue
        if planes[f, 8] * px + planes[f, 9] * py + planes[f, 10] * pz + planes[f, 11] < -EDGE_DILATION:
            continue
        if planes[f, 12] * px + planes[f, 13] * py + planes[f, 14] * pz + planes[f, 15] < -EDGE_DILATION:
            continue
        best, winner = t, f
    return best, winner


@numba.njit(cache=True, error_model="numpy")
def _cast_one(
    grid: Int32, cubes: npt.NDArray[np.uint8], records: Int32, items: Int32, planes: Float32,
    grid_base: int, record_base: int, item_base: int, triangle_base: int, cells: int, edge: float,
    ox: float, oy: float, oz: float, dx: float, dy: float, dz: float, t_max: float,
) -> tuple[float, int]:  # fmt: skip
    """Return (t, triangle) of the first hit, (t_max, −1) where there is none; t in voxels."""
    resolution = cells * edge
    huge = 1e30
    ix = 1.0 / dx if dx != 0.0 else huge
    iy = 1.0 / dy if dy != 0.0 else huge
    iz = 1.0 / dz if dz != 0.0 else huge
    octant = (1 if dx < 0.0 else 0) | (2 if dy < 0.0 else 0) | (4 if dz < 0.0 else 0)
    t, leave = clip_to_cube(ox, oy, oz, dx, dy, dz, ix, iy, iz, resolution, t_max)
    if t > leave:
        return t_max, -1
    last = resolution - _NUDGE
    px = min(max(ox + t * dx, 0.0), last)
    py = min(max(oy + t * dy, 0.0), last)
    pz = min(max(oz + t * dz, 0.0), last)
    inverse_edge = 1.0 / edge
    cube_base = 8 * grid_base + octant * cells * cells * cells
    # The bound only ends a walk that rounding has trapped; a straight ray meets far fewer cells.
    for _ in range(3 * SPLIT * SPLIT * cells + 16):
        cx, cy, cz = int(px * inverse_edge), int(py * inverse_edge), int(pz * inverse_edge)
        index = (cx * cells + cy) * cells + cz
        k = cubes[cube_base + index]
        if k > 0:
            bx = (cx + k) * edge if dx > 0.0 else (cx + 1 - k) * edge
            by = (cy + k) * edge if dy > 0.0 else (cy + 1 - k) * edge
            bz = (cz + k) * edge if dz > 0.0 else (cz + 1 - k) * edge
            tx = (bx - ox) * ix if dx != 0.0 else huge
            ty = (by - oy) * iy if dy != 0.0 else huge
            tz = (bz - oz) * iz if dz != 0.0 else huge
            exit_t = min(tx, ty, tz)
        else:
            x0, y0, z0, size = cx * edge, cy * edge, cz * edge, edge
            r = record_base + grid[grid_base + index]
            start, count = records[r, 0], records[r, 1]
            while count < 0:
                size /= SPLIT
                i = min(max(int((px - x0) / size), 0), SPLIT - 1)
                j = min(max(int((py - y0) / size), 0), SPLIT - 1)
                k = min(max(int((pz - z0) / size), 0), SPLIT - 1)
                x0 += i * size
                y0 += j * size
                z0 += k * size
                r = record_base + start + (i * SPLIT + j) * SPLIT + k
                start, count = records[r, 0], records[r, 1]
            bx = x0 + size if dx > 0.0 else x0
            by = y0 + size if dy > 0.0 else y0
            bz = z0 + size if dz > 0.0 else z0
            tx = (bx - ox) * ix if dx != 0.0 else huge
            ty = (by - oy) * iy if dy != 0.0 else huge
            tz = (bz - oz) * iz if dz != 0.0 else huge
            exit_t = min(tx, ty, tz)
            if count > 0:
                best, winner = _nearest_in_list(
                    planes, items, triangle_base, item_base + start, count,
                    ox, oy, oz, dx, dy, dz, max(t - _BEFORE, 0.0), min(exit_t + _AFTER, t_max) + TIE,
                )  # fmt: skip
                if winner >= 0:
                    return best, winner
        if exit_t >= leave:
            return t_max, -1
        t = max(t, exit_t)
        # Never back over a boundary already crossed: rounding at an edge would trap the walk.
        px = forward(px, ox + t * dx, dx, last)
        py = forward(py, oy + t * dy, dy, last)
        pz = forward(pz, oz + t * dz, dz, last)
        if exit_t == tx:
            px = bx + _NUDGE if dx > 0.0 else bx - _NUDGE
            if px < 0.0 or px >= resolution:
                return t_max, -1
        elif exit_t == ty:
            py = by + _NUDGE if dy > 0.0 else by - _NUDGE
            if py < 0.0 or py >= resolution:
                return t_max, -1
        else:
            pz = bz + _NUDGE if dz > 0.0 else bz - _NUDGE
            if pz < 0.0 or pz >= resolution:
                return t_max, -1
    return t_max, -1


@numba.njit(cache=True, parallel=True, error_model="numpy")
def cast_surface(
    grid: Int32, cubes: npt.NDArray[np.uint8], records: Int32, items: Int32, planes: Float32,
    semantic: Int32, bases: npt.NDArray[np.int64], frame: npt.NDArray[np.float64], cells: Int32,
    origins: Float32, directions: Float32, scene: Int32, max_distance: float,
    depth: Float32, label: Int32, valid: npt.NDArray[np.bool_],
) -> None:  # fmt: skip
    """Cast R rays from each of B origins.

    Args:
        grid: Coarse grids of all scenes, one after the other.
        cubes: (sum 8·G³,) empty cubes, octant by octant within a scene; 0 at a surface cell.
        records: (N, 2) records of all scenes.
        items: (M,) lists of all scenes.
        planes: (F, 16) triangle planes of all scenes, in voxels of their scene.
        semantic: (F,) corpus-wide semantic ids.
        bases: (S, 4) first grid cell, record, item and triangle of each scene.
        frame: (S, 4) minimum corner [m] and voxel size [m] of each scene.
        cells: (S, 2) coarse cells per edge and resolution of each scene.
        origins: (B, 3) [m].
        directions: (B or 1, R, 3) unit vectors; one set serves all rows.
        scene: (B,) scene of each row; a row of −1 is skipped.
        max_distance: Range [m].
        depth: (B, R) out [m]; `max_distance` at a miss.
        label: (B, R) out; 0 at a miss.
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
        first = (job % blocks) * block
        voxel = frame[s, 3]
        ox = (origins[b, 0] - frame[s, 0]) / voxel
        oy = (origins[b, 1] - frame[s, 1]) / voxel
        oz = (origins[b, 2] - frame[s, 2]) / voxel
        count, resolution = cells[s, 0], cells[s, 1]
        edge = resolution / count
        t_max = max_distance / voxel
        q = 0 if shared else b
        for r in range(first, min(first + block, rays)):
            t, f = _cast_one(
                grid, cubes, records, items, planes,
                bases[s, 0], bases[s, 1], bases[s, 2], bases[s, 3], count, edge, ox, oy, oz,
                np.float64(directions[q, r, 0]), np.float64(directions[q, r, 1]), np.float64(directions[q, r, 2]),
                t_max,
            )  # fmt: skip
            hit = f >= 0 and math.isfinite(t) and t <= t_max
            depth[b, r] = max(t, 0.0) * voxel if hit else max_distance
            label[b, r] = semantic[f] if hit else 0
            valid[b, r] = hit
