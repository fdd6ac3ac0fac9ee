"""`.gmdag` version 2: exact triangles with the octree DAG that leads rays to them. Layout in docs/GMDAG.md.

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

import hashlib
import json
import math
import struct
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import GmdagError, SceneError
from navi_core.kernels.octree.dag import check_references
from navi_core.kernels.octree.lists import (
    decode_faces,
    decode_items,
    decode_numbers,
    encode_faces,
    encode_items,
    encode_numbers,
    first_corners,
)
from navi_core.scenes.decimation import Decimation
from navi_core.scenes.gmdag.dag import Dag, levels_of
from navi_core.scenes.gmdag.scene import MAGIC, Scene, frame_fault, register_writer, write_atomically

LAYOUT_SINCE = 2
"""The first compiler version that wrote this layout; files of earlier ones are compiled again."""

_FIELDS = struct.Struct("<4sIIffffI")
_HEADER_SIZE = _FIELDS.size + hashlib.sha256().digest_size
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
Refuse = Callable[[str, int], GmdagError]
UInt8 = npt.NDArray[np.uint8]


def write_v2(scene: Scene, path: Path) -> None:
    """Write a scene with triangles; the same scene gives the same bytes.

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
    head = _FIELDS.pack(MAGIC, 2, scene.resolution, *scene.bounds[0], scene.voxel_size, len(text))
    rest = text + bytes(body)
    write_atomically(path, head + hashlib.sha256(head + rest).digest() + rest)


def read_v2(data: bytes, path: Path | str) -> Scene:
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
    sections = _cut(data, _HEADER_SIZE + text_size, meta["sections"], refuse)
    lower = np.array([x, y, z], np.float64)
    triangles = _read_triangles(sections, lower, voxel, resolution, refuse)
    corners = triangles.reshape(-1, 3).astype(np.float64)
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
        triangles=triangles,
        triangle_semantic=_read_semantic(sections, meta["semantic_names"], refuse),
        dag=_read_dag(sections, resolution, len(triangles), refuse),
        compiler_version=meta["compiler_version"],
        decimation=meta["decimation"],
    )


class _Section:
    """Bytes of one section: its rows, its data, and where they begin in the file."""

    def __init__(self, rows: int, data: UInt8, offset: int) -> None:
        self.rows, self.data, self.offset = rows, data, offset


def _semantic_type(names: dict[int, str]) -> str:
    """Return the element type of the semantic section: a byte where every id fits one."""
    return "<u1" if max(names, default=0) < 256 else "<u2"


def _cut(data: bytes, offset: int, sizes: dict[str, Any], refuse: Refuse) -> dict[str, _Section]:
    """Return the sections, after proving that they lie in the file and that no row is without a byte."""
    if sorted(sizes) != sorted(_SECTIONS):
        raise refuse(f"sections {sorted(sizes)}, expected {sorted(_SECTIONS)}", _HEADER_SIZE)
    out = {}
    for name in _SECTIONS:
        pair = sizes[name]
        if not isinstance(pair, list) or len(pair) != 2 or any(type(v) is not int or v < 0 for v in pair):
            raise refuse(f"section {name!r} has no valid size ({pair!r:.60})", _HEADER_SIZE)
        rows, size = pair
        if offset + size > len(data):
            raise refuse(f"truncated: section {name!r} needs {size} bytes, {len(data) - offset} left", offset)
        if rows == 0 or rows > size or rows >= 2**31:
            raise refuse(f"section {name!r} cannot hold {rows} rows in {size} bytes", _HEADER_SIZE)
        out[name] = _Section(rows, np.frombuffer(data, np.uint8, size, offset), offset)
        end = offset + size + -size % 8
        if any(data[offset + size : end]) or end > len(data):
            raise refuse(f"section {name!r} is not padded with zeros", offset + size)
        offset = end
    if offset != len(data):
        raise refuse(f"{len(data) - offset} trailing bytes", offset)
    return out


def _fixed(section: _Section, dtype: str, width: int, name: str, refuse: Refuse) -> npt.NDArray[Any]:
    """Return the section as (rows, width) elements of a fixed size."""
    if section.data.nbytes != section.rows * width * np.dtype(dtype).itemsize:
        raise refuse(f"section {name!r}: {section.rows} rows do not make {section.data.nbytes} bytes", section.offset)
    return section.data.view(dtype).reshape(section.rows, width)


