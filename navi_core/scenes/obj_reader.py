"""Wavefront OBJ: positions, polygons and the names of objects, groups and materials; the rest is skipped.

Read here and not by trimesh, which merges objects that share a material and so loses their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError

__all__ = ["read_obj"]

Part = tuple[Sequence[str], npt.NDArray[np.float64], npt.NDArray[np.int64]]


def read_obj(path: Path) -> list[Part]:
    """Return (candidate names, vertices (V, 3), faces (F, 3)) of every run of faces with the same names.

    The vertices are the file's, shared by all parts; polygons are split into fans. Candidate names
    are object, group and material, in this order, empty where the file has none.

    Raises:
        MeshError: A line cannot be read or refers to a vertex that does not exist (yet); the line is named.
    """
    vertices: list[tuple[float, float, float]] = []
    faces: dict[tuple[str, str, str], list[tuple[int, int, int]]] = {}
    names = {b"o": "", b"g": "", b"usemtl": ""}
    current: list[tuple[int, int, int]] | None = None
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            fields = line.split()
            if not fields:
                continue
            key = fields[0]
            try:
                if key == b"v":
                    vertices.append((float(fields[1]), float(fields[2]), float(fields[3])))
                elif key == b"f":
                    if current is None:
                        current = faces.setdefault((names[b"o"], names[b"g"], names[b"usemtl"]), [])
                    ring = [_index(field, len(vertices)) for field in fields[1:]]
                    if len(ring) < 3:
                        raise ValueError(f"a face needs 3 vertices, it has {len(ring)}")
                    current += [(ring[0], ring[k], ring[k + 1]) for k in range(1, len(ring) - 1)]
                elif key in names:
                    names[key] = b" ".join(fields[1:]).decode("utf-8", "replace")
                    current = None
            except (ValueError, IndexError) as error:
                shown = line[:60].decode("utf-8", "replace").strip()
                raise MeshError(f"{path}: line {number} {shown!r} is broken or truncated: {error}") from None
    points = np.array(vertices, dtype=np.float64).reshape(-1, 3)
    parts: list[Part] = []
    for candidates, triangles in faces.items():
        corners = np.array(triangles, dtype=np.int64).reshape(-1, 3)
        used, inverse = np.unique(corners, return_inverse=True)
        parts.append((candidates, points[used], inverse.reshape(-1, 3)))
    return parts


def _index(field: bytes, count: int) -> int:
    value = int(field.split(b"/", 1)[0])
    index = value - 1 if value > 0 else count + value
    if value == 0 or not 0 <= index < count:
        raise ValueError(f"vertex {value} does not exist, {count} are defined so far")
    return index
