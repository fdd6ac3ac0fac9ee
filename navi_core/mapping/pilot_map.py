"""Occupancy map of a pilot: a square grid around the start of its flight, drawn from its own observations.

Each cell is a byte of marks. A ray that flies level through a cell makes it FREE, within the view radius SEEN; a
surface near the height of flight makes it HIT; the straight line between two neighbouring hits is a WALL that is
guessed. Where rays that fly down meet nothing there is no floor, VOID: the endless outside of a scan. `near` holds the
squared distance to the nearest hit, in cells, as far as it matters for flying.
"""

import math

import numba
import numpy as np
import numpy.typing as npt

from navi_core.mapping.grid_rays import GAP, join, walk
from navi_core.mapping.missing_rays import nothing_there

FREE, SEEN, HIT, WALL, VOID = 1, 2, 4, 8, 16
FAR = 255
"""`near` of a cell without a hit within `NEAR_RADIUS`."""
NEAR_RADIUS = 7
"""Cells around a hit whose distance to it is kept."""

_FAN = 4
"""Rays marked per azimuth bin: between two bins the shorter of both ranges is believed."""
_LONGEST = 12.0
"""Ranges are believed up to here [m]; farther ones are drawn too coarsely by neighbouring bins."""

_DEEP = 2.0
"""What is this far beneath the height of flight, and still meets nothing, has passed where a floor would be [m]."""

Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


@numba.njit(cache=True)
def _hit(marks: Bytes, near: Bytes, i: int, k: int) -> None:
    """Mark a hit and lower the distances around it."""
    size = marks.shape[0]
    if not (0 <= i < size and 0 <= k < size) or marks[i, k] & HIT:
        return
    marks[i, k] |= HIT
    for di in range(-NEAR_RADIUS, NEAR_RADIUS + 1):
        for dk in range(-NEAR_RADIUS, NEAR_RADIUS + 1):
            ni, nk = i + di, k + dk
            squared = di * di + dk * dk
            if squared <= NEAR_RADIUS * NEAR_RADIUS and 0 <= ni < size and 0 <= nk < size and squared < near[ni, nk]:
                near[ni, nk] = squared


@numba.njit(cache=True)
def _no_floor(marks: Bytes, px: float, pz: float, x: float, y: float, z: float, start: float, end: float) -> None:
    """Mark the cells under a ray that met nothing up to (x, y, z), from `start` below its origin to `end` away."""
    away = math.hypot(x, z)
    if y >= 0.0 or away == 0.0:
        return
    size, at = marks.shape[0], start * away / -y
    while at < min(end, away):
        i, k = math.floor(px + at * x / away), math.floor(pz + at * z / away)
        if 0 <= i < size and 0 <= k < size:
            marks[i, k] |= VOID
        at += 1.0


@numba.njit(cache=True)
def chart(  # noqa: C901 (numba kernel: one compiled loop)
    marks: Bytes,
    near: Bytes,
    pose: Floats,
    plane: Floats,
    reach: Floats,
    met: npt.NDArray[np.bool_],
    points: npt.NDArray[np.float32],
    valid: npt.NDArray[np.bool_],
    rows: npt.NDArray[np.bool_],
    box: npt.NDArray[np.int64],
    cell: float,
    band: float,
    view_radius: float,
) -> None:
    """Draw one observation of each row into its map.

    Args:
        marks: (B, G, G) uint8 marks, x first; updated.
        near: (B, G, G) uint8 squared distances to hits [cells²]; updated.
        pose: (B, 4) x, y, z [m] in the map's frame, whose middle is the middle of the grid, and yaw [rad].
        plane: (B,) height of flight that the map is made for [m].
        reach: (B, Az) horizontal range of the level rays [m].
        met: (B, Az) whether the level ray met a surface.
        points: (B, R, 3) what all rays met, in the drone's frame before yaw [m].
        valid: (B, R) whether they met anything.
        rows: (B,) rows to be drawn.
        box: (B, 4) first and last index of what is drawn, along x and along z; widened.
        cell: Edge of a cell [m].
        band: Surfaces closer than this to the height of flight are in the way [m].
        view_radius: Range within which floor counts as seen [m].
    """
    rays, bins, half = points.shape[1], reach.shape[1], marks.shape[1] / 2.0
    for b in range(marks.shape[0]):
        if not rows[b]:
            continue
        yaw = pose[b, 3]
        sin, cos = math.sin(yaw), math.cos(yaw)
        px, pz = pose[b, 0] / cell + half, pose[b, 2] / cell + half
        for a in range(bins):
            left, right = reach[b, a], reach[b, (a + 1) % bins]
            for part in range(_FAN):
                range_here = left if part == 0 else min(left, right)
                angle = 2.0 * math.pi * (a + part / _FAN) / bins - yaw
                end = min(range_here, _LONGEST) / cell
                dx, dz = math.sin(angle), -math.cos(angle)
                walk(marks[b], px, pz, dx, dz, end, min(end, view_radius / cell), FREE, SEEN, WALL)
                box[b, 0] = min(box[b, 0], max(int(px + dx * end) - 2, 0))
                box[b, 1] = max(box[b, 1], min(int(px + dx * end) + 2, marks.shape[1] - 1))
                box[b, 2] = min(box[b, 2], max(int(pz + dz * end) - 2, 0))
                box[b, 3] = max(box[b, 3], min(int(pz + dz * end) + 2, marks.shape[2] - 1))
        seen, levels = valid[b].reshape(bins, -1), rays // bins
        for r in range(rays):
            x, y, z = points[b, r, 0], points[b, r, 1], points[b, r, 2]
            if not valid[b, r] and nothing_there(seen, r // levels, r % levels):
                end_x, end_z = (x * cos + z * sin) / cell, (z * cos - x * sin) / cell
                _no_floor(marks[b], px, pz, end_x, y / cell, end_z, _DEEP / cell, view_radius / cell + 3.0)
        for r in range(rays):
            if not valid[b, r]:
                continue
            x, y, z = points[b, r, 0], points[b, r, 1], points[b, r, 2]
            i = math.floor((x * cos + z * sin) / cell + px)
            k = math.floor((z * cos - x * sin) / cell + pz)
            if y < -band and 0 <= i < marks.shape[1] and 0 <= k < marks.shape[2]:
                # Where several neighbours dropped out at once there is a floor all the same.
                marks[b, i, k] &= ~VOID
            if abs(pose[b, 1] + y - plane[b]) > band or x * x + z * z > _LONGEST * _LONGEST:
                continue
            _hit(marks[b], near[b], i, k)
        for a in range(bins):
            after = (a + 1) % bins
            if not (met[b, a] and met[b, after]) or max(reach[b, a], reach[b, after]) > _LONGEST:
                continue
            one, two = 2.0 * math.pi * a / bins - yaw, 2.0 * math.pi * after / bins - yaw
            away, away_after = reach[b, a] / cell, reach[b, after] / cell
            x0, z0 = px + away * math.sin(one), pz - away * math.cos(one)
            x1, z1 = px + away_after * math.sin(two), pz - away_after * math.cos(two)
            if math.hypot(x1 - x0, z1 - z0) * cell <= GAP:
                join(marks[b], x0, z0, x1, z1, WALL, FREE)
