"""Connected-component labelling of free voxels."""

import numba
import numpy as np
import numpy.typing as npt

_BESIDE = ((1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1))


@numba.njit(cache=True, error_model="numpy")
def label_components(free: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Label the 6-connected components of a boolean voxel grid.

    Args:
        free: (nx, ny, nz) bool.

    Returns:
        (nx, ny, nz) int32 labels from 1 (0: not free) and the size of each label (entry 0 unused).
    """
    nx, ny, nz = free.shape
    label = np.zeros((nx, ny, nz), np.int32)
    stack = np.zeros((nx * ny * nz + 1, 3), np.int32)
    sizes = np.zeros(nx * ny * nz + 2, np.int64)
    current = 0
    for seed in np.ndindex(nx, ny, nz):
        if not free[seed] or label[seed] != 0:
            continue
        current += 1
        label[seed] = current
        stack[0, 0], stack[0, 1], stack[0, 2] = seed
        top = 1
        while top > 0:
            top -= 1
            x, y, z = stack[top, 0], stack[top, 1], stack[top, 2]
            sizes[current] += 1
            for di, dj, dk in _BESIDE:
                i, j, k = x + di, y + dj, z + dk
                if 0 <= i < nx and 0 <= j < ny and 0 <= k < nz and free[i, j, k] and label[i, j, k] == 0:
                    label[i, j, k] = current
                    stack[top, 0], stack[top, 1], stack[top, 2] = i, j, k
                    top += 1
    return label, sizes[: current + 1].copy()
