"""Occupancy map of one flight, drawn from level rays.

A map is a square of bytes around the place where the flight began. A level ray makes the cells it crosses FREE, and
those within the view radius SEEN; the one in which it meets a surface is a WALL. A dropped ray marks nothing.
Most walls are thinner than a cell, and then rays cross it from both sides: without the mark a way would lead through
them. `kernels.place_compass` reads it.
"""

import math

import numba
import numpy as np
import numpy.typing as npt

from navi_core.mapping.grid_rays import GAP, join, walk
from navi_core.mapping.missing_rays import fill_dropped, nothing_there

FREE, SEEN, WALL = 1, 2, 4

_INTO = 0.05
"""How far behind its surface a wall is marked [m]; both faces of a thin wall then lie in the same cell more often."""
_SURE = 8.0
"""Surfaces farther than this are no walls of the map [m]: level rays are not quite level, and meet floor or ceiling."""
_FAN = 2
"""Rays drawn per azimuth bin; between two bins the shorter of both ranges is believed."""

Floats = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]


@numba.njit(cache=True, nogil=True)
def read_levels(
    obs: Float32,
    scale: float,
    levels: tuple[int, int],
    ahead: tuple[int, int, int],
    flat: float,
    reach: Floats,
    met: npt.NDArray[np.bool_],
    front: Floats,
    clearance: Floats,
) -> None:
    """Read level ranges and nearest surfaces out of observations.

    Args:
        obs: (B, 3, Az, El) normalised depth, semantic id, valid.
        scale: log(1 + range of the sensor).
        levels: First and last elevation bin next to the horizon, both included.
        ahead: What the speed limiter looks at, see `world.dynamics.limiter_bins`.
        flat: Cosine of the level bins' elevation.
        reach: (B, Az) horizontal range of the longer level ray [m], of those that did not drop out; where all did, the
            shorter of the ranges beside; written.
        met: (B, Az) whether all level rays met a surface; written.
        front: (B,) nearest surface ahead [m], infinite without one; written.
        clearance: (B,) nearest surface at all [m], infinite without one; written.
    """
    sector, low, high = ahead
    azimuths, elevations = obs.shape[2], obs.shape[3]
    for b in range(obs.shape[0]):
        nearest, front_distance = 2.0, 2.0
        for a in range(azimuths):
            forward = a < sector or a >= azimuths - sector
            for e in range(elevations):
                if obs[b, 2, a, e] > 0.0:
                    depth = obs[b, 0, a, e]
                    nearest = min(nearest, depth)
                    if forward and low <= e < high:
                        front_distance = min(front_distance, depth)
            longest, hit = -1.0, True
            for e in range(levels[0], levels[1] + 1):
                valid = obs[b, 2, a, e] > 0.0
                hit = hit and valid
                # A ray that meets nothing is free as far as the sensor reaches; a dropped one marks nothing.
                if valid or nothing_there(obs[b, 2], a, e):
                    longest = max(longest, obs[b, 0, a, e] if valid else 1.0)
            reach[b, a] = math.expm1(longest * scale) * flat if longest >= 0.0 else -1.0
            met[b, a] = hit
        fill_dropped(reach[b])
        front[b] = math.expm1(front_distance * scale) if front_distance < 2.0 else math.inf
        clearance[b] = math.expm1(nearest * scale) if nearest < 2.0 else math.inf


@numba.njit(cache=True, nogil=True)
def draw(
    marks: Bytes,
    rows: Rows,
    pose: Floats,
    reach: Floats,
    met: npt.NDArray[np.bool_],
    box: Rows,
    cell: float,
    longest: float,
    view_radius: float,
) -> None:
    """Draw a level scan into the maps of some rows.

    Args:
        marks: (R, G, G) marks, x first; updated.
        rows: (B,) the rows.
        pose: (R, 4) x, y, z [m] from the middle of the map, and yaw [rad].
        reach: (R, Az) horizontal ranges [m].
        met: (R, Az) whether they end at a surface.
        box: (R, 4) first and last index of what is drawn, along x and along z; widened.
        cell: Edge of a cell [m].
        longest: Ranges are believed up to here [m].
        view_radius: Range within which floor counts as seen [m].
    """
    bins, size = reach.shape[1], marks.shape[1]
    half = size / 2.0
    for b in rows:
        px, pz, yaw = pose[b, 0] / cell + half, pose[b, 2] / cell + half, pose[b, 3]
        for a in range(bins):
            left, right = reach[b, a], reach[b, (a + 1) % bins]
            for part in range(_FAN):
                angle = 2.0 * math.pi * (a + part / _FAN) / bins - yaw
                end = min(left if part == 0 else min(left, right), longest) / cell
                dx, dz = math.sin(angle), -math.cos(angle)
                i, k = math.floor(px + dx * end), math.floor(pz + dz * end)
                box[b, 0], box[b, 1] = max(min(box[b, 0], i - 1), 0), min(max(box[b, 1], i + 1), size - 1)
                box[b, 2], box[b, 3] = max(min(box[b, 2], k - 1), 0), min(max(box[b, 3], k + 1), size - 1)
                walk(marks[b], px, pz, dx, dz, end, min(end, view_radius / cell), FREE, SEEN, 0)
        x1, z1, wall = 0.0, 0.0, False
        for a in range(-1, bins):
            x0, z0, before = x1, z1, wall
            angle, away = 2.0 * math.pi * a / bins - yaw, (reach[b, a] + _INTO) / cell
            x1, z1 = px + math.sin(angle) * away, pz - math.cos(angle) * away
            wall = met[b, a] and reach[b, a] <= _SURE
            if a < 0 or not wall:
                continue
            if not before or math.hypot(x1 - x0, z1 - z0) * cell > GAP:
                x0, z0 = x1, z1
            join(marks[b], x0, z0, x1, z1, WALL, 0)
