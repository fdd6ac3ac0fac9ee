"""The reward terms on the CPU, row by row, with the table of visits they count in.

`world/rewards.py` explains the terms and has the same as tensor operations; every number is rounded alike.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["HEADING_SECTORS", "MOST_VISITS", "STAMPS", "STAMP_BIT", "reward_terms"]

HEADING_SECTORS = 16
_VISIT_BITS = 20
MOST_VISITS = 2**_VISIT_BITS - 1
STAMP_BIT = HEADING_SECTORS + _VISIT_BITS
STAMPS = 2 ** (63 - STAMP_BIT) - 1

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_SECTORS = np.float32(HEADING_SECTORS / (2.0 * math.pi))


@numba.njit(inline="always", error_model="numpy")
def _clamp(x, low, high):  # type: ignore[no-untyped-def]
    return min(max(x, low), high)


@numba.njit(inline="always", error_model="numpy")
def _known(table, b, i, j, k, ny, nz, stamp):  # type: ignore[no-untyped-def]
    """Return what the cell remembers of this episode."""
    word = table[b, (i * ny + j) * nz + k]
    return word if word >> STAMP_BIT == stamp else 0


@numba.njit(inline="always", error_model="numpy")
def _explore(table, b, position, yaw, low, edge, shape, stamp):  # type: ignore[no-untyped-def]
    """Count the visit of a row's cell and return the exploration term without its clearance."""
    nx, ny, nz = shape[0], shape[1], shape[2]
    i = _clamp(np.int64(np.floor((position[0] - low[0]) / edge)), 0, nx - 1)
    j = _clamp(np.int64(np.floor((position[1] - low[1]) / edge)), 0, ny - 1)
    k = _clamp(np.int64(np.floor((position[2] - low[2]) / edge)), 0, nz - 1)
    unvisited = 0
    for neighbour in range(6):
        side = 1 if neighbour % 2 else -1
        x = i + (side if neighbour < 2 else 0)
        y = j + (side if 2 <= neighbour < 4 else 0)
        z = k + (side if neighbour >= 4 else 0)
        inside = 0 <= x < nx and 0 <= y < ny and 0 <= z < nz
        if not inside or _known(table, b, x, y, z, ny, nz, stamp) >> HEADING_SECTORS == 0:
            unvisited += 1
    known = _known(table, b, i, j, k, ny, nz, stamp)
    visits = known >> HEADING_SECTORS & MOST_VISITS
    headings = known & (2**HEADING_SECTORS - 1)
    bit = 1 << _clamp(np.int64(yaw * _SECTORS), 0, HEADING_SECTORS - 1)
    count = min(visits + 1, MOST_VISITS) << HEADING_SECTORS
    table[b, (i * ny + j) * nz + k] = headings | bit | count | stamp << STAMP_BIT
    fresh = np.float32(0.05) if headings & bit == 0 else _ZERO
    again = _ONE / (_ONE + np.float32(visits)) * np.float32(0.3)
    return again + fresh + np.float32(0.1) * (np.float32(unvisited) / np.float32(6.0))


@numba.njit(cache=True, error_model="numpy")
def reward_terms(
    position: Float32,
    moved: Float32,
    yaw: Float32,
    scene: Int64,
    stamp: Int64,
    clearance: Float32,
    clearance_before: Float32,
    now: Float32,
    before: Float32,
    collided: npt.NDArray[np.bool_],
    attempted: Float32,
    gain: Float32,
    low: Float32,
    edge: Float32,
    shape: Int64,
    max_speed: float,
    table: Int64,
    terms: Float32,
) -> None:
    """Write the terms and count the visits.

    Args:
        position: (B, 3) after the decision [m].
        moved: (B,) [m].
        yaw: (B,) [rad].
        scene: (B,).
        stamp: (B,) of the row's episode.
        clearance: (B,) now [m].
        clearance_before: (B,) at the decision before [m].
        now: (B, 4) starvation, near, band, forward of the new panorama.
        before: (B, 4) of the panorama before.
        collided: (B,).
        attempted: (B,) [m/s].
        gain: (B,) newly seen floor [m²].
        low: (S, 3) minimum corner of the exploration cells [m].
        edge: (S,) their edge [m].
        shape: (S, 3) cells along each axis.
        max_speed: Speed that counts as 1 in the collision term [m/s].
        table: (B, cells), updated.
        terms: (B, 10), written.
    """
    three, limit = np.float32(3.0), np.float32(max_speed)
    for b in range(len(moved)):
        s = scene[b]
        starvation, near, band, forward = now[b, 0], now[b, 1], now[b, 2], now[b, 3]
        seen = _explore(table, b, position[b], yaw[b], low[s], edge[s], shape[s], stamp[b] & STAMPS)
        terms[b, 0] = seen * _clamp(clearance[b], _ZERO, _ONE)
        terms[b, 1] = np.float32(0.8) * moved[b] * (_ONE - near)
        terms[b, 2] = _ZERO
        if clearance[b] <= three or clearance_before[b] <= three:
            change = _clamp((clearance[b] - clearance_before[b]) / three, -_ONE, _ONE)
            terms[b, 2] = np.float32(0.6) * change
        some = np.float32(0.35) * max(starvation - np.float32(0.2), _ZERO)
        most = max(starvation - np.float32(0.8), _ZERO)
        terms[b, 3] = np.float32(-1.5) * min(some + most, _ONE)
        terms[b, 4] = np.float32(-0.8) * near
        terms[b, 5] = np.float32(0.35) * band
        terms[b, 6] = np.float32(0.2) * forward
        terms[b, 7] = _ZERO
        if band >= np.float32(0.05) or forward >= np.float32(0.05):
            change = (band - before[b, 2]) + np.float32(0.5) * (forward - before[b, 3])
            terms[b, 7] = np.float32(0.25) * _clamp(change, -_ONE, _ONE)
        terms[b, 8] = _ZERO
        if collided[b]:
            terms[b, 8] = np.float32(-2.0) * (_ONE + min(attempted[b] / limit, _ONE))
        terms[b, 9] = gain[b]
