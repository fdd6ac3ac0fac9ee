"""Floor cells that a fan of rays sees, cell by cell in numba: the oracle of the tensor program and the C++ kernel."""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt
import torch

from navi_core.world.field import cos_sin
from navi_core.world.floor.reachable import FloorView

__all__ = ["fan_gain", "mark_fan"]

_FAR_AWAY = 1e9
"""[cell] So far from its grid a drone sees none of it, and numbers lose their cells."""


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

    A ray enters a cell where it crosses a grid line; where, follows from the line's number. `csrc/step/panorama.h` and,
    as tensor operations, `world/floor/reachable.py` have the same, to the bit.

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


def fan_gain(
    view: FloorView,
    position: torch.Tensor,
    yaw: torch.Tensor,
    reach: torch.Tensor,
    scene: torch.Tensor,
    seen: torch.Tensor,
) -> torch.Tensor:
    """Mark `seen` as `FloorView.mark` does, and return the newly seen area [m²]."""
    grid = (view._origin, view._shape, view._levels, view._reachable)
    gain = torch.empty(len(position), dtype=torch.int64)
    arrays = (x.contiguous().numpy() for x in (position, *cos_sin(yaw), view._fan, reach, scene, *grid))
    mark_fan(*arrays, view.cell, seen.numpy(), gain.numpy())
    return gain.to(torch.float32) * view.cell**2
