"""Builders of small mesh files in the layouts of real datasets."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import numpy as np

from tests.conftest import box_triangles

_TYPES = {1: "SCALAR", 2: "VEC2", 3: "VEC3", 4: "VEC4"}
_COMPONENTS = {"i1": 5120, "u1": 5121, "i2": 5122, "u2": 5123, "u4": 5125, "f4": 5126}


def pack_glb(document: dict, binary: bytes = b"", length: int | None = None) -> bytes:
    """Return a GLB with a JSON and a binary chunk."""
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 4)
    body = struct.pack("<I4s", len(text), b"JSON") + text
    if binary:
        body += struct.pack("<I4s", len(binary), b"BIN\0") + binary
    return struct.pack("<4sII", b"glTF", 2, len(body) + 12 if length is None else length) + body


class Glb:
    """A glTF document that grows; `write` makes a .glb of it."""

    def __init__(self) -> None:
        self.document: dict = {
            key: [] for key in ("accessors", "bufferViews", "meshes", "nodes", "materials", "textures", "images")
        }
        self.binary = b""

    def view(self, data: bytes) -> int:
        """Add bytes; returns the bufferView."""
        self.binary += b"\0" * (-len(self.binary) % 4)
        self.document["bufferViews"].append({"buffer": 0, "byteOffset": len(self.binary), "byteLength": len(data)})
        self.binary += data
        return len(self.document["bufferViews"]) - 1

    def accessor(self, values, kind: str, **more) -> int:
        """Add an array (N,) or (N, C); returns the accessor."""
        array = np.asarray(values).astype(f"<{kind}")
        array = array.reshape(len(array), -1)
        row = {"bufferView": self.view(array.tobytes()), "componentType": _COMPONENTS[kind], "count": len(array)}
        self.document["accessors"].append(row | {"type": _TYPES[array.shape[1]]} | more)
        return len(self.document["accessors"]) - 1

    def mesh(self, triangles, name: str = "", material: int | None = None, **attributes: int) -> int:
        """Add loose triangles (F, 3, 3); returns the mesh."""
        points = np.asarray(triangles, float).reshape(-1, 3)
        box = {"min": points.min(axis=0).tolist(), "max": points.max(axis=0).tolist()}
        primitive: dict = {"attributes": {"POSITION": self.accessor(points, "f4", **box)} | attributes}
        if material is not None:
            primitive["material"] = material
        self.document["meshes"].append({"primitives": [primitive]} | ({"name": name} if name else {}))
        return len(self.document["meshes"]) - 1

    def texture(self, pixels: np.ndarray) -> int:
        """Add a material with a PNG of (H, W, 3) bytes as its colour; returns the material."""
        from PIL import Image

        stream = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(stream, "PNG")
        self.document["images"].append({"bufferView": self.view(stream.getvalue()), "mimeType": "image/png"})
        self.document["textures"].append({"source": len(self.document["images"]) - 1})
        color = {"baseColorTexture": {"index": len(self.document["textures"]) - 1}}
        self.document["materials"].append({"pbrMetallicRoughness": color})
        return len(self.document["materials"]) - 1

    def node(self, **fields) -> int:
        """Add a node; returns it."""
        self.document["nodes"].append(fields)
        return len(self.document["nodes"]) - 1

    def write(self, path: Path, **changes) -> Path:
        """Write the file; without `scenes` every node that is no child is a root."""
        document = {key: value for key, value in self.document.items() if value} | {"asset": {"version": "2.0"}}
        path.parent.mkdir(parents=True, exist_ok=True)
        buffers = {"buffers": [{"byteLength": len(self.binary)}]} if self.binary else {}
        path.write_bytes(pack_glb(document | buffers | changes, self.binary))
        return path


FLOOR = np.array([[[0, 0, 0], [4, 0, 0], [4, 0, 4]], [[0, 0, 0], [4, 0, 4], [0, 0, 4]]], float)
"""A floor of 4 × 4 m at y = 0."""
TABLE = box_triangles((1.0, 0.5, 1.0), (2.0, 0.8, 2.0))
"""A table top over it."""
WALL = np.array([[[0, 0, 4], [4, 0, 4], [4, 2.5, 4]], [[0, 0, 4], [4, 2.5, 4], [0, 2.5, 4]]], float)
"""A wall at z = 4."""

LEGEND = 'HM3D Semantic Annotations\n1,A0C020,"floor",0\n2,10F0E8,"table, ""low""",0\n3,10F0E9,wall / plaster,1\n'
"""Colours that only differ in the last bit, a name with comma and quotes, one without quotes."""
COLORS = np.array([[0xA0, 0xC0, 0x20], [0x10, 0xF0, 0xE8], [0x10, 0xF0, 0xE9]], float)
NAMES = ("floor", 'table, "low"', "wall / plaster")


