"""Separation of storeys: reachable floor that lies over reachable floor.

Seen from above, the floors of two storeys fall on one another, and a horizontal look at one would count as a look at
both. A storey begins at a height at which a large connected patch of floor begins, with reachable space beneath it in
the same columns. Tables, beds, the shelves of a warehouse and stairs are too small, however many they are; slopes and
split levels have nothing beneath them. A hall of double height has its floor on the lower storey alone.
"""

import numpy as np
import numpy.typing as npt

from navi_core.kernels.floor import label_components

_STOREY_HEIGHT = 1.8
"""Least distance of two floors [m]."""

_HEADROOM = 1.0
"""Least reachable height above a floor [m]."""

_LEAST_AREA = 8.0
"""Least area of a connected patch of an upper floor above another [m²]."""

_UNEVENNESS = 0.3
"""Heights that count as one floor [m]."""


def find_storeys(free: npt.NDArray[np.bool_], cell: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return where storeys begin, and the floor of each.

    Args:
        free: Reachable voxels (nx, ny, nz), y upward.
        cell: Their edge [m].

    Returns:
        First layers, int64 (S,), rising, S ≥ 1; and floor cells, bool (S, nx, nz). Of one storey they are all columns
        with a reachable voxel.
    """
    begins = free.copy()
    begins[:, 1:] &= ~free[:, :-1]
    beneath = np.zeros_like(free)
    beneath[:, 1:] = np.maximum.accumulate(free, axis=1)[:, :-1]
    floor = begins & beneath & _with_headroom(free, max(1, round(_HEADROOM / cell)))
    area = floor.sum(axis=(0, 2)) * cell**2
    even, apart = max(1, round(_UNEVENNESS / cell)), max(1, round(_STOREY_HEIGHT / cell))
    first = [int(np.flatnonzero(free.any(axis=(0, 2)))[0])]
    for layer in range(free.shape[1]):
        if layer < first[-1] + apart or area[layer] == 0 or area[layer : layer + even].sum() < _LEAST_AREA:
            continue
        if _largest(floor[:, layer : layer + even]) * cell**2 >= _LEAST_AREA:
            first.append(layer)
    ends = [*first[1:], free.shape[1]]
    floors = [free[:, : ends[0]].any(axis=1)]
    floors += [begins[:, low:high].any(axis=1) for low, high in zip(first[1:], ends[1:], strict=True)]
    return np.array(first, dtype=np.int64), np.stack(floors)


def storey_of(heights: npt.NDArray[np.floating], levels: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the storey in which each height [m] lies, given where storeys begin [m]; below the first is the first."""
    return np.maximum(np.searchsorted(levels, heights, side="right") - 1, 0).astype(np.int64)


def _largest(floor: npt.NDArray[np.bool_]) -> int:
    """Return the columns of the largest patch of a slab (nx, layers, nz) that hangs together, seen from above."""
    return int(label_components(np.maximum.reduce(floor, axis=1, keepdims=True))[1].max(initial=0))


def _with_headroom(free: npt.NDArray[np.bool_], layers: int) -> npt.NDArray[np.bool_]:
    """Return the voxels above which at least `layers` voxels, with their own, are free."""
    count = np.zeros((free.shape[0], free.shape[1] + 1, free.shape[2]), dtype=np.int32)
    np.cumsum(free, axis=1, out=count[:, 1:])
    enough = np.zeros_like(free)
    if free.shape[1] >= layers:
        enough[:, : free.shape[1] - layers + 1] = count[:, layers:] - count[:, :-layers] == layers
    return enough
