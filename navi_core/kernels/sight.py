"""What a gate reads of full observations: a few of their bins.

Depths stay normalised, log(1 + d) / log(1 + M): they order as metres do, and only what is used is turned back.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["read_sight"]

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


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
    counts: npt.NDArray[np.int32],
    longest: Float32,
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
        counts: (B, 4) valid, near, band and band ahead among the samples; written.
        longest: (B, A) normalised depth of the longest near-horizon ray; written.
    """
    for row in range(len(obs)):
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
