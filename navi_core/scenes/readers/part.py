"""Placed part of a mesh file, with the names of its faces, and the facts known without its geometry."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.kernels.meshes.polygons import split_polygons

MAX_TRIANGLES = 50_000_000
"""Triangles of a file over all instances: a small file can place one mesh a million times."""
_SAMPLE = 1 << 20
"""Bytes sampled of a text file."""
_MAX_CORNERS = 4096
"""Corners of a polygon: the work grows with their square."""


@dataclass(frozen=True)
class MeshFacts:
    """Facts known without decoding the geometry."""

    triangles: int
    """Triangles over all instances; an estimate where `exact` is false."""
    exact: bool
    """True where the header counts the triangles, or their bytes do."""
    bounds: npt.NDArray[np.float64] | None
    """Bounds (2, 3) in the file's units and axes; None where only the geometry has them."""
    colors: bool
    """True where vertices or faces have colours."""
    properties: tuple[str, ...] = ()
    """Integer properties of the faces (PLY)."""


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
        check_indices(self.faces, len(self.points))


def sample_text_facts(path: Path, key: bytes) -> MeshFacts:
    """Estimate the triangles of a text file by the lines in two samples that begin with `key`."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        stream.seek(max(0, size // 2 - _SAMPLE // 2))
        middle = stream.read(_SAMPLE)
        stream.seek(max(0, size - _SAMPLE))
        # OBJ files list vertices first: the end of the file is where the faces are.
        last = stream.read(_SAMPLE)
    share = max(_density(block, key) for block in (middle, last))
    return MeshFacts(math.ceil(share * size), False, None, False)


def _density(block: bytes, key: bytes) -> float:
    return sum(line.lstrip().startswith(key) for line in block.splitlines()) / max(len(block), 1)


def check_indices(faces: npt.NDArray[np.int64], vertices: int) -> None:
    """Refuse faces that refer to a vertex that is not there.

    Raises:
        MeshError: Names the vertex.
    """
    low, high = int(faces.min(initial=0)), int(faces.max(initial=-1))
    if low < 0 or high >= vertices:
        raise MeshError(f"a face refers to vertex {low if low < 0 else high}, but there are {vertices} vertices")


def face_majority(values: npt.NDArray[Any], faces: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return per face the value that at least two of its corners have, else the first corner's.

    Args:
        values: Per vertex, shape (V,) or (V, C).
        faces: Vertex indices, shape (F, 3).
    """
    a, b, c = (values[faces[:, k]] for k in range(3))
    same = b == c if values.ndim == 1 else (b == c).all(axis=1)
    return np.where(same if values.ndim == 1 else same[:, None], b, a)


def triangulate(
    points: npt.NDArray[np.float64], corners: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the triangles (F, 3) of polygons and the polygon that each came from (F,), ascending.

    Polygons of fewer than three corners are left out.

    Args:
        points: Positions (V, 3).
        corners: Vertices of the polygons, one polygon after the other.
        lengths: Corners of each polygon (N,).

    Raises:
        MeshError: A corner is no vertex, or there are too many triangles or corners.
    """
    check_indices(corners, len(points))
    total, longest = int(np.maximum(lengths - 2, 0).sum()), int(lengths.max(initial=0))
    if total > MAX_TRIANGLES:
        raise MeshError(f"{total} triangles, more than {MAX_TRIANGLES}; split the scene")
    if longest > _MAX_CORNERS:
        raise MeshError(f"a polygon of {longest} corners, more than {_MAX_CORNERS}; export triangles")
    begin = np.cumsum(lengths) - lengths
    found = [(np.zeros((0, 3), np.int64), np.zeros(0, np.int64))]
    for count in np.unique(lengths[lengths >= 3]).tolist():
        rows = np.flatnonzero(lengths == count)
        rings = corners[begin[rows][:, None] + np.arange(count)]
        faces = rings
        if count > 3:
            faces = np.empty((len(rows), count - 2, 3), np.int64)
            split_polygons(np.ascontiguousarray(points, np.float64), rings, faces)
        found.append((faces.reshape(-1, 3), np.repeat(rows, count - 2)))
    if len(found) == 2:
        return found[1]
    faces, origin = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    rank = np.argsort(origin, kind="stable")
    return faces[rank], origin[rank]
