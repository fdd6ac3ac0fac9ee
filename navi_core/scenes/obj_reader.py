"""Wavefront OBJ: positions, vertex colours, polygons and the names of objects, groups and materials."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from navi_core.errors import MeshError
from navi_core.scenes.part import MAX_TRIANGLES, Part, face_majority

__all__ = ["read_obj"]


def read_obj(path: Path) -> list[Part]:
    """Return one part for every run of faces with the same object, group and material.

    Polygons are split into fans. Colours behind the positions (`v x y z r g b`) are vertex colours.

    Raises:
        MeshError: A line cannot be read or refers to a vertex that does not exist (yet); the line is named.
    """
    vertices: list[tuple[float, float, float]] = []
    colors: list[tuple[float, float, float]] = []
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
                    if len(fields) >= 7:
                        colors.append((float(fields[4]), float(fields[5]), float(fields[6])))
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
    total = sum(map(len, faces.values()))
    if total > MAX_TRIANGLES:
        raise MeshError(f"{path}: {total} triangles, more than {MAX_TRIANGLES}; split the scene")
    points = np.array(vertices, dtype=np.float64).reshape(-1, 3)
    # Only where every vertex has one: a partial list belongs to nobody.
    shades = np.array(colors, dtype=np.float32) if colors and len(colors) == len(vertices) else None
    parts: list[Part] = []
    for (group_object, group, material), triangles in faces.items():
        corners = np.array(triangles, dtype=np.int64).reshape(-1, 3)
        used, inverse = np.unique(corners, return_inverse=True)
        shade = face_majority(shades, corners) if shades is not None else None
        parts.append(Part(points[used], inverse.reshape(-1, 3), (group_object, group), material, shade))
    return parts


def _index(field: bytes, count: int) -> int:
    value = int(field.split(b"/", 1)[0])
    index = value - 1 if value > 0 else count + value
    if value == 0 or not 0 <= index < count:
        raise ValueError(f"vertex {value} does not exist, {count} are defined so far")
    return index
