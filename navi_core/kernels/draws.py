"""Spawns drawn on the CPU; `world/counter_random.py` explains the hash and has it as tensor operations."""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["draw_spawns"]

_GOLDEN, _MIX1, _MIX2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@numba.njit(inline="always", error_model="numpy")
def _spread(word, part):  # type: ignore[no-untyped-def]
    x = np.uint64(word + _GOLDEN) ^ np.uint64(np.uint64(part) * _MIX2 + _GOLDEN)
    x = np.uint64((x ^ (x >> np.uint64(30))) * _MIX1)
    x = np.uint64((x ^ (x >> np.uint64(27))) * _MIX2)
    return x ^ (x >> np.uint64(31))


@numba.njit(cache=True, error_model="numpy")
def draw_spawns(
    key: int,
    rows: npt.NDArray[np.int64],
    episode: npt.NDArray[np.int64],
    per_scene: int,
    count: npt.NDArray[np.int64],
    scene: npt.NDArray[np.int64],
    slot: npt.NDArray[np.int64],
) -> None:
    """Draw where each row's episode begins.

    Args:
        key: `counter_random.stream_key` of the seed.
        rows: (B,) numbers of the rows among those of the run.
        episode: (B,) number of the row's episode.
        per_scene: Episodes of a row in one scene.
        count: (S,) entries of each scene's pool.
        scene: (B,), written.
        slot: (B,), written.
    """
    for b in range(len(episode)):
        word = _spread(_spread(_spread(np.uint64(key), rows[b]), episode[b]), 0)
        scene[b] = (rows[b] + episode[b] // per_scene) % len(count)
        slot[b] = np.int64(np.float64(word >> np.uint64(11)) * 2.0**-53 * count[scene[b]])
