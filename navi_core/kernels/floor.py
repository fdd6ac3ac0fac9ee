"""Grid kernels of the floor: connected free space, and the cells a fan of rays sees."""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["label_components", "mark_fan"]


@numba.njit(cache=True, error_model="numpy")
def label_components(free: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Label the 6-connected components of a grid.

    Args:
        free: (nx, ny, nz) bool.

    Returns:
        (nx, ny, nz) int32 labels from 1 (0: not free) and the size of each label (entry 0 unused).
    """
    nx, ny, nz = free.shape
    label = np.zeros((nx, ny, nz), np.int32)
    stack = np.zeros((nx * ny * nz + 1, 3), np.int32)
    sizes = np.zeros(nx * ny * nz + 2, np.int64)
    current = 0
    for sx in range(nx):
        for sy in range(ny):
            for sz in range(nz):
                if not free[sx, sy, sz] or label[sx, sy, sz] != 0:
                    continue
                current += 1
                label[sx, sy, sz] = current
                stack[0, 0], stack[0, 1], stack[0, 2] = sx, sy, sz
                top = 1
                while top > 0:
                    top -= 1
                    x, y, z = stack[top, 0], stack[top, 1], stack[top, 2]
                    sizes[current] += 1
                    for q in range(6):
                        i = x + (1 if q == 0 else (-1 if q == 1 else 0))
                        j = y + (1 if q == 2 else (-1 if q == 3 else 0))
                        k = z + (1 if q == 4 else (-1 if q == 5 else 0))
                        if (
                            0 <= i < nx and 0 <= j < ny and 0 <= k < nz
                            and free[i, j, k] and label[i, j, k] == 0
                        ):  # fmt: skip
                            label[i, j, k] = current
                            stack[top, 0], stack[top, 1], stack[top, 2] = i, j, k
                            top += 1
    return label, sizes[: current + 1].copy()


@numba.njit(cache=True, parallel=True, error_model="numpy")
def mark_fan(
    position: npt.NDArray[np.float32],
    heading: npt.NDArray[np.float32],
    reach: npt.NDArray[np.float32],
    row: npt.NDArray[np.int64],
    stamp: npt.NDArray[np.int32],
    grid_of_row: npt.NDArray[np.int32],
    origin: npt.NDArray[np.float64],
    shape: npt.NDArray[np.int64],
    reachable: npt.NDArray[np.bool_],
    reachable_base: npt.NDArray[np.int64],
    cell: float,
    seen: npt.NDArray[np.int32],
    gain: npt.NDArray[np.int32],
) -> None:
    """Mark the reachable cells that each row's rays cross (Amanatides & Woo 1987) and count the new ones.

    Args:
        position: (B, 2) x and z [m].
        heading: (B, R, 2) horizontal unit directions.
        reach: (B, R) horizontal length of each ray [m].
        row: (B,) row of `seen` that each entry marks.
        stamp: (B,) value written into `seen`; a cell counts as new unless it holds it already.
        grid_of_row: (B,) which floor grid the entry is in.
        origin: (G, 2) minimum corner of each grid [m].
        shape: (G, 2) cells of each grid.
        reachable: Reachable cells of all grids, one after the other, x slowest.
        reachable_base: (G,) first cell of each grid.
        cell: Edge of a cell [m].
        seen: (rows, cells) stamps, updated.
        gain: (B,) newly seen cells, written.
    """
    for b in numba.prange(position.shape[0]):
        g = grid_of_row[b]
        nx, nz = shape[g, 0], shape[g, 1]
        base = reachable_base[g]
        px = (position[b, 0] - origin[g, 0]) / cell
        pz = (position[b, 1] - origin[g, 1]) / cell
        mark = stamp[b]
        target = row[b]
        new = 0
        for r in range(heading.shape[1]):
            dx = np.float64(heading[b, r, 0])
            dz = np.float64(heading[b, r, 1])
            end = reach[b, r] / cell
            i, k = math.floor(px), math.floor(pz)
            si = 1 if dx >= 0.0 else -1
            sk = 1 if dz >= 0.0 else -1
            ti = ((i + (1 if si > 0 else 0)) - px) / dx if dx != 0.0 else 1e30
            tk = ((k + (1 if sk > 0 else 0)) - pz) / dz if dz != 0.0 else 1e30
            step_i = abs(1.0 / dx) if dx != 0.0 else 1e30
            step_k = abs(1.0 / dz) if dz != 0.0 else 1e30
            while True:
                if 0 <= i < nx and 0 <= k < nz:
                    index = i * nz + k
                    if seen[target, index] != mark and reachable[base + index]:
                        seen[target, index] = mark
                        new += 1
                if ti < tk:
                    if ti > end:
                        break
                    i += si
                    ti += step_i
                else:
                    if tk > end:
                        break
                    k += sk
                    tk += step_k
        gain[b] = new
