"""Reader of `.gmdag` files of either version, and writer of version 2. Layout in docs/reference/gmdag.md.

The fixed header is `HEADER`, little-endian: bytes 0–3 "GDAG", 4–7 version, 8–11 resolution, 12–23 minimum corner x y z
(float32) [m], 24–27 voxel size (float32) [m], 28–31 length of what follows, as the version counts it.

Version 2 holds exact triangles with the octree DAG that leads rays to them. The length is that of the JSON header:

    32  32s SHA-256 of the 32 bytes before and of everything from byte 64
    64  JSON header (UTF-8), then the sections it lists, each padded to 8 bytes with zeros

The header is checked before anything of a declared size is allocated.
"""

import hashlib
import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from navi_core.errors import GmdagError, SceneError, as_argument
from navi_core.kernels.octree.dag import check_references
from navi_core.kernels.octree.lists import (
    UInt8,
    decode_faces,
    decode_items,
    decode_numbers,
    encode_faces,
    encode_items,
    encode_numbers,
    first_corners,
)
from navi_core.scenes.decimation import Decimation
from navi_core.scenes.gmdag.dag import Dag, Float64, levels_of
from navi_core.scenes.gmdag.scene import HEADER, MAGIC, Scene, write_atomically
from navi_core.scenes.gmdag.version1 import read_v1, write_v1
from navi_core.scenes.naming import missing_file

LAYOUT_SINCE = 2
"""The first compiler version that wrote this layout; files of earlier ones are compiled again."""

_HEADER_SIZE = HEADER.size + hashlib.sha256().digest_size
_SECTIONS = ("vertices", "faces", "semantic", "nodes", "lengths", "items")
_FAULTS = (
    "",
    "a reference of unknown kind",
    "an empty leaf with stray bits",
    "pointer out of range: a surface leaf names a list that does not exist",
    "pointer out of range: an inner node names a row that does not exist",
    "cycle: an inner node names a row that does not stand behind it",
    "too deep: an inner node below the finest level",
    "a row that nothing refers to",
)


