"""Empty cubes of the octree's cells, against a search over every cube."""

from __future__ import annotations

import itertools

import numpy as np

from navi_core.kernels.octree.dag import empty_cubes

CELLS = 5


def largest(full: np.ndarray, cell: tuple[int, ...], octant: int) -> int:
    """Return the edge of the largest cube from a cell on into an octant without a full cell; 255 if none bounds it."""
    if full[cell]:
        return 0
    signs = [-1 if octant >> axis & 1 else 1 for axis in range(3)]
    ways = [(np.subtract(other, cell) * signs) for other in np.argwhere(full)]
    return min((int(way.max()) for way in ways if (way >= 0).all()), default=255)


def test_empty_cubes_equal_a_search_over_every_cube() -> None:
    full = np.random.default_rng(0).random((CELLS,) * 3) < 0.06
    cubes = empty_cubes(np.where(full, 0, -1).astype(np.int32).reshape(-1), CELLS).reshape(8, *full.shape)
    for octant, cell in itertools.product(range(8), itertools.product(range(CELLS), repeat=3)):
        assert cubes[octant][cell] == largest(full, cell, octant), (octant, cell)
