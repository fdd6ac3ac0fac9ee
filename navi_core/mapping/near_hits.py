"""Memory of the surfaces close to a drone that its scans have met, for a sensor that does not look everywhere.

What passes beside or beneath a narrow sensor was measured a moment before. A grid of columns around each row keeps the
measured point of each, as a ring buffer: a column that has left the neighbourhood makes room for another one (the
local maps of Usenko et al. 2017 do so with voxels).
"""

import math

import numba
import numpy as np
import numpy.typing as npt

EDGE = 0.05
"""Edge of a column [m]."""
SPAN = 64
"""Columns of a row along each axis."""
TALL = 0.5
"""Largest difference in height to the drone of a point that is kept [m]."""
_RANGE = EDGE * SPAN / 2 - 2 * EDGE

Floats = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]


@numba.njit(cache=True, nogil=True)
def keep_points(
    kept: Float32, rows: npt.NDArray[np.int64], pose: Floats, points: Float32, valid: npt.NDArray[np.bool_]
) -> None:
    """Update the points of some rows with those of a scan; of two in a column that nearer to the drone's height stays.

    Two that are less than `EDGE` apart in height are one surface, and their mean stays: of noisy points the nearest
    would, and a drone that flies just above a table could not move.

    Args:
        kept: (R, SPAN, SPAN, 3) points [m], NaN where there is none; updated.
        rows: (n,) the rows.
        pose: (n, 4) x, y, z [m] and yaw [rad], in the frame of `kept`.
        points: (n, N, 3) points of the scan in the drone's frame [m].
        valid: (n, N) whether a point is there.
    """
    for b in range(len(rows)):
        sin, cos, row = math.sin(pose[b, 3]), math.cos(pose[b, 3]), rows[b]
        for p in range(points.shape[1]):
            right, up, back = points[b, p]
            if not valid[b, p] or abs(up) > TALL or right * right + back * back > _RANGE * _RANGE:
                continue
            x, y, z = pose[b, 0] + right * cos + back * sin, pose[b, 1] + up, pose[b, 2] - right * sin + back * cos
            i, k = math.floor(x / EDGE), math.floor(z / EDGE)
            old = kept[row, i % SPAN, k % SPAN]
            same = math.floor(old[0] / EDGE) == i and math.floor(old[2] / EDGE) == k if old[0] == old[0] else False
            if same and abs(y - old[1]) < EDGE:
                old[0], old[1], old[2] = 0.5 * (old[0] + x), 0.5 * (old[1] + y), 0.5 * (old[2] + z)
            elif not same or abs(y - pose[b, 1]) <= abs(old[1] - pose[b, 1]):
                old[0], old[1], old[2] = x, y, z


@numba.njit(cache=True, nogil=True)
def points_nearby(
    kept: Float32, rows: npt.NDArray[np.int64], pose: Floats, radius: float
) -> tuple[Float32, npt.NDArray[np.bool_]]:
    """Collect the kept points of some rows as points in the drone's frame.

    Args:
        kept: As of `keep_points`.
        rows: (n,) the rows.
        pose: (n, 4) as of `keep_points`.
        radius: Largest distance of a point [m].

    Returns:
        (n, N, 3) points [m], and a (n, N) mask of those that are there.
    """
    around = min(math.ceil(radius / EDGE), SPAN // 2 - 1)
    most = (2 * around + 1) ** 2
    points, there = np.zeros((len(rows), most, 3), np.float32), np.zeros((len(rows), most), np.bool_)
    longest = 0
    for b in range(len(rows)):
        sin, cos, count = math.sin(pose[b, 3]), math.cos(pose[b, 3]), 0
        i, k = math.floor(pose[b, 0] / EDGE), math.floor(pose[b, 2] / EDGE)
        for m in range(i - around, i + around + 1):
            for n in range(k - around, k + around + 1):
                x, y, z = kept[rows[b], m % SPAN, n % SPAN]
                x, y, z = x - pose[b, 0], y - pose[b, 1], z - pose[b, 2]
                # NaN and what is left of elsewhere are not close.
                if x * x + y * y + z * z <= radius * radius:
                    points[b, count] = x * cos - z * sin, y, x * sin + z * cos
                    there[b, count] = True
                    count += 1
        longest = max(longest, count)
    return points[:, :longest], there[:, :longest]
