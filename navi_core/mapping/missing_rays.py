"""Missing rays: free where nothing is in range, unknown where the sensor dropped them."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt


@numba.njit(cache=True, nogil=True)
def nothing_there(valid: npt.NDArray[Any], a: int, e: int) -> bool:
    """Whether there is nothing where a ray met nothing: at least half of its neighbours met nothing either.

    Args:
        valid: (Az, El) above 0 for rays that met something.
        a: The ray's azimuth bin.
        e: Its elevation bin.
    """
    azimuths, elevations = valid.shape
    missing, neighbours = 0, 0
    for i in range(a - 1, a + 2):
        for k in range(max(e - 1, 0), min(e + 2, elevations)):
            if i != a or k != e:
                neighbours += 1
                missing += valid[i % azimuths, k] <= 0
    return 2 * missing >= neighbours


@numba.njit(cache=True, nogil=True)
def measured_rays(valid: npt.NDArray[Any], first: int, last: int) -> npt.NDArray[np.bool_]:
    """Return (B, Az, last − first + 1) whether rays did not drop out, of observations' (B, Az, El) valid masks."""
    rows, azimuths, _ = valid.shape
    measured = np.empty((rows, azimuths, last - first + 1), np.bool_)
    for b in range(rows):
        for a in range(azimuths):
            for e in range(first, last + 1):
                measured[b, a, e - first] = valid[b, a, e] > 0 or nothing_there(valid[b], a, e)
    return measured


@numba.njit(cache=True, nogil=True)
def fill_dropped(reach: npt.NDArray[np.float64]) -> None:
    """Give azimuths of which no ray is left, those below 0 in (Az,), the shorter of the ranges beside, at least 0."""
    for a in range(len(reach)):
        if reach[a] < 0.0:
            reach[a] = max(min(reach[a - 1], reach[(a + 1) % len(reach)]), 0.0)