def room(path: Path, names: tuple[str, str, str] = ("chunk_a", "chunk_b", "chunk_c")) -> Path:
    """Write the room (floor, table, wall) as a GLB whose nodes have these names."""
    glb = Glb()
    for name, triangles in zip(names, (FLOOR, TABLE, WALL), strict=True):
        glb.node(mesh=glb.mesh(triangles), name=name)
    return glb.write(path)


def annotated_room(path: Path, how: str) -> Path:
    """Write the room as a shuffled `.semantic.glb`: colours in a `texture`, or in `linear` or `srgb` vertices."""
    glb = Glb()
    triangles = np.concatenate([FLOOR, TABLE, WALL])
    owner = np.repeat([0, 1, 2], [len(FLOOR), len(TABLE), len(WALL)])
    order = np.random.default_rng(0).permutation(len(triangles))
    triangles, owner = triangles[order], owner[order]
    if how == "texture":
        material = glb.texture(np.tile(COLORS[None], (2, 1, 1)))
        uv = np.repeat(np.stack([(owner + 0.5) / 3, np.full(len(owner), 0.25)], axis=1), 3, axis=0)
        mesh = glb.mesh(triangles, material=material, TEXCOORD_0=glb.accessor(uv, "f4"))
    else:
        shades = np.repeat(COLORS[owner] / 255, 3, axis=0)
        if how == "linear":
            shades = np.where(shades <= 0.04045, shades / 12.92, ((shades + 0.055) / 1.055) ** 2.4)
        mesh = glb.mesh(triangles, COLOR_0=glb.accessor(shades, "f4"))
    glb.node(mesh=mesh)
    return glb.write(path)


def write_ply(
    path: Path,
    vertices,
    polygons,
    *,
    form: str = "binary_little_endian",
    ids: dict[str, list[int]] | None = None,
    vertex_colors=None,
    face_colors=None,
) -> Path:
    """Write a PLY with polygons of any length, integer face properties and byte colours."""
    ids = ids or {}
    head = f"ply\nformat {form} 1.0\ncomment a test\nelement vertex {len(vertices)}\n"
    head += "".join(f"property float {axis}\n" for axis in "xyz")
    shade = "".join(f"property uchar {name}\n" for name in ("red", "green", "blue"))
    head += (shade if vertex_colors is not None else "") + f"element face {len(polygons)}\n"
    head += "property list uchar int vertex_indices\n" + "".join(f"property int {name}\n" for name in ids)
    head += (shade if face_colors is not None else "") + "end_header\n"
    rows = []
    for i, point in enumerate(vertices):
        rows.append(
            [("f", v) for v in point] + [("B", c) for c in (vertex_colors[i] if vertex_colors is not None else ())]
        )
    for i, ring in enumerate(polygons):
        row = [("B", len(ring))] + [("i", v) for v in ring] + [("i", values[i]) for values in ids.values()]
        rows.append(row + [("B", c) for c in (face_colors[i] if face_colors is not None else ())])
    if form == "ascii":
        body = "".join(
            " ".join(str(float(v)) if k == "f" else str(int(v)) for k, v in row) + "\n" for row in rows
        ).encode()
    else:
        order = "<" if "little" in form else ">"
        body = b"".join(
            struct.pack(order + "".join(k for k, _ in row), *(float(v) if k == "f" else int(v) for k, v in row))
            for row in rows
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.encode() + body)
    return path


def room_ply(path: Path, *, z_up: bool = False, **more) -> Path:
    """Write the room as a PLY of quads (floor, wall) and triangles (table), with `object_id` 0, 2 and 1."""
    quads = [[[0, 0, 0], [4, 0, 0], [4, 0, 4], [0, 0, 4]], [[0, 0, 4], [4, 0, 4], [4, 2.5, 4], [0, 2.5, 4]]]
    points = np.concatenate([np.array(quads, float).reshape(-1, 3), TABLE.reshape(-1, 3)])
    polygons = [[0, 1, 2, 3], [4, 5, 6, 7], *(np.arange(len(TABLE) * 3).reshape(-1, 3) + 8).tolist()]
    if z_up:
        points = points[:, [0, 2, 1]] * [1, -1, 1]
    more.setdefault("ids", {"object_id": [0, 2, *([1] * len(TABLE))]})
    return write_ply(path, points, polygons, **more)
