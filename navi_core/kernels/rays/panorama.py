"""Panoramas on the CPU: one pass over the hits of a fan of rays.

The pass writes the observation and everything that rewards and the speed limiter read, so that each
hit is touched once. `world/sensor/panorama.py` has the same as tensor operations.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["read_hits"]

Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

_ONE, _HALF, _ZERO = np.float32(1.0), np.float32(0.5), np.float32(0.0)
_NEAR, _BAND_START = np.float32(2.0), np.float32(1.5)
_INFINITY = np.float32(np.inf)
_LN2 = np.float32(0.6931471805599453)
_SQRT_HALF = np.int32(0x3F3504F3)
_EXPONENT = np.int32(23)
# Chebyshev interpolation of (ln(1+f) − f + f²/2) / f³ for 1+f in [√½, √2]: the series is off by less than 8e-9.
_C0, _C1, _C2, _C3 = (np.float32(c) for c in (0.33333331, -0.25000307, 0.20001045, -0.16641282))
_C4, _C5, _C6, _C7 = (np.float32(c) for c in (0.14214496, -0.12998183, 0.12622321, -0.07902747))


@numba.njit(inline="always", error_model="numpy")
def _log(y):  # type: ignore[no-untyped-def]
    """Return ln y for y in [1, 1e6]; off by less than 2e-7 + 1e-7·ln y."""
    bits = np.float32(y).view(np.int32)
    exponent = np.int32((bits - _SQRT_HALF) >> _EXPONENT)
    f = np.int32(bits - np.int32(exponent << _EXPONENT)).view(np.float32) - _ONE
    series = _C7
    series = series * f + _C6
    series = series * f + _C5
    series = series * f + _C4
    series = series * f + _C3
    series = series * f + _C2
    series = series * f + _C1
    series = series * f + _C0
    square = f * f
    return np.float32(exponent) * _LN2 + (f - (_HALF * square - square * f * series))


@numba.njit(inline="always", error_model="numpy")
def _count(depth, valid, far):  # type: ignore[no-untyped-def]
    """Count hits, those within 2 m, and those in the band; long runs of rays, so that the loop becomes vectors."""
    hits = near = structure = np.int32(0)
    for r in range(len(depth)):
        d, v = depth[r], valid[r]
        hits = np.int32(hits + np.int32(v))
        near = np.int32(near + np.int32(v & (d <= _NEAR)))
        structure = np.int32(structure + np.int32(v & (d >= _BAND_START) & (d <= far)))
    return hits, near, structure


@numba.njit(cache=True, parallel=True, error_model="numpy")
def read_hits(
    depth: Float32,
    semantic: npt.NDArray[np.int32],
    valid: Bool,
    band: Float32,
    azimuths: int,
    limit: float,
    scale: float,
    limiter: tuple[int, int, int],
    ahead_sector: int,
    horizon: tuple[int, int],
    horizon_cos: float,
    view_radius: float,
    obs: Float32,
    counts: npt.NDArray[np.int32],
    front: Float32,
    reach: Float32,
) -> None:
    """Read a batch of panoramas once.

    Args:
        depth: (B, Az·El) [m].
        semantic: (B, Az·El).
        valid: (B, Az·El).
        band: (B,) far end of the structure band [m].
        azimuths: Az.
        limit: Range M of the sensor [m].
        scale: 1 / ln(1 + M).
        limiter: Azimuth bins on each side, first and last+1 elevation bin that the speed limiter looks at.
        ahead_sector: Azimuth bins on each side that count as ahead for the rewards.
        horizon: First and last+1 elevation bin nearest to the horizon.
        horizon_cos: Cosine of their elevation.
        view_radius: Bound of `reach` [m].
        obs: (B, 3, Az·El), written: ln(1 + depth)·scale, semantic id, valid.
        counts: (B, 4), written: hits; hits within 2 m; in the band; in the band and ahead.
        front: (B,), written: nearest hit that the speed limiter sees [m], infinite where there is none.
        reach: (B, Az), written: horizontal length of the near-horizon rays [m].
    """
    rays = depth.shape[1]
    elevations = rays // azimuths
    side = ahead_sector * elevations
    top, factor = np.float32(limit), np.float32(scale)
    cosine, radius = np.float32(horizon_cos), np.float32(view_radius)
    sector, low, high = limiter
    first, last = horizon
    for b in numba.prange(depth.shape[0]):
        for r in range(rays):
            d = depth[b, r]
            d = d if d > _ZERO else _ZERO
            value = _log(_ONE + d) * factor
            # Rounding must not lift a surface above what stands for none.
            obs[b, 0, r] = value if d < top and value < _ONE else _ONE
        for r in range(rays):
            obs[b, 1, r] = np.float32(semantic[b, r])
            obs[b, 2, r] = np.float32(valid[b, r])
        left = _count(depth[b, :side], valid[b, :side], band[b])
        rest = _count(depth[b, side : rays - side], valid[b, side : rays - side], band[b])
        right = _count(depth[b, rays - side :], valid[b, rays - side :], band[b])
        for i in range(3):
            counts[b, i] = left[i] + rest[i] + right[i]
        counts[b, 3] = left[2] + right[2]
        nearest = _INFINITY
        for a in range(azimuths):
            start = a * elevations
            if a < sector or a >= azimuths - sector:
                for r in range(start + low, start + high):
                    if valid[b, r]:
                        nearest = min(nearest, depth[b, r])
            longest = depth[b, start + first]
            for r in range(start + first + 1, start + last):
                longest = max(longest, depth[b, r])
            reach[b, a] = min(longest * cosine, radius)
        front[b] = nearest
