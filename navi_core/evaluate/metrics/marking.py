"""Grid traversal: cells of a floor grid that rays cross or paths fly through.

Exact grid traversal (Amanatides & Woo 1987) in numba; a cell is crossed when the segment enters it before its end.
Cells are named (ix, iz); cell (0, 0) has its minimum corner at the grid's origin.
"""

import math

import numpy as np
from numba import njit

RAYS_PER_CAST = 1 << 19
"""Rays cast at once before they are marked, to bound memory."""


@njit(cache=True, nogil=True)
def _mark_segment(
    x: float, z: float, dx: float, dz: float, length: float, wanted: np.ndarray, marked: np.ndarray
) -> int:
    """Mark wanted cells that a segment crosses; coordinates in cells, (dx, dz) per unit of `length`.

    Returns:
        The number of cells that were not marked before.
    """
    width, depth = wanted.shape
    ix, iz = math.floor(x), math.floor(z)
    step_x = 1 if dx > 0 else -1
    step_z = 1 if dz > 0 else -1
    # Ray parameter at the next crossing of a cell boundary along each axis, and between two of them.
    next_x = ((ix + (1 if dx > 0 else 0)) - x) / dx if dx != 0.0 else math.inf
    next_z = ((iz + (1 if dz > 0 else 0)) - z) / dz if dz != 0.0 else math.inf
    pitch_x = 1.0 / abs(dx) if dx != 0.0 else math.inf
    pitch_z = 1.0 / abs(dz) if dz != 0.0 else math.inf
    new = 0
    while True:
        if 0 <= ix < width and 0 <= iz < depth and wanted[ix, iz] and not marked[ix, iz]:
            marked[ix, iz] = True
            new += 1
        if next_x < next_z:
            if next_x >= length:
                return new
            ix += step_x
            next_x += pitch_x
        else:
            if next_z >= length:
                return new
            iz += step_z
            next_z += pitch_z


@njit(cache=True, nogil=True)
def mark_rays(
    positions: np.ndarray,
    directions: np.ndarray,
    lengths: np.ndarray,
    origin_x: float,
    origin_z: float,
    cell: float,
    wanted: np.ndarray,
    marked: np.ndarray,
) -> np.ndarray:
    """Mark the wanted cells that horizontal rays cross, position by position.

    Args:
        positions: Ray origins (T, 2) as (x, z) [m], float64.
        directions: Unit directions (R, 2), float64.
        lengths: Ray lengths (T, R) [m].
        origin_x: Minimum corner of the grid along x [m].
        origin_z: Minimum corner of the grid along z [m].
        cell: Cell edge [m].
        wanted: Cells that count, bool (nx, nz).
        marked: Cells marked so far, bool (nx, nz); updated.

    Returns:
        Newly marked cells at each position, int64 (T,).
    """
    new = np.zeros(len(positions), dtype=np.int64)
    for t in range(len(positions)):
        x = (positions[t, 0] - origin_x) / cell
        z = (positions[t, 1] - origin_z) / cell
        for r in range(len(directions)):
            new[t] += _mark_segment(x, z, directions[r, 0], directions[r, 1], lengths[t, r] / cell, wanted, marked)
    return new


@njit(cache=True, nogil=True)
def mark_path(
    positions: np.ndarray,
    origin_x: float,
    origin_z: float,
    cell: float,
    wanted: np.ndarray,
    marked: np.ndarray,
) -> np.ndarray:
    """Mark the wanted cells that a path flies through, straight from each position to the next.

    Args:
        positions: Positions (T, 2) as (x, z) [m], float64.
        origin_x: Minimum corner of the grid along x [m].
        origin_z: Minimum corner of the grid along z [m].
        cell: Cell edge [m].
        wanted: Cells that count, bool (nx, nz).
        marked: Cells marked so far, bool (nx, nz); updated.

    Returns:
        Cells newly marked on the way to each position, int64 (T,); the first counts its own cell alone.
    """
    new = np.zeros(len(positions), dtype=np.int64)
    for t in range(len(positions)):
        before = max(t - 1, 0)
        x = (positions[before, 0] - origin_x) / cell
        z = (positions[before, 1] - origin_z) / cell
        dx = (positions[t, 0] - positions[before, 0]) / cell
        dz = (positions[t, 1] - positions[before, 1]) / cell
        new[t] = _mark_segment(x, z, dx, dz, 1.0, wanted, marked)
    return new