def write_v2(scene: Scene, path: Path) -> None:
    """Write a scene as a version 2 file; the output is deterministic (same scene, same bytes).

    Args:
        scene: A version 2 scene.
        path: Target, replaced in one rename.

    Raises:
        SceneError: The scene is of version 1.
    """
    if scene.triangles is None or scene.triangle_semantic is None or scene.dag is None:
        raise SceneError(
            f"{scene.name}: a version 1 scene holds no exact triangles; save it with version=1, "
            "or compile the mesh it came from"
        )
    corners = np.ascontiguousarray(scene.triangles, "<f4").reshape(-1, 3)
    number, first = first_corners(corners.view(np.uint32))
    dag = scene.dag
    lists = len(dag.bounds) - 1
    arrays: dict[str, tuple[int, npt.NDArray[Any]]] = {
        "vertices": (len(first), corners[first]),
        "faces": (len(corners) // 3, encode_faces(number)),
        "semantic": (len(corners) // 3, scene.triangle_semantic.astype(_semantic_type(scene.semantic_names))),
        "nodes": (len(dag.children), dag.children.astype("<u4")),
        "lengths": (lists, encode_numbers(np.diff(dag.bounds))),
        "items": (len(dag.items), encode_items(dag.bounds, dag.items)),
    }
    body = bytearray()
    for name in _SECTIONS:
        body += arrays[name][1].tobytes()
        body += b"\0" * (-len(body) % 8)
    meta = {
        "name": scene.name,
        "semantic_names": {str(k): v for k, v in sorted(scene.semantic_names.items())},
        "source_hash": scene.source_hash,
        "compile_hash": scene.compile_hash,
        "compiler_version": scene.compiler_version,
        "verdict": scene.verdict,
        "decimation": None if scene.decimation is None else asdict(scene.decimation),
        "sections": {name: [arrays[name][0], arrays[name][1].nbytes] for name in _SECTIONS},
    }
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    head = HEADER.pack(MAGIC, 2, scene.resolution, *scene.bounds[0], scene.voxel_size, len(text))
    rest = text + bytes(body)
    write_atomically(path, head + hashlib.sha256(head + rest).digest() + rest)


def read_v2(data: bytes, path: Path | str, resolution: int, lower: Float64, voxel_size: float, length: int) -> Scene:  # noqa: ARG001
    """Decode a version 2 `.gmdag` file into a scene.

    Args:
        data: The whole file.
        path: Where it came from; the scene's name is in the file.
        resolution: Voxels along an edge.
        lower: Minimum corner of the cube (3,) [m].
        voxel_size: Edge of a voxel [m].
        length: Of the JSON header [bytes].

    Raises:
        GmdagError: A size, a number or a reference is impossible; names the byte offset and the reason.
    """
    start = _HEADER_SIZE + length
    if start > len(data):
        raise GmdagError(f"truncated: {len(data)} bytes, the headers need {start}", offset=28)
    covered = hashlib.sha256(data[: HEADER.size])
    covered.update(memoryview(data)[_HEADER_SIZE:])
    if covered.digest() != data[HEADER.size : _HEADER_SIZE]:
        raise GmdagError("content hash differs: the file is truncated or damaged", offset=32)
    meta = _read_meta(data[_HEADER_SIZE:start])
    sections = _cut(data, start, meta.sections)
    triangles = _read_triangles(sections, lower, voxel_size, resolution)
    corners = triangles.reshape(-1, 3).astype(np.float64)
    return Scene(
        name=meta.name,
        resolution=resolution,
        voxel_size=voxel_size,
        bounds=np.stack([lower, lower + resolution * voxel_size]),
        mesh_bounds=np.stack([corners.min(axis=0), corners.max(axis=0)]),
        semantic_names=meta.semantic_names,
        source_hash=meta.source_hash,
        compile_hash=meta.compile_hash,
        verdict=meta.verdict,
        version=2,
        triangles=triangles,
        triangle_semantic=_read_semantic(sections, meta.semantic_names),
        dag=_read_dag(sections, resolution, len(triangles)),
        compiler_version=meta.compiler_version,
        decimation=meta.decimation,
    )


class _Section:
    """Section of a version 2 file: row count, stored bytes, and offset in the file."""

    def __init__(self, rows: int, data: UInt8, offset: int) -> None:
        self.rows, self.data, self.offset = rows, data, offset


def _semantic_type(names: dict[int, str]) -> str:
    """Return the dtype of the semantic section: one byte where every id fits."""
    return "<u1" if max(names, default=0) < 256 else "<u2"


def _cut(data: bytes, offset: int, sizes: dict[str, tuple[int, int]]) -> dict[str, _Section]:
    """Split a file into its sections and validate their bounds; no row may be without a byte."""
    if sorted(sizes) != sorted(_SECTIONS):
        raise GmdagError(f"sections {sorted(sizes)}, expected {sorted(_SECTIONS)}", offset=_HEADER_SIZE)
    out = {}
    for name in _SECTIONS:
        rows, size = sizes[name]
        if offset + size > len(data):
            raise GmdagError(
                f"truncated: section {name!r} needs {size} bytes, {len(data) - offset} left", offset=offset
            )
        if rows == 0 or rows > size or rows >= 2**31:
            raise GmdagError(f"section {name!r} cannot hold {rows} rows in {size} bytes", offset=_HEADER_SIZE)
        out[name] = _Section(rows, np.frombuffer(data, np.uint8, size, offset), offset)
        end = offset + size + -size % 8
        if any(data[offset + size : end]) or end > len(data):
            raise GmdagError(f"section {name!r} is not padded with zeros", offset=offset + size)
        offset = end
    if offset != len(data):
        raise GmdagError(f"{len(data) - offset} trailing bytes", offset=offset)
    return out


def _fixed(section: _Section, dtype: str, width: int, name: str) -> npt.NDArray[Any]:
    """Decode a section into a (rows, width) array of fixed-size elements."""
    if section.data.nbytes != section.rows * width * np.dtype(dtype).itemsize:
        raise GmdagError(
            f"section {name!r}: {section.rows} rows do not make {section.data.nbytes} bytes", offset=section.offset
        )
    return section.data.view(dtype).reshape(section.rows, width)


def _require_decoded(section: _Section, fault: int, reason: str) -> None:
    """Raise if a section could not be decoded; `fault` is the offending byte, negative where none is."""
    if fault >= 0:
        raise GmdagError(reason, offset=section.offset + fault)


def _read_triangles(
    sections: dict[str, _Section], lower: Float64, voxel: float, resolution: int
) -> npt.NDArray[np.float32]:
    place, faces = sections["vertices"], sections["faces"]
    vertices = _fixed(place, "<f4", 3, "vertices").astype(np.float32)
    # A vertex that is no number compares false, and is refused with the others.
    inside = ((vertices >= lower - voxel) & (vertices <= lower + (resolution + 1) * voxel)).all(axis=1)
    if not inside.all():
        row = int(np.argmin(inside))
        raise GmdagError(
            f"vertex {row} = {vertices[row].tolist()} lies outside the cube", offset=place.offset + 12 * row
        )
    if 3 * faces.rows > faces.data.nbytes:
        raise GmdagError(f"{faces.rows} faces cannot lie in {faces.data.nbytes} bytes", offset=faces.offset)
    number = np.empty(3 * faces.rows, np.int32)
    _require_decoded(
        faces,
        decode_faces(faces.data, place.rows, number),
        "a face names a vertex that does not exist, or not every vertex is used",
    )
    return vertices[number].reshape(-1, 3, 3)


def _read_semantic(sections: dict[str, _Section], names: dict[int, str]) -> npt.NDArray[np.int32]:
    section = sections["semantic"]
    if section.rows != sections["faces"].rows:
        raise GmdagError(f"{section.rows} semantic ids for {sections['faces'].rows} faces", offset=section.offset)
    dtype = _semantic_type(names)
    ids = _fixed(section, dtype, 1, "semantic").reshape(-1).astype(np.int32)
    known = np.zeros(65536, np.bool_)
    known[[k for k in names if k > 0]] = True
    if not known[ids].all():
        row = int(np.argmin(known[ids]))
        raise GmdagError(f"face {row} has the semantic id {ids[row]}, which has no name", offset=section.offset)
    return ids


def _read_dag(sections: dict[str, _Section], resolution: int, faces: int) -> Dag:
    nodes, lengths, lists = sections["nodes"], sections["lengths"], sections["items"]
    children = np.ascontiguousarray(_fixed(nodes, "<u4", 8, "nodes"), np.uint32)
    fault, at = check_references(children, lengths.rows, levels_of(resolution)[1])
    if fault:
        raise GmdagError(f"{_FAULTS[fault]} (row {at // 8}, octant {at % 8})", offset=nodes.offset + 4 * at)
    length = np.empty(lengths.rows, np.int64)
    _require_decoded(
        lengths, decode_numbers(lengths.data, length), "lengths of lists end within a number, or beyond the last"
    )
    # Numbers have 35 bits and rows 31: the sum cannot overflow.
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])
    if length.min() < 1 or bounds[-1] != lists.rows:
        raise GmdagError(
            f"lists of {bounds[-1]} items, or an empty list, where {lists.rows} are stored", offset=lengths.offset
        )
    items = np.empty(lists.rows, np.int32)
    _require_decoded(
        lists,
        decode_items(lists.data, bounds, faces, items),
        f"a list names a triangle beyond the {faces} stored, or its bytes end early",
    )
    return Dag(resolution, children, bounds, items)


