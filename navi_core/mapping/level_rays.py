"""What the rays of an observation say for a map: how far they are free, which ones dropped out, and what is near."""

import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

WHOLE = 1.0 - 1e-5
"""Normalised depth from which a ray that meets nothing reaches the whole range; shorter ones end where the sensor's
range does, or are unknown (0), see `world.sensor.profiles`."""

Floats = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


@numba.njit(cache=True, nogil=True)
def nothing_there(valid: npt.NDArray[Any], a: int, e: int) -> bool:
    """Classify a missing ray as open space (not a dropout): at least half of its neighbours miss, too.

    Args:
        valid: (Az, El) above 0 for rays that hit.
        a: The ray's azimuth bin.
        e: Its elevation bin.
    """
    azimuths, elevations = valid.shape
    missing, neighbours = 0, 0
    for i in range(a - 1, a + 2):
        for k in range(max(e - 1, 0), min(e + 2, elevations)):
            if i != a or k != e:
                neighbours += 1
                missing += valid[i % azimuths, k] <= 0
    return 2 * missing >= neighbours


@numba.njit(cache=True, nogil=True)
def measured_rays(valid: npt.NDArray[Any], depth: npt.NDArray[Any], first: int, last: int) -> npt.NDArray[np.bool_]:
    """Mask the rays that did not drop out, (B, Az, last − first + 1), by valid masks and depths (B, Az, El)."""
    rows, azimuths, _ = valid.shape
    measured = np.empty((rows, azimuths, last - first + 1), np.bool_)
    for b in range(rows):
        for a in range(azimuths):
            for e in range(first, last + 1):
                surely = valid[b, a, e] > 0 or depth[b, a, e] < WHOLE
                measured[b, a, e - first] = surely or nothing_there(valid[b], a, e)
    return measured


@numba.njit(cache=True, nogil=True)
def fill_dropped(reach: npt.NDArray[np.float64]) -> None:
    """Fill dropped azimuths, those below 0 in (Az,), with the shorter of the neighbouring ranges, at least 0."""
    for a in range(len(reach)):
        if reach[a] < 0.0:
            reach[a] = max(min(reach[a - 1], reach[(a + 1) % len(reach)]), 0.0)


@numba.njit(cache=True, nogil=True)
def read_levels(
    obs: Float32,
    rows: Rows,
    scale: float,
    levels: tuple[int, int],
    ahead: tuple[int, int, int],
    flat: float,
    reach: Floats,
    met: npt.NDArray[np.bool_],
    front: Floats,
    clearance: Floats,
) -> None:
    """Extract horizontal ranges and nearest surfaces from observations.

    Args:
        obs: (B, 3, Az, El) normalised depth, semantic id, valid.
        rows: (B,) the rows of the outputs.
        scale: log(1 + range of the sensor).
        levels: First and last elevation bin next to the horizon, both included.
        ahead: Bins that the speed limiter reads, see `world.dynamics.limiter_bins`.
        flat: Cosine of the level bins' elevation.
        reach: (R, Az) horizontal range of the longer level ray [m], of those that did not drop out; where all did, the
            shorter of the ranges beside; 0 where all are unknown; written.
        met: (R, Az) whether all level rays met a surface; written.
        front: (R,) nearest surface ahead [m], infinite without one; written.
        clearance: (R,) nearest surface at all [m], infinite without one; written.
    """
    sector, low, high = ahead
    azimuths, elevations = obs.shape[2], obs.shape[3]
    for b, row in enumerate(rows):
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
                valid, depth = obs[b, 2, a, e] > 0.0, obs[b, 0, a, e]
                hit = hit and valid
                # A ray that meets nothing is free as far as the sensor reaches; a dropped or unknown one marks nothing.
                if valid or depth < WHOLE or nothing_there(obs[b, 2], a, e):
                    longest = max(longest, depth if valid or depth < WHOLE else 1.0)
            reach[row, a] = math.expm1(longest * scale) * flat if longest >= 0.0 else -1.0
            met[row, a] = hit
        fill_dropped(reach[row])
        front[row] = math.expm1(front_distance * scale) if front_distance < 2.0 else math.inf
        clearance[row] = math.expm1(nearest * scale) if nearest < 2.0 else math.inf