def _read_triangles(
    sections: dict[str, _Section], lower: npt.NDArray[np.float64], voxel: float, resolution: int, refuse: Refuse
) -> npt.NDArray[np.float32]:
    place, faces = sections["vertices"], sections["faces"]
    vertices = _fixed(place, "<f4", 3, "vertices", refuse).astype(np.float32)
    # A vertex that is no number compares false, and is refused with the others.
    inside = ((vertices >= lower - voxel) & (vertices <= lower + (resolution + 1) * voxel)).all(axis=1)
    if not inside.all():
        row = int(np.argmin(inside))
        raise refuse(f"vertex {row} = {vertices[row].tolist()} lies outside the cube", place.offset + 12 * row)
    if 3 * faces.rows > faces.data.nbytes:
        raise refuse(f"{faces.rows} faces cannot lie in {faces.data.nbytes} bytes", faces.offset)
    number = np.empty(3 * faces.rows, np.int32)
    wrong = decode_faces(faces.data, place.rows, number)
    if wrong >= 0:
        raise refuse("a face names a vertex that does not exist, or not every vertex is used", faces.offset + wrong)
    return vertices[number].reshape(-1, 3, 3)


def _read_semantic(sections: dict[str, _Section], names: dict[int, str], refuse: Refuse) -> npt.NDArray[np.int32]:
    section = sections["semantic"]
    if section.rows != sections["faces"].rows:
        raise refuse(f"{section.rows} semantic ids for {sections['faces'].rows} faces", section.offset)
    dtype = _semantic_type(names)
    ids = _fixed(section, dtype, 1, "semantic", refuse).reshape(-1).astype(np.int32)
    known = np.zeros(65536, np.bool_)
    known[[k for k in names if k > 0]] = True
    if not known[ids].all():
        row = int(np.argmin(known[ids]))
        raise refuse(f"face {row} has the semantic id {ids[row]}, which has no name", section.offset)
    return ids


def _read_dag(sections: dict[str, _Section], resolution: int, faces: int, refuse: Refuse) -> Dag:
    nodes, lengths, lists = sections["nodes"], sections["lengths"], sections["items"]
    children = np.ascontiguousarray(_fixed(nodes, "<u4", 8, "nodes", refuse), np.uint32)
    fault, at = check_references(children, lengths.rows, levels_of(resolution)[1])
    if fault:
        raise refuse(f"{_FAULTS[fault]} (row {at // 8}, octant {at % 8})", nodes.offset + 4 * at)
    length = np.empty(lengths.rows, np.int64)
    wrong = decode_numbers(lengths.data, length)
    if wrong >= 0:
        raise refuse("lengths of lists end within a number, or beyond the last", lengths.offset + wrong)
    # Numbers have 35 bits and rows 31: the sum cannot overflow.
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])
    if length.min() < 1 or bounds[-1] != lists.rows:
        raise refuse(f"lists of {bounds[-1]} items, or an empty list, where {lists.rows} are stored", lengths.offset)
    items = np.empty(lists.rows, np.int32)
    wrong = decode_items(lists.data, bounds, faces, items)
    if wrong >= 0:
        raise refuse(f"a list names a triangle beyond the {faces} stored, or its bytes end early", lists.offset + wrong)
    return Dag(resolution, children, bounds, items)


def _read_meta(text: bytes, refuse: Refuse) -> dict[str, Any]:
    def broken(why: str) -> GmdagError:
        return refuse(f"JSON header is broken ({why})", _HEADER_SIZE)

    try:
        meta = json.loads(text)
        version = meta.get("compiler_version", 1)
        if type(version) is not int or version < LAYOUT_SINCE:
            raise refuse(
                f"made by compiler version {version!r:.20}, this build reads {LAYOUT_SINCE} and later: "
                "navi scenes compile MESH --out DIR",
                _HEADER_SIZE,
            )
        names = {int(k): v for k, v in meta["semantic_names"].items()}
        strings = {key: meta[key] for key in ("name", "source_hash", "compile_hash")}
        verdict, merged, sections = meta["verdict"], meta["decimation"], meta["sections"]
        decimation = None if merged is None else _read_decimation(merged)
        # Half a surrogate pair can be spelt in JSON, but neither shown nor stored.
        json.dumps([strings, names], ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise broken(f"{type(error).__name__}: {error}") from None
    if not all(isinstance(v, str) for v in (*strings.values(), *names.values())):
        raise broken("a name or hash is not a text")
    if verdict not in (None, "PASS", "MARGINAL", "FAIL") or not isinstance(sections, dict):
        raise broken("values of a wrong type")
    if any(not 0 <= k <= 65535 for k in names):
        raise broken("a semantic id beyond 65535")
    return {
        **strings,
        "compiler_version": version,
        "semantic_names": names,
        "verdict": verdict,
        "decimation": decimation,
        "sections": sections,
    }


def _read_decimation(values: object) -> Decimation:
    if not isinstance(values, dict) or set(values) != {field.name for field in fields(Decimation)}:
        raise ValueError("decimation holds other fields than it should")
    for name, value in values.items():
        whole = name in ("before", "after", "samples")
        if type(value) is not (int if whole else float) or not math.isfinite(value) or value < 0:
            raise ValueError(f"decimation.{name} is {value!r:.40}")
    return Decimation(**values)


register_writer(2, write_v2)
