"""Validator of glTF 2.0 files before decoding: lengths, buffers, accessors, extensions and the node graph.

Layouts follow the Khronos glTF 2.0 specification, sections 3.5 (scenes), 3.6 (buffers) and 4.4 (GLB container).
"""

import base64
import binascii
import os
import struct
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from navi_core.errors import MeshError
from navi_core.scenes.readers.part import parse_json

DTYPES = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
"""Numpy type of each component type."""
COMPONENTS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4, "MAT2": 4, "MAT3": 9, "MAT4": 16}
"""Components of each element type."""
_KNOWN_EXTENSIONS = ("KHR_materials_", "KHR_texture_", "KHR_lights_", "EXT_texture_", "MSFT_texture_")
_KNOWN_EXTENSION = {"KHR_mesh_quantization", "EXT_mesh_gpu_instancing", "KHR_xmp_json_ld", "KHR_animation_pointer"}
_COMPRESSIONS = {
    "KHR_draco_mesh_compression": "Draco",
    "EXT_meshopt_compression": "meshopt",
    "KHR_meshopt_compression": "meshopt",
}
_RECENT = 8
_MAX_COUNT = 200_000_000
"""Elements an accessor may claim."""
_MAX_UNBACKED = 10_000_000
"""Elements that all accessors of a file may claim without a buffer behind them; they are read as zeros."""


@dataclass(frozen=True)
class GltfFile:
    """Validated glTF file: its JSON, and the byte ranges of its buffers."""

    path: Path
    """The file."""
    document: dict[str, Any]
    """The JSON."""
    binary_start: int
    """Byte of the file at which a GLB's binary chunk begins."""
    embedded: dict[int, bytes] = field(default_factory=dict)
    """Buffers that lie in the JSON, decoded on first use."""

    recent: dict[int, bytes] = field(default_factory=dict)
    """The bufferViews read last: many primitives may share one."""

    def view(self, index: int) -> bytes:
        """Read the bytes of one bufferView only."""
        if index not in self.recent:
            while len(self.recent) >= _RECENT:
                self.recent.pop(next(iter(self.recent)))
            self.recent[index] = self._read(index)
        return self.recent[index]

    def _read(self, index: int) -> bytes:
        view = self.document["bufferViews"][index]
        start, length = int(view.get("byteOffset", 0)), int(view["byteLength"])
        uri = self.document["buffers"][int(view["buffer"])].get("uri")
        if isinstance(uri, str) and uri.startswith("data:"):
            number = int(view["buffer"])
            if number not in self.embedded:
                self.embedded[number] = base64.b64decode(uri.partition(",")[2])
            return self.embedded[number][start : start + length]
        file = self.path if uri is None else _side_file(uri, self.path)
        with file.open("rb") as stream:
            stream.seek(start + (self.binary_start if uri is None else 0))
            return stream.read(length)


def open_gltf(path: Path) -> GltfFile:
    """Open and validate a .glb or .gltf file, ready for decoding.

    Raises:
        MeshError: The file is not glTF 2.0, is truncated, claims more data than it holds, is compressed, needs an
            unknown extension, or its nodes are no tree.
    """
    gltf = _open_glb(path) if path.suffix.lower() == ".glb" else GltfFile(path, parse_json(path.read_bytes()), 0)
    asset = gltf.document.get("asset")
    if isinstance(asset, dict) and str(asset.get("version", "2")).startswith("1"):
        raise MeshError(f"glTF version {asset['version']} is not supported; export version 2")
    binary = path.stat().st_size - gltf.binary_start if path.suffix.lower() == ".glb" else 0
    _check_extensions(gltf.document, path)
    _check_compressed(gltf.document, path)
    _check_accessors(gltf.document, path, binary)
    _check_nodes(gltf.document)
    return gltf


def _open_glb(path: Path) -> GltfFile:
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(20)
        if len(head) < 20:
            raise MeshError(f"truncated: {size} bytes, a GLB header alone has 20")
        magic, version, length, json_length, json_type = struct.unpack("<4sIII4s", head)
        if magic != b"glTF":
            raise MeshError(f"wrong magic {magic!r}, expected b'glTF': not a GLB file")
        if version != 2:
            raise MeshError(f"glTF version {version} is not supported; export version 2")
        if length > size:
            raise MeshError(f"truncated: the header promises {length} bytes, {size} are there")
        if json_type != b"JSON" or json_length > size - 20:
            raise MeshError(f"broken: the first chunk ({json_type!r}, {json_length} bytes) is not its JSON")
        document = parse_json(stream.read(json_length))
        chunk = stream.read(8)
    start = 28 + json_length
    if len(chunk) == 8:
        binary, kind = struct.unpack("<I4s", chunk)
        if kind == b"BIN\0" and binary > size - start:
            raise MeshError(f"truncated: its binary chunk has {binary} bytes, {size - start} are there")
    return GltfFile(path, document, min(start, size))


