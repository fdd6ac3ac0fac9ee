"""Counter-based random numbers inside numba loops; `world/counter_random.py` has the hash as tensor operations."""

import numba
import numpy as np

_GOLDEN, _MIX1, _MIX2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@numba.njit(inline="always", error_model="numpy")
def _spread(word: np.uint64, part: int) -> np.uint64:
    x = np.uint64(word + _GOLDEN) ^ np.uint64(np.uint64(part) * _MIX2 + _GOLDEN)
    x = np.uint64((x ^ (x >> np.uint64(30))) * _MIX1)
    x = np.uint64((x ^ (x >> np.uint64(27))) * _MIX2)
    return x ^ (x >> np.uint64(31))


@numba.njit(inline="always", error_model="numpy")
def draw(key: int, row: int, episode: int, step: int) -> np.float64:
    """Draw one uniform random number in [0, 1) as `counter_random.uniform`; `key`: `stream_key` of seed and purpose."""
    word = _spread(_spread(_spread(np.uint64(key), row), episode), step)
    return np.float64(word >> np.uint64(11)) * 2.0**-53
