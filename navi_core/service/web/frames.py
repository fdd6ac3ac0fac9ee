"""A panorama, a map and a path as the page takes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.world.floor.overhead import Overhead

__all__ = ["map_facts", "metres", "panorama_arrays", "trajectory_array"]


def metres(depth: npt.NDArray[np.float32], max_distance: float) -> npt.NDArray[np.float32]:
    """Return depth [m] of normalised depth; `navi_core.world.denormalise_depth` without torch."""
    return np.expm1(depth * np.float32(math.log1p(max_distance)))


def panorama_arrays(
    depth: npt.NDArray[np.float32], semantic: npt.NDArray[Any], valid: npt.NDArray[Any], max_distance: float
) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a frame.

    Args:
        depth: (Az, El) normalised depth.
        semantic: (Az, El) ids.
        valid: (Az, El) valid mask.
        max_distance: Range of the sensor [m].
    """
    return {
        "depth": metres(depth, max_distance),
        "semantic": semantic.astype(np.uint16),
        "valid": (valid > 0).astype(np.uint8),
    }


def map_facts(view: Overhead) -> dict[str, Any]:
    """Return where the map lies in the world."""
    return {"corner": view.corner, "metres_per_pixel": view.metres_per_pixel, "height": view.height}


def trajectory_array(points: list[tuple[float, float, float]]) -> npt.NDArray[np.float32]:
    """Return a path as (N, 3) float32."""
    return np.asarray(points, np.float32).reshape(-1, 3)
