"""The cells of a grid that a ray crosses, and those of a line between two hits."""

import math

import numba
import numpy as np
import numpy.typing as npt

GAP = 0.6
"""Distance between neighbouring hits that is taken for wall [m]; a door is wider."""

Bytes = npt.NDArray[np.uint8]


@numba.njit(cache=True, nogil=True)
def walk(
    marks: Bytes,
    px: float,
    pz: float,
    dx: float,
    dz: float,
    end: float,
    seen_end: float,
    free: int,
    seen: int,
    cleared: int,
) -> None:
    """Mark the cells that a ray crosses (Amanatides & Woo 1987); lengths in cells.

    Args:
        marks: (G, G) marks, x first; updated.
        px: Where the ray begins, along x.
        pz: Where it begins, along z.
        dx: Its direction, a unit vector.
        dz: Its direction, a unit vector.
        end: Length of the ray.
        seen_end: Length within which a crossed cell is also `seen`.
        free: Mark of a crossed cell.
        seen: Mark of a crossed cell that is near.
        cleared: Marks that a crossed cell loses; 0 for none.
    """
    size = marks.shape[0]
    i, k = math.floor(px), math.floor(pz)
    si, sk = (1 if dx >= 0.0 else -1), (1 if dz >= 0.0 else -1)
    ti = ((i + (1 if si > 0 else 0)) - px) / dx if dx != 0.0 else 1e30
    tk = ((k + (1 if sk > 0 else 0)) - pz) / dz if dz != 0.0 else 1e30
    step_i = abs(1.0 / dx) if dx != 0.0 else 1e30
    step_k = abs(1.0 / dz) if dz != 0.0 else 1e30
    entered = 0.0
    while entered <= end:
        if not (0 <= i < size and 0 <= k < size):
            return
        mark = (marks[i, k] | free) & ~cleared
        if entered <= seen_end:
            mark |= seen
        marks[i, k] = mark
        if ti < tk:
            entered = ti
            i += si
            ti += step_i
        else:
            entered = tk
            k += sk
            tk += step_k


@numba.njit(cache=True, nogil=True)
def join(
    marks: Bytes,
    x0: float,
    z0: float,
    x1: float,
    z1: float,
    mark: int,
    unless: int,
) -> None:
    """Mark the cells of a straight line by points at most half a cell apart, both ends among them; lengths in cells.

    Args:
        marks: (G, G) marks, x first; updated.
        x0: Where the line begins, along x.
        z0: Where it begins, along z.
        x1: Where it ends, along x.
        z1: Where it ends, along z.
        mark: Mark of a cell on the line.
        unless: Marks that keep a cell from being marked; 0 for none.
    """
    size = marks.shape[0]
    steps = int(2.0 * math.hypot(x1 - x0, z1 - z0)) + 1
    for n in range(steps + 1):
        i, k = math.floor(x0 + (x1 - x0) * n / steps), math.floor(z0 + (z1 - z0) * n / steps)
        if 0 <= i < size and 0 <= k < size and not marks[i, k] & unless:
            marks[i, k] |= mark
