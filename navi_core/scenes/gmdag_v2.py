"""`.gmdag` version 2: exact triangles with the cells that lead rays to them. Layout in docs/GMDAG.md.

    0   4s  magic "GDAG"
    4   u32 version = 2
    8   u32 resolution
    12  f32 minimum corner x, y, z [m]
    24  f32 voxel size [m]
    28  u32 length of the JSON header in bytes
    32  32s SHA-256 of the 32 bytes before and of everything from byte 64
    64  JSON header (UTF-8), then the sections it lists, each padded to 8 bytes with zeros

Everything is little-endian. The header is checked before anything of a declared size is allocated.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import GmdagError, SceneError
from navi_core.kernels import SurfaceTree
from navi_core.kernels.surface_tree import SPLIT
from navi_core.scenes.frame import frame_fault
from navi_core.scenes.scene import MAGIC, Scene, register_writer, write_atomically

__all__ = ["read_v2", "write_v2"]

_FIELDS = struct.Struct("<4sIIffffI")
_HEADER_SIZE = _FIELDS.size + hashlib.sha256().digest_size
_DTYPES = {
    "vertices": ("<f4", 3),
    "faces": ("<u4", 3),
    "semantic": ("<u2", 1),
    "occupied": ("<u4", 1),
    "records": ("<i4", 2),
    "items": ("<u4", 1),
}
"""Element type and row width of each section, in file order."""
_MAX_DEPTH = 2


def write_v2(scene: Scene, path: Path) -> None:
    """Write a scene with triangles; the same scene gives the same bytes.

    Args:
        scene: A version 2 scene.
        path: Target, replaced in one rename.

    Raises:
        SceneError: The scene is of version 1.
    """
    if scene.triangles is None or scene.triangle_semantic is None or scene.tree is None:
        raise SceneError(
            f"{scene.name}: a version 1 scene holds no triangles; save it with version=1, "
            "or compile the mesh it came from"
        )
    vertices, faces = np.unique(scene.triangles.reshape(-1, 3), axis=0, return_inverse=True)
    tree = scene.tree
    # A coarse cell's record has the rank of the cell among the occupied ones, so the cells suffice.
    arrays: dict[str, npt.NDArray[Any]] = {
        "vertices": vertices,
        "faces": faces.reshape(-1, 3),
        "semantic": scene.triangle_semantic,
        "occupied": np.flatnonzero(tree.grid >= 0),
        "records": tree.records,
        "items": tree.items,
    }
    body = b""
    sections = {}
    for name, (dtype, _) in _DTYPES.items():
        data = np.ascontiguousarray(arrays[name], dtype).tobytes()
        sections[name] = len(arrays[name])
        body += data + b"\0" * (-len(data) % 8)
    meta = {
        "name": scene.name,
        "semantic_names": {str(k): v for k, v in sorted(scene.semantic_names.items())},
        "source_hash": scene.source_hash,
        "compile_hash": scene.compile_hash,
        "verdict": scene.verdict,
        "cells": tree.cells,
        "sections": sections,
    }
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    rest = text + body
    head = _FIELDS.pack(MAGIC, 2, scene.resolution, *scene.bounds[0], scene.voxel_size, len(text))
    write_atomically(path, head + hashlib.sha256(head + rest).digest() + rest)


def read_v2(data: bytes, path: Path) -> Scene:
    """Decode a version 2 file.

    Args:
        data: The whole file.
        path: Named in errors.

    Raises:
        GmdagError: A size, a number or a reference is impossible; names the byte offset and the reason.
    """

    def refuse(reason: str, offset: int) -> GmdagError:
        return GmdagError(f"{reason}; compile the scene again from its mesh", path=path, offset=offset)

    if len(data) < _HEADER_SIZE:
        raise refuse(f"truncated: {len(data)} bytes, the header needs {_HEADER_SIZE}", len(data))
    _, _, resolution, x, y, z, voxel, text_size = _FIELDS.unpack_from(data)
    digest = data[_FIELDS.size : _HEADER_SIZE]
    if not (16 <= resolution <= 2048) or resolution & (resolution - 1):
        raise refuse(f"resolution {resolution} is not a power of two from 16 to 2048", 8)
    if not all(math.isfinite(v) for v in (x, y, z)):
        raise refuse(f"non-finite minimum corner ({x}, {y}, {z})", 12)
    if not (math.isfinite(voxel) and voxel > 0):
        raise refuse(f"voxel size {voxel} is not a positive number", 24)
    fault = frame_fault((x, y, z), voxel, resolution)
    if fault is not None:
        raise refuse(fault, 24)
    if _HEADER_SIZE + text_size > len(data):
        raise refuse(f"truncated: header of {text_size} bytes declared, {len(data) - _HEADER_SIZE} left", 28)
    covered = hashlib.sha256(data[: _FIELDS.size])
    covered.update(memoryview(data)[_HEADER_SIZE:])
    if covered.digest() != digest:
        raise refuse("content hash differs: the file is truncated or damaged", 32)
    meta = _read_meta(data[_HEADER_SIZE : _HEADER_SIZE + text_size], refuse)
    arrays: dict[str, npt.NDArray[Any]] = {}
    offset = offset_of_vertices = _HEADER_SIZE + text_size
    for name, (dtype, width) in _DTYPES.items():
        rows = meta["sections"].get(name)
        if not isinstance(rows, int) or rows < 0:
            raise refuse(f"section {name!r} has no valid length ({rows!r})", _HEADER_SIZE)
        size = rows * width * np.dtype(dtype).itemsize
        if offset + size > len(data):
            raise refuse(f"truncated: section {name!r} needs {size} bytes, {len(data) - offset} left", offset)
        array = np.frombuffer(data, dtype, rows * width, offset)
        arrays[name] = array.reshape(rows, width) if width > 1 else array
        offset += size + (-size % 8)
    if offset != len(data):
        raise refuse(f"{len(data) - offset} trailing bytes", min(offset, len(data)))
    _check(arrays, meta, resolution, refuse)
    triangles = arrays["vertices"][arrays["faces"]]
    corners = triangles.reshape(-1, 3).astype(np.float64)
    lower = np.array([x, y, z], np.float64)
    if (corners < lower - voxel).any() or (corners > lower + (resolution + 1) * voxel).any():
        raise refuse("a triangle lies outside the cube", offset_of_vertices)
    cells = meta["cells"]
    grid = np.full(cells**3, -1, np.int32)
    grid[arrays["occupied"]] = np.arange(len(arrays["occupied"]), dtype=np.int32)
    return Scene(
        name=meta["name"],
        resolution=resolution,
        voxel_size=voxel,
        bounds=np.stack([lower, lower + resolution * voxel]),
        mesh_bounds=np.stack([corners.min(axis=0), corners.max(axis=0)]),
        semantic_names=meta["semantic_names"],
        source_hash=meta["source_hash"],
        compile_hash=meta["compile_hash"],
        verdict=meta["verdict"],
        version=2,
        triangles=np.ascontiguousarray(triangles),
        triangle_semantic=arrays["semantic"].astype(np.int32),
        tree=SurfaceTree(cells, grid, arrays["records"].astype(np.int32), arrays["items"].astype(np.int32)),
    )


def _read_meta(text: bytes, refuse: Any) -> dict[str, Any]:
    try:
        meta = json.loads(text)
        names = {int(k): str(v) for k, v in meta["semantic_names"].items()}
        strings = {key: meta[key] for key in ("name", "source_hash", "compile_hash")}
        verdict, cells, sections = meta["verdict"], meta["cells"], meta["sections"]
        # Half a surrogate pair can be spelt in JSON, but neither shown nor stored.
        json.dumps([strings, names], ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise refuse(f"JSON header is broken ({type(error).__name__}: {error})", _HEADER_SIZE) from None
    if not all(isinstance(v, str) for v in strings.values()) or verdict not in (None, "PASS", "MARGINAL", "FAIL"):
        raise refuse("JSON header holds values of a wrong type", _HEADER_SIZE)
    if not isinstance(cells, int) or not isinstance(sections, dict) or any(not 0 <= k <= 65535 for k in names):
        raise refuse("JSON header holds values of a wrong type", _HEADER_SIZE)
    return {**strings, "semantic_names": names, "verdict": verdict, "cells": cells, "sections": sections}


def _check(arrays: dict[str, npt.NDArray[Any]], meta: dict[str, Any], resolution: int, refuse: Any) -> None:
    """Refuse references out of range, so that no kernel ever reads outside its arrays."""
    start = _HEADER_SIZE
    vertices, faces, occupied = arrays["vertices"], arrays["faces"], arrays["occupied"].astype(np.int64)
    records, items, cells = arrays["records"].astype(np.int64), arrays["items"], meta["cells"]
    if cells != min(64, resolution):
        raise refuse(f"{cells} coarse cells per edge, expected {min(64, resolution)}", start)
    if not len(faces) or not np.isfinite(vertices).all():
        raise refuse("no triangle, or a non-finite vertex", start)
    if faces.max() >= len(vertices) or len(arrays["semantic"]) != len(faces):
        raise refuse("a face names a vertex that does not exist, or the semantic section does not match", start)
    if len(items) and items.max() >= len(faces):
        raise refuse(f"a list names triangle {int(items.max())} of {len(faces)}", start)
    if len(occupied) > len(records) or (len(occupied) and occupied.max() >= cells**3) or (np.diff(occupied) <= 0).any():
        raise refuse("coarse cells are out of range, repeated, or without a record", start)
    begin, count = records[:, 0], records[:, 1]
    split = count < 0
    lists = ~split
    if (begin < 0).any() or (count < -1).any() or (begin[lists] + count[lists] > len(items)).any():
        raise refuse("a list reaches outside the items", start)
    if len(occupied) and _depth(begin, split, begin[: len(occupied)][split[: len(occupied)]]) > _MAX_DEPTH:
        raise refuse(f"split cells reach outside the records, or are split more than {_MAX_DEPTH} times", start)


def _depth(begin: npt.NDArray[np.int64], split: npt.NDArray[np.bool_], blocks: npt.NDArray[np.int64]) -> int:
    """Return how many times cells are split below the coarse ones, at most one more than allowed."""
    depth = 0
    while len(blocks) and depth <= _MAX_DEPTH:
        depth += 1
        child = (blocks[:, None] + np.arange(SPLIT**3)).reshape(-1)
        if blocks.min() < 0 or child.max() >= len(begin):
            return _MAX_DEPTH + 1
        blocks = np.unique(begin[child][split[child]])
    return depth


register_writer(2, write_v2)