class _Meta(BaseModel):
    """JSON header (metadata) of a version 2 file."""

    model_config = ConfigDict(strict=True, validate_default=True, allow_inf_nan=False)

    compiler_version: int = Field(default=1, ge=LAYOUT_SINCE)
    name: str
    semantic_names: dict[Annotated[int, Field(ge=0, le=65535)], str]
    source_hash: str
    compile_hash: str
    verdict: Literal["PASS", "MARGINAL", "FAIL"] | None
    decimation: Decimation | None
    sections: dict[str, tuple[NonNegativeInt, NonNegativeInt]]


def _read_meta(text: bytes) -> _Meta:
    try:
        return _Meta.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors()[0]
        reason = f"JSON header is broken ({' '.join([*map(str, fault['loc']), fault['msg']])})"
        if fault["loc"] == ("compiler_version",):
            reason = (
                f"made by compiler version {fault['input']!r:.20}, this build reads {LAYOUT_SINCE} and later: "
                "navi scenes compile MESH --out DIR"
            )
        raise GmdagError(reason, offset=_HEADER_SIZE) from None


_READERS = {1: read_v1, 2: read_v2}
WRITERS = {1: write_v1, 2: write_v2}
"""Writer of each version."""
MIN_EDGE = 1e-3
"""Least edge of a scene's cube [m]."""
MAX_EDGE = 1e5
"""Greatest edge of a scene's cube [m]."""


