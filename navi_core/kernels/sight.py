"""What a gate reads of full observations: a few of their bins, and the nearest hit ahead for each heading.

Depths stay normalised, log(1 + d) / log(1 + M): they order as metres do, and only what is used is turned back.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["NOTHING", "add_leg", "front_after_turn", "read_sight"]

NOTHING = 2.0
"""Normalised depth where nothing is hit."""

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@njit(cache=True, nogil=True)
def read_sight(
    obs: Float32,
    azimuths: Int64,
    elevations: Int64,
    near: float,
    start: float,
    band: Float32,
    sector: int,
    horizon: tuple[int, int],
    limiter: tuple[int, int],
    window: int,
    counts: npt.NDArray[np.int32],
    longest: Float32,
    ahead: Float32,
) -> None:
    """Read B observations.

    Args:
        obs: (B, 3, Az, El) normalised depth, semantic id, valid.
        azimuths: (A,) azimuth bins that are sampled.
        elevations: (E,) elevation bins that are sampled.
        near: Normalised depth up to which a hit is near.
        start: Normalised depth at which the structure band begins.
        band: (B,) normalised depth at which it ends.
        sector: Sampled azimuths on each side of the heading that count as ahead.
        horizon: First and last + 1 sampled elevation of the near-horizon rays.
        limiter: First and last + 1 elevation bin that the speed limiter sees.
        window: Azimuth bins of the sector that it sees.
        counts: (B, 4) valid, near, band and band ahead among the samples; written.
        longest: (B, A) normalised depth of the longest near-horizon ray; written.
        ahead: (B, Az) nearest normalised hit within the window around each azimuth, `NOTHING` without; written.
    """
    rows, _, bins, _ = obs.shape
    nearest = np.empty(bins + window, np.float32)
    for row in range(rows):
        depth, valid = obs[row, 0], obs[row, 2]
        counts[row] = 0
        for a in range(len(azimuths)):
            longest[row, a] = 0.0
            front = a < sector or a >= len(azimuths) - sector
            for e in range(len(elevations)):
                far = depth[azimuths[a], elevations[e]]
                if horizon[0] <= e < horizon[1]:
                    longest[row, a] = max(longest[row, a], far)
                if valid[azimuths[a], elevations[e]] > 0:
                    counts[row, 0] += 1
                    counts[row, 1] += far <= near
                    inside = start <= far <= band[row]
                    counts[row, 2] += inside
                    counts[row, 3] += inside and front
        for a in range(bins):
            least = np.float32(NOTHING)
            for e in range(limiter[0], limiter[1]):
                if depth[a, e] < least and valid[a, e] > 0:
                    least = depth[a, e]
            nearest[a] = least
        # The least of a window of azimuths, its width doubled until it is that of the sector ahead.
        nearest[bins:] = nearest[:window]
        width = 1
        while width < window:
            step = min(width, window - width)
            for a in range(bins + window - width - step + 1):
                nearest[a] = min(nearest[a], nearest[a + step])
            width += step
        for a in range(bins):
            ahead[row, a] = nearest[(a - window // 2) % bins]


@njit(cache=True, nogil=True)
def front_after_turn(ahead: Float32, yaw: Float32, turned: Float32, log_range: float, front: Float32) -> None:
    """Write (B,) the nearest hit ahead after a turn [m], never less than before it; infinite without.

    Args:
        ahead: (B, Az) from `read_sight`.
        yaw: (B,) where `ahead` was seen from [rad].
        turned: (B,) the yaw now [rad].
        log_range: log(1 + M).
        front: (B,) written.
    """
    rows, bins = ahead.shape
    for row in range(rows):
        # Azimuths run clockwise, yaw counter-clockwise.
        turn = round((yaw[row] - turned[row]) * (bins / (2.0 * math.pi)))
        value = max(ahead[row, 0], ahead[row, int(turn) % bins])
        front[row] = math.inf if value > 1.0 else math.expm1(value * log_range)


@njit(cache=True, nogil=True)
def add_leg(
    before: Float32, after: Float32, hit: Bool, speed: Float32, path: Float32, collided: Bool, attempted: Float32
) -> None:
    """Add one decision to what B flights came to: length [m], collisions, largest blocked speed [m/s].

    Args:
        before: (B, 3) [m].
        after: (B, 3) [m].
        hit: (B,) of the decision.
        speed: (B,) of the decision.
        path: (B,) added to.
        collided: (B,) updated.
        attempted: (B,) updated.
    """
    for row in range(len(path)):
        x, y, z = after[row, 0] - before[row, 0], after[row, 1] - before[row, 1], after[row, 2] - before[row, 2]
        path[row] += math.sqrt(x * x + y * y + z * z)
        collided[row] |= hit[row]
        attempted[row] = max(attempted[row], speed[row])
