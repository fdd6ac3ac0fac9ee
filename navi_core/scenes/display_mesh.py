"""Display mesh of a scene: quantised triangles for pages and Rerun files, simplified where there are too many.

Corners are snapped to a cubic grid. Its step is the extent / 65535, far below a ray's error. For a large scene the step
grows until few enough triangles are left (vertex clustering); the mesh reports both counts and the step.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from navi_core.errors import SceneError
from navi_core.scenes.gmdag.scene import Scene

MOST_TRIANGLES = 250_000
"""Triangles of a display mesh at most."""
_CELLS = 6
"""Bits per axis of the spatial order of triangles."""
_LEVELS = 65535
_HALVINGS = 6
"""Steps of the search for the finest grid, each halves the ratio that is left."""


@dataclass(frozen=True, eq=False)
class DisplayMesh:
    """Indexed triangles on a grid; triangles that are near each other are near in their order."""

    positions: npt.NDArray[np.uint16]
    """(V, 3) grid coordinates."""
    semantic: npt.NDArray[np.uint16]
    """(V,) semantic id; a corner of two surfaces is two vertices."""
    faces: npt.NDArray[np.uint32]
    """(F, 3) vertices, numbered in the order of their first use."""
    origin: npt.NDArray[np.float64]
    """(3,) position of grid point 0 [m]."""
    step: float
    """Edge of a grid cell [m]."""
    before: int
    """Triangles of the scene."""

    @property
    def vertices(self) -> npt.NDArray[np.float32]:
        """Corner positions (V, 3) [m]."""
        return (self.origin + self.step * self.positions).astype(np.float32)


def display_mesh(scene: Scene, most: int = MOST_TRIANGLES) -> DisplayMesh:
    """Build the display mesh of a scene.

    Args:
        scene: Triangles of a mesh, or the surface of a version 1 octree.
        most: Triangles that may be left.

    Raises:
        SceneError: The scene has no surface.
    """
    if scene.triangles is None or scene.triangle_semantic is None or not len(scene.triangles):
        raise SceneError(f"{scene.name}: no surface to show")
    corners = scene.triangles.astype(np.float64)
    origin = corners.min(axis=(0, 1))
    corners -= origin
    extent = float(corners.max())
    step = max(extent, 1e-6) / _LEVELS
    kept = _snapped(corners, scene.triangle_semantic, step)
    if len(kept) > most:
        area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1).sum() / 2
        low, step = step, max(step, 2.0 * math.sqrt(2.0 * float(area) / most))
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * step)
            enough = len(_snapped(corners, scene.triangle_semantic, middle)) <= most
            low, step = (low, middle) if enough else (middle, step)
        while len(kept := _snapped(corners, scene.triangle_semantic, step)) > most:
            step *= 1.4
    keys, index = np.unique(kept, return_inverse=True)
    faces = index.reshape(-1, 3)
    faces = faces[_spatial_order(keys, faces, extent / step)]
    used, first, flat = np.unique(faces.reshape(-1), return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(used), np.uint32)
    number[order] = np.arange(len(used), dtype=np.uint32)
    positions, semantic = _unpacked(keys[used[order]])
    return DisplayMesh(positions, semantic, number[flat].reshape(-1, 3), origin, step, len(corners))


def _snapped(corners: npt.NDArray[np.float64], semantic: npt.NDArray[np.int32], step: float) -> npt.NDArray[np.uint64]:
    """Snap (F, 3, 3) corners to a grid: (F', 3) keys of place and semantic, of the triangles that keep an area."""
    place = (corners / step).round().astype(np.uint64)
    keys = place[..., 0] << 48 | place[..., 1] << 32 | place[..., 2] << 16
    proper = (keys[:, 0] != keys[:, 1]) & (keys[:, 1] != keys[:, 2]) & (keys[:, 2] != keys[:, 0])
    keys = keys[proper] | semantic.astype(np.uint64)[proper, None]
    # Of equal triangles one is kept, found by a hash of 64 bits.
    a, b, c = np.sort(keys, axis=1).T
    _, first = np.unique((a * 0x9E3779B97F4A7C15 + b) * 0xC2B2AE3D27D4EB4F + c, return_index=True)
    kept: npt.NDArray[np.uint64] = keys[np.sort(first)]
    return kept


def _unpacked(keys: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
    parts = [(keys >> shift & 0xFFFF).astype(np.uint16) for shift in (48, 32, 16, 0)]
    return np.stack(parts[:3], axis=1), parts[3]


def _spatial_order(keys: npt.NDArray[np.uint64], faces: npt.NDArray[np.int64], cells: float) -> npt.NDArray[np.int64]:
    """Return the order (F,) of triangles along a Morton curve, so that a run of them is a small box."""
    middle = _unpacked(keys)[0][faces].mean(axis=1)
    cell = (middle * ((1 << _CELLS) / max(cells + 1.0, 1.0))).astype(np.int64)
    code = np.zeros(len(faces), np.int64)
    for bit in range(_CELLS):
        for axis in range(3):
            code |= (cell[:, axis] >> bit & 1) << (3 * bit + axis)
    return np.argsort(code, kind="stable")