def load_gmdag(path: Path | str) -> Scene:
    """Load a compiled scene from a `.gmdag` file of either version.

    Args:
        path: The file.

    Raises:
        GmdagError: The file is missing, unreadable or breaks its format; offset and reason are named.
    """
    try:
        file = Path(path)
    except TypeError:
        raise GmdagError(f"the path of a .gmdag file is a string or a Path, not {type(path).__name__}") from None
    try:
        if os.path.exists(file) and not os.path.isfile(file):
            # A device or a pipe would be read without end.
            raise GmdagError("is not a regular file", path=file)
        data = file.read_bytes()
    except FileNotFoundError:
        names = (other.name for other in file.parent.glob("*.gmdag"))
        command = "Compile a mesh with: navi scenes compile MESH --out"
        raise GmdagError(missing_file(file, names, ".gmdag file", command), path=file) from None
    except (OSError, ValueError, MemoryError) as error:
        raise GmdagError(f"cannot be read: {error}", path=file) from None
    return read_gmdag(data, file)


def read_gmdag(data: bytes, path: Path | str) -> Scene:
    """Decode a compiled scene from the bytes of a file of either version; see `read_v1` and `read_v2`.

    Args:
        data: The whole file.
        path: Where it came from, for messages and the scene's name.

    Raises:
        GmdagError: The file breaks its format; offset and reason are named.
    """
    try:
        version, resolution, lower, voxel_size, length = _read_header(data, path)
        return _READERS[version](data, path, resolution, lower, voxel_size, length)
    except GmdagError as error:
        advice = "; compile the scene again from its mesh" if data.startswith(MAGIC + b"\2\0\0\0") else ""
        raise GmdagError(error.reason + advice, path=path, offset=error.offset) from None


def _read_header(data: bytes, path: Path | str) -> tuple[int, int, Float64, float, int]:
    """Parse and validate a file header: version, resolution, minimum corner (3,) [m], voxel size [m], length."""
    if len(data) < HEADER.size:
        raise GmdagError(f"truncated: {len(data)} bytes, the header alone has {HEADER.size}", offset=len(data))
    magic, version, resolution, x, y, z, voxel_size, length = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise GmdagError(
            f"not a .gmdag file; a mesh is compiled with: navi scenes compile {as_argument(path)}",
            offset=0,
        )
    if version not in _READERS:
        raise GmdagError(f"version {version} is not supported; this build reads 1 and 2", offset=4)
    if not 16 <= resolution <= 2048 or resolution & (resolution - 1):
        raise GmdagError(f"resolution {resolution} is not a power of two from 16 to 2048", offset=8)
    for k, value in enumerate((x, y, z)):
        if not math.isfinite(value):
            raise GmdagError(f"minimum corner {'xyz'[k]} is {value}: bounds must be finite", offset=12 + 4 * k)
    if not (math.isfinite(voxel_size) and voxel_size > 0):
        raise GmdagError(f"voxel size {voxel_size} must be a positive number of metres", offset=24)
    edge = voxel_size * resolution
    if not MIN_EDGE <= edge <= MAX_EDGE:
        raise GmdagError(
            f"voxel size {voxel_size:g} makes a cube of {edge:g} m; allowed are {MIN_EDGE:g} to {MAX_EDGE:g} m",
            offset=24,
        )
    # Single precision must distinguish neighbouring voxels.
    farthest = max(max(abs(v), abs(v + edge)) for v in (x, y, z))
    if farthest > voxel_size * 2.0**24 or float(np.spacing(np.float32(farthest))) > voxel_size:
        raise GmdagError(
            f"voxel size {voxel_size:g} is finer than positions {farthest:g} m from the origin are exact", offset=24
        )
    return version, resolution, np.array([x, y, z], np.float64), voxel_size, length
