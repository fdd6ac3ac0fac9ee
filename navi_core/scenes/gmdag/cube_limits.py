"""Limits of a scene's cube: single precision must distinguish neighbouring voxels."""

from collections.abc import Sequence

import numpy as np

MIN_EDGE = 1e-3
"""Least edge of a scene's cube [m]."""
MAX_EDGE = 1e5
"""Greatest edge of a scene's cube [m]."""


def frame_fault(lower: Sequence[float], voxel_size: float, resolution: int) -> str | None:
    """Return why no ray can be cast in a cube, None where one can.

    Args:
        lower: (3,) minimum corner [m], finite.
        voxel_size: Edge of a voxel [m], positive and finite.
        resolution: Voxels along an edge of the cube.
    """
    edge = voxel_size * resolution
    if not MIN_EDGE <= edge <= MAX_EDGE:
        return f"voxel size {voxel_size:g} makes a cube of {edge:g} m; allowed are {MIN_EDGE:g} to {MAX_EDGE:g} m"
    farthest = max(max(abs(v), abs(v + edge)) for v in lower)
    if farthest > voxel_size * 2.0**24 or float(np.spacing(np.float32(farthest))) > voxel_size:
        return f"voxel size {voxel_size:g} is finer than positions {farthest:g} m from the origin are exact"
    return None
