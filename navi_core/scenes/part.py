"""One placed piece of a mesh file, as the readers give it: geometry and everything that may name its faces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError

__all__ = ["MAX_TRIANGLES", "Part", "face_majority", "fan"]

MAX_TRIANGLES = 50_000_000
"""Triangles of a file over all instances: a small file can place one mesh a million times."""


@dataclass(frozen=True)
class Part:
    """Triangles that share their names."""

    points: npt.NDArray[np.float64]
    """Positions in the file's world coordinates and units, shape (V, 3)."""
    faces: npt.NDArray[np.int64]
    """Vertex indices, shape (F, 3)."""
    objects: tuple[str, ...] = ()
    """Names of the object, best first: node and mesh, or object and group."""
    material: str = ""
    """Name of the material; empty where there is none."""
    colors: npt.NDArray[np.float32] | None = None
    """Colour of each face in 0…1, shape (F, 3): the one most of its corners have."""
    linear: bool = False
    """True where `colors` are linear light, as glTF stores them, and not sRGB."""
    ids: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    """Integer properties of each face by name (`object_id`, `category_id`), shape (F,) each."""
    uv: npt.NDArray[np.float64] | None = None
    """Texture coordinates of the vertices, shape (V, 2); only where textures were asked for."""
    image: bytes | None = None
    """The encoded base-colour texture; only where textures were asked for."""

    def __post_init__(self) -> None:
        if len(self.faces) and not 0 <= int(self.faces.min()) <= int(self.faces.max()) < len(self.points):
            worst = int(self.faces.min()) if self.faces.min() < 0 else int(self.faces.max())
            raise MeshError(f"a face refers to vertex {worst}, but there are {len(self.points)} vertices")


def face_majority(values: npt.NDArray, faces: npt.NDArray[np.int64]) -> npt.NDArray:
    """Return per face the value that at least two of its corners have, else the first corner's.

    Args:
        values: Per vertex, shape (V,) or (V, C).
        faces: Vertex indices, shape (F, 3).
    """
    a, b, c = (values[faces[:, k]] for k in range(3))
    same = b == c if values.ndim == 1 else (b == c).all(axis=1)
    return np.where(same if values.ndim == 1 else same[:, None], b, a)


def fan(polygons: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the triangles (N·(K−2), 3) of N polygons with K corners each, shape (N, K), as fans."""
    corners = polygons.shape[1]
    first = np.repeat(polygons[:, :1], corners - 2, axis=1)
    return np.stack([first, polygons[:, 1:-1], polygons[:, 2:]], axis=2).reshape(-1, 3)
