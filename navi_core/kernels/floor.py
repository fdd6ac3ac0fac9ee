"""Grid kernels of the floor: connected free space, and the cells a fan of rays sees."""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["label_components", "mark_fan"]

_FAR_AWAY = 1e9
"""[cell] So far from its grid a drone sees none of it, and numbers lose their cells."""


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


@numba.njit(inline="always", error_model="numpy")
def _mark(seen, reachable, b, g, below, i, k, nx, nz):  # type: ignore[no-untyped-def]
    """Mark a cell and return whether that is new."""
    if not (0 <= i < nx and 0 <= k < nz):
        return 0
    index = below + i * nz + k
    if seen[b, index] or not reachable[g, index]:
        return 0
    seen[b, index] = True
    return 1


@numba.njit(cache=True, parallel=True, error_model="numpy")
def mark_fan(
    position: npt.NDArray[np.float32],
    cos: npt.NDArray[np.float32],
    sin: npt.NDArray[np.float32],
    fan: npt.NDArray[np.float32],
    reach: npt.NDArray[np.float32],
    scene: npt.NDArray[np.int64],
    origin: npt.NDArray[np.float64],
    shape: npt.NDArray[np.int64],
    levels: npt.NDArray[np.float64],
    reachable: npt.NDArray[np.bool_],
    cell: float,
    seen: npt.NDArray[np.bool_],
    gain: npt.NDArray[np.int64],
) -> None:
    """Mark the reachable cells of each drone's storey that its rays cross and count the new ones.

    A ray enters a cell where it crosses a grid line; where, follows from the line's number. `csrc/step/floor.h` and, as
    tensor operations, `world/floor/reachable.py` have the same, to the bit.

    Args:
        position: (B, 3) [m].
        cos: (B,) of the yaw.
        sin: (B,) of the yaw.
        fan: (R, 2) horizontal unit directions (x, z) in the drone's frame.
        reach: (B, R) horizontal length of each ray [m].
        scene: (B,) which floor grid the row is in.
        origin: (G, 2) minimum corner of each grid [m].
        shape: (G, 2) cells of each grid.
        levels: (G, S) where storeys begin [m]; infinite where a scene has fewer.
        reachable: (G, C) reachable cells of each grid, storey slowest, then x.
        cell: Edge of a cell [m].
        seen: (B, C), updated.
        gain: (B,) newly seen cells, written.
    """
    for b in numba.prange(position.shape[0]):
        g = scene[b]
        nx, nz = shape[g, 0], shape[g, 1]
        px = (position[b, 0] - origin[g, 0]) / cell
        pz = (position[b, 2] - origin[g, 1]) / cell
        gain[b] = 0
        if not (abs(px) < _FAR_AWAY and abs(pz) < _FAR_AWAY):
            continue
        i, k = math.floor(px), math.floor(pz)
        storey = 0
        for s in range(1, levels.shape[1]):
            storey += 1 if levels[g, s] <= position[b, 1] else 0
        below = storey * nx * nz
        new = _mark(seen, reachable, b, g, below, i, k, nx, nz)
        for r in range(fan.shape[0]):
            dx = np.float64(fan[r, 0] * cos[b] + fan[r, 1] * sin[b])
            dz = np.float64(fan[r, 1] * cos[b] - fan[r, 0] * sin[b])
            end = reach[b, r] / cell
            if dx != 0.0:
                slope = 1.0 / dx
                first, step, side = ((i + (dx > 0.0)) - px) * slope, abs(slope), 1 if dx > 0.0 else -1
                crossed, when = 0, first
                while when <= end:
                    crossed += 1
                    beside = math.floor(pz + dz * when)
                    new += _mark(seen, reachable, b, g, below, i + side * crossed, beside, nx, nz)
                    when = first + crossed * step
            if dz != 0.0:
                slope = 1.0 / dz
                first, step, side = ((k + (dz > 0.0)) - pz) * slope, abs(slope), 1 if dz > 0.0 else -1
                crossed, when = 0, first
                while when <= end:
                    crossed += 1
                    beside = math.floor(px + dx * when)
                    new += _mark(seen, reachable, b, g, below, beside, k + side * crossed, nx, nz)
                    when = first + crossed * step
        gain[b] = new
