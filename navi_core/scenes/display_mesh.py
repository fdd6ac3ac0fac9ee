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

MOST_TRIANGLES = 150_000
"""Triangles of a display mesh at most."""
_CELLS = 6
"""Bits per axis of the spatial order of triangles."""
_LEVELS = 65535


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
    if len(corners) > most:
        # Half the edge of `most` equal triangles on this area.
        area = float(
            np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1).sum()
        )
        step = max(step, 0.25 * math.sqrt(area / most))
    while True:
        keys, faces = _snapped(corners, scene.triangle_semantic, step)
        if len(faces) <= most:
            break
        step *= 1.4
    faces = faces[_spatial_order(keys, faces, extent / step)]
    used, first, flat = np.unique(faces.reshape(-1), return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(used), np.uint32)
    number[order] = np.arange(len(used), dtype=np.uint32)
    positions, semantic = _unpacked(keys[used[order]])
    return DisplayMesh(positions, semantic, number[flat].reshape(-1, 3), origin, step, len(corners))


def _snapped(
    corners: npt.NDArray[np.float64], semantic: npt.NDArray[np.int32], step: float
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Snap (F, 3, 3) corners to a grid: keys (V,) of its vertices and the (F', 3) triangles that keep an area."""
    x, y, z = np.moveaxis((corners / step).round().astype(np.uint64), 2, 0)
    name = np.broadcast_to(semantic.astype(np.uint64)[:, None], x.shape)
    keys, index = np.unique(x << 48 | y << 32 | z << 16 | name, return_inverse=True)
    faces = index.reshape(-1, 3)
    place = keys[faces] >> 16
    faces = faces[(place[:, 0] != place[:, 1]) & (place[:, 1] != place[:, 2]) & (place[:, 2] != place[:, 0])]
    _, first = np.unique(np.sort(faces, axis=1), axis=0, return_index=True)
    return keys, faces[np.sort(first)]


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
