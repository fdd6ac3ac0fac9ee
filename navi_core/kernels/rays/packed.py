"""Packed arrays of all scenes of a field, in the layout that the C++ and CUDA kernels read."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import SceneError

_SPLIT_WORD = 0xFFFFFF
_CACHE_LINE = 64

Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]
Arrays = tuple[npt.NDArray[Any], ...]


class PackedField:
    """Concatenated arrays of all scenes of a field; each set is built lazily, when a tracer first needs it.

    Args:
        frame: (S, 4) float64 minimum corner and voxel size of each scene [m].
        cells: (S, 2) int32 coarse cells per edge and resolution.
        surface: Builder of the arrays in `surface`.
        hierarchy: Arrays in `hierarchy`.
    """

    def __init__(
        self,
        frame: npt.NDArray[np.float64],
        cells: Int32,
        surface: Callable[[], Arrays],
        hierarchy: Arrays,
    ) -> None:
        self.frame = frame
        self.cells = cells
        self.hierarchy = hierarchy
        """planes, child, corners, ids, semantic, bases, limits: csrc/rays/views.h `Hierarchies`."""
        self._pack_surface = surface

    @cached_property
    def surface(self) -> Arrays:
        """Packed sparse surface octrees of all scenes for the CUDA ray caster; fields as in `csrc/rays/views.h`."""
        return self._pack_surface()

    @property
    def nbytes(self) -> int:
        """Size of the arrays made so far [bytes]."""
        made = [self.hierarchy, self.__dict__.get("surface", ()), (self.frame, self.cells)]
        return sum(array.nbytes for arrays in made for array in arrays)


def cell_words(
    grid: Int32, cubes: UInt8, records: Int32, bases: npt.NDArray[np.int64], cells: Int32
) -> npt.NDArray[np.uint64]:
    """Pack each coarse cell into one 64-bit word, so that a step reads memory once; layout in csrc/rays/views.h.

    Args:
        grid: Coarse grids of all scenes.
        cubes: Empty cubes of all scenes, octant by octant within a scene.
        records: (N, 2) records of all scenes.
        bases: (S, 4) first grid cell, record, item and triangle of each scene.
        cells: (S, 2) coarse cells per edge and resolution of each scene.

    Raises:
        SceneError: A list is longer than a word can hold.
    """
    words = np.zeros(len(grid), np.uint64)
    if len(records) and records[:, 1].max() >= _SPLIT_WORD:
        raise SceneError(
            f"a cell holds {records[:, 1].max()} triangles, more than {_SPLIT_WORD - 1}; raise the resolution"
        )
    for s in range(len(bases)):
        count = int(cells[s, 0]) ** 3
        first = int(bases[s, 0])
        cell = slice(first, first + count)
        octants = cubes[8 * first : 8 * (first + count)].reshape(8, count)
        words[cell] = np.ascontiguousarray(octants.T).view("<u8")[:, 0]
        surface = np.flatnonzero(grid[cell] >= 0)
        start, length = records[int(bases[s, 1]) + grid[cell][surface]].astype(np.int64).T
        words[first + surface] = (start | (length & _SPLIT_WORD) << 32).astype(np.uint64)
    return words


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a cache-line-aligned copy of an array."""
    spare = _CACHE_LINE // array.itemsize
    buffer = np.empty(array.size + spare, array.dtype)
    offset = -buffer.ctypes.data % _CACHE_LINE // array.itemsize
    copy = buffer[offset : offset + array.size].reshape(array.shape)
    copy[:] = array
    return copy