def _check_extensions(document: dict[str, Any], path: Path) -> None:
    required = document.get("extensionsRequired", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise MeshError("'extensionsRequired' is not a list of names")
    for name in required:
        if name in _COMPRESSIONS:
            raise MeshError(_compressed(path, name))
        if name not in _KNOWN_EXTENSION and not name.startswith(_KNOWN_EXTENSIONS):
            raise MeshError(f"needs the glTF extension {name!r}, which is not read; export it without")


def _check_compressed(document: dict[str, Any], path: Path) -> None:
    """Refuse geometry that exists only in compressed form, even if the extension is not marked required."""
    accessors = document.get("accessors", [])
    for mesh in _objects(document, "meshes"):
        for primitive in mesh["primitives"]:
            for name in _COMPRESSIONS.keys() & primitive.get("extensions", {}).keys():
                position = accessors[int(primitive["attributes"]["POSITION"])]
                if "bufferView" not in position and "sparse" not in position:
                    raise MeshError(_compressed(path, name))
    for view in document.get("bufferViews", []):
        for name in _COMPRESSIONS.keys() & view.get("extensions", {}).keys():
            if "uri" not in document["buffers"][int(view["buffer"])] and view["buffer"] != 0:
                raise MeshError(_compressed(path, name))


def _compressed(path: Path, name: str) -> str:
    return (
        f"its geometry is compressed ({_COMPRESSIONS[name]}, {name}), which is not read; decompress it "
        f"with: npx @gltf-transform/cli copy {path.name} plain.glb, or export it again without compression"
    )


def _check_nodes(document: dict[str, Any]) -> None:
    """Validate that the node graph is a forest, so that traversal terminates."""
    nodes = _objects(document, "nodes")
    parent = [-1] * len(nodes)
    for index, node in enumerate(nodes):
        for child in node.get("children", []):
            if not isinstance(child, int) or not 0 <= child < len(nodes):
                raise MeshError(f"node {index} has the child {child!r}, but there are {len(nodes)} nodes")
            if parent[child] >= 0 or child == index:
                raise MeshError(
                    f"node {child} is a child of node {parent[child] if child != index else index} and of "
                    f"node {index}; the nodes of a glTF scene form trees: export it again"
                )
            parent[child] = index
    reached = [index for index in range(len(nodes)) if parent[index] < 0]
    for index in reached:  # grows while it is walked
        reached += nodes[index].get("children", [])
    if len(reached) < len(nodes):
        lost = min(set(range(len(nodes))) - set(reached))
        raise MeshError(f"node {lost} is among its own descendants (a cycle); export the scene again")


def gltf_side_files(path: Path) -> list[Path]:
    """Return the external buffer files of a text glTF.

    Raises:
        MeshError: The JSON is broken.
    """
    uris = (buffer.get("uri") for buffer in _objects(parse_json(path.read_bytes()), "buffers"))
    return [_side_file(uri, path) for uri in uris if isinstance(uri, str) and not uri.startswith("data:")]


def _objects(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    items = document.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise MeshError(f"{key!r} is not a list of objects")
    return items


def _check_accessors(document: dict[str, Any], path: Path, binary: int) -> None:
    lengths = [
        _buffer_length(buffer, index, path, binary) for index, buffer in enumerate(_objects(document, "buffers"))
    ]
    views = _objects(document, "bufferViews")
    for index, view in enumerate(views):
        offset, length = int(view.get("byteOffset", 0)), int(view["byteLength"])
        if offset < 0 or length < 0 or offset + length > lengths[int(view["buffer"])]:
            raise MeshError(
                f"bufferView {index} ends at byte {offset + length}, its buffer has {lengths[int(view['buffer'])]}"
            )
    unbacked = 0
    for index, accessor in enumerate(_objects(document, "accessors")):
        count = int(accessor["count"])
        unbacked += count if "bufferView" not in accessor or "sparse" in accessor else 0
        if not 0 <= count <= _MAX_COUNT or unbacked > _MAX_UNBACKED:
            raise MeshError(
                f"accessor {index} claims {count} elements; allowed are 0 to {_MAX_COUNT}, "
                f"and {_MAX_UNBACKED} in all without data"
            )
        if "bufferView" not in accessor or not count:
            continue
        view = views[int(accessor["bufferView"])]
        element = np.dtype(DTYPES[accessor["componentType"]]).itemsize * COMPONENTS[accessor["type"]]
        stride = int(view.get("byteStride", 0)) or element
        if stride < element or int(accessor.get("byteOffset", 0)) < 0:
            raise MeshError(f"accessor {index} has a stride of {stride} bytes or a negative offset")
        end = int(accessor.get("byteOffset", 0)) + stride * (count - 1) + element
        if end > int(view["byteLength"]):
            raise MeshError(f"truncated: accessor {index} needs {end} bytes, its bufferView has {view['byteLength']}")


def _side_file(uri: str, path: Path) -> Path:
    """Resolve a buffer's URI to a file, relative to the glTF file at `path`."""
    name = Path(urllib.parse.unquote(uri))
    if name.is_absolute() or "://" in uri:
        raise MeshError(f"its buffer {uri!r:.80} is no path relative to it; put the buffer beside the .gltf")
    file = path.parent / name
    # A .gltf that is a link may have its buffers beside the link or beside its target.
    folders = os.path.realpath(path.parent), os.path.dirname(os.path.realpath(path))
    if not any(Path(os.path.realpath(file)).is_relative_to(folder) for folder in folders):
        raise MeshError(f"its buffer {uri!r:.80} lies outside its folder; put the buffer beside the .gltf")
    # Also a device or a pipe is refused: reading it would never end.
    if not os.path.isfile(file):
        raise MeshError(f"its buffer file {str(file)!r} does not exist; keep it beside the .gltf")
    return file


def _buffer_length(buffer: dict[str, Any], index: int, path: Path, binary: int) -> int:
    claimed, uri = int(buffer["byteLength"]), buffer.get("uri")
    if uri is None:
        # The binary chunk is the first buffer's (section 4.4.3.3).
        real = binary if index == 0 else 0
    elif not isinstance(uri, str):
        raise MeshError(f"the uri of buffer {index} is {uri!r}, not text")
    elif uri.startswith("data:"):
        try:
            real = len(base64.b64decode(uri.partition(",")[2], validate=True))
        except binascii.Error as error:
            raise MeshError(f"buffer {index} is not base64: {error}") from None
    else:
        real = _side_file(uri, path).stat().st_size
    if real < claimed:
        raise MeshError(f"truncated: buffer {index} claims {claimed} bytes, {real} are there")
    return claimed
