"""The arrays of all scenes of a field, and the form in which the C++ kernels read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import SceneError

__all__ = ["PackedField", "aligned_planes", "cell_words"]

_SPLIT_WORD = 0xFFFFFF
_CACHE_LINE = 64

Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PackedField:
    """Arrays of all scenes of a field, one scene after the other.

    Attributes:
        frame: (S, 4) float64 minimum corner and voxel size of each scene [m].
        cells: (S, 2) int32 coarse cells per edge and resolution.
        surface: grid, cubes, records, items, planes, semantic, bases as `cast_surface` takes them, or None.
        octree: nodes, bases, frame, resolution, remap, remap_base as `cast_octree` takes them, or None.
        hierarchy: box, link, triangles, node_base, triangle_base as `scene_distance` takes them.
        surface_row: (S,) int32 row of each scene among the surface trees, -1: none.
        octree_row: (S,) int32 row of each scene among the octrees, -1: none.
    """

    frame: npt.NDArray[np.float64]
    cells: Int32
    surface: tuple[npt.NDArray[Any], ...] | None
    octree: tuple[npt.NDArray[Any], ...] | None
    hierarchy: tuple[npt.NDArray[Any], ...]
    surface_row: Int32
    octree_row: Int32


def cell_words(
    grid: Int32, cubes: UInt8, records: Int32, bases: npt.NDArray[np.int64], cells: Int32
) -> npt.NDArray[np.uint64]:
    """Return one word for each coarse cell, so that a step reads memory once; layout in csrc/views.h.

    Args:
        grid: Coarse grids of all scenes.
        cubes: Empty cubes of all scenes, octant by octant within a scene.
        records: (N, 2) records of all scenes.
        bases: (S, 4) first grid cell, record, item and triangle of each scene.
        cells: (S, 2) coarse cells per edge and resolution of each scene.

    Raises:
        SceneError: A list is longer than a word can say.
    """
    words = np.zeros(len(grid), np.uint64)
    if len(records) and records[:, 1].max() >= _SPLIT_WORD:
        raise SceneError(
            f"a cell holds {records[:, 1].max()} triangles, more than {_SPLIT_WORD - 1}; raise the resolution"
        )
    for s in range(len(bases)):
        count = int(cells[s, 0]) ** 3
        first = int(bases[s, 0])
        if count == 1:  # a version 1 scene has no cells here
            continue
        cell = slice(first, first + count)
        octants = cubes[8 * first : 8 * (first + count)].reshape(8, count).astype(np.uint64)
        for octant in range(8):
            words[cell] |= octants[octant] << np.uint64(8 * octant)
        surface = np.flatnonzero(grid[cell] >= 0)
        start, length = records[int(bases[s, 1]) + grid[cell][surface]].astype(np.int64).T
        words[first + surface] = (start | (length & _SPLIT_WORD) << 32).astype(np.uint64)
    return words


def aligned_planes(planes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the rows (F, 16) at a multiple of a cache line, so that each is one."""
    spare = _CACHE_LINE // planes.itemsize
    buffer = np.empty(planes.size + spare, np.float32)
    offset = -buffer.ctypes.data % _CACHE_LINE // planes.itemsize
    aligned = buffer[offset : offset + planes.size].reshape(planes.shape)
    aligned[:] = planes
    return aligned
