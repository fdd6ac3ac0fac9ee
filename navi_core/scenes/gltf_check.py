"""Checks of glTF 2.0 files before they are decoded: lengths, buffers and accessors against real sizes.

Layouts follow the Khronos glTF 2.0 specification, sections 3.6 (buffers) and 4.4 (GLB container).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import struct
import urllib.parse
from pathlib import Path
from typing import Any

from navi_core.errors import MeshError

__all__ = ["check_glb", "check_gltf", "gltf_side_files"]

_COMPONENT_BYTES = {5120: 1, 5121: 1, 5122: 2, 5123: 2, 5125: 4, 5126: 4}
_COMPONENTS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4, "MAT2": 4, "MAT3": 9, "MAT4": 16}
_MAX_COUNT = 200_000_000
"""Elements an accessor may claim."""
_MAX_UNBACKED = 10_000_000
"""Elements that all accessors of a file may claim without a buffer behind them; they are read as zeros."""


def check_glb(path: Path) -> None:
    """Check a binary glTF's header, chunks and accessors.

    Raises:
        MeshError: The file is not a GLB of version 2, is truncated, or claims more data than it holds.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(20)
        if len(head) < 20:
            raise MeshError(f"{path}: truncated: {size} bytes, a GLB header alone has 20")
        magic, version, length, json_length, json_type = struct.unpack("<4sIII4s", head)
        if magic != b"glTF":
            raise MeshError(f"{path}: wrong magic {magic!r}, expected b'glTF': not a GLB file")
        if version != 2:
            raise MeshError(f"{path}: glTF version {version} is not supported; export version 2")
        if length > size:
            raise MeshError(f"{path}: truncated: the header promises {length} bytes, {size} are there")
        if json_type != b"JSON" or json_length > size - 20:
            raise MeshError(f"{path}: broken: the first chunk ({json_type!r}, {json_length} bytes) is not its JSON")
        document = _parse(stream.read(json_length), path)
        chunk = stream.read(8)
    binary = 0
    if len(chunk) == 8:
        binary, kind = struct.unpack("<I4s", chunk)
        if kind == b"BIN\0" and binary > size - 28 - json_length:
            raise MeshError(
                f"{path}: truncated: its binary chunk has {binary} bytes, {size - 28 - json_length} are there"
            )
    _check_document(document, path, binary)


def check_gltf(path: Path) -> None:
    """Check a text glTF's accessors against its buffers.

    Raises:
        MeshError: The JSON is broken, a buffer is missing or too short, or an accessor exceeds it.
    """
    _check_document(_parse(path.read_bytes(), path), path, 0)


def gltf_side_files(path: Path) -> list[Path]:
    """Return the buffer files a text glTF refers to.

    Raises:
        MeshError: The JSON is broken.
    """
    uris = (buffer.get("uri") for buffer in _objects(_parse(path.read_bytes(), path), "buffers", path))
    files = [path.parent / urllib.parse.unquote(u) for u in uris if isinstance(u, str) and not u.startswith("data:")]
    for file in files:
        _check_side_file(file, path)
    return files


def _parse(data: bytes, path: Path) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MeshError(f"{path}: its JSON is broken or truncated: {error}") from None
    if not isinstance(document, dict):
        raise MeshError(f"{path}: its JSON is a {type(document).__name__}, not an object")
    return document


def _objects(document: dict[str, Any], key: str, path: Path) -> list[dict[str, Any]]:
    items = document.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise MeshError(f"{path}: {key!r} is not a list of objects")
    return items


def _check_document(document: dict[str, Any], path: Path, binary: int) -> None:
    try:
        _check_accessors(document, path, binary)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise MeshError(f"{path}: its JSON breaks glTF 2.0: {type(error).__name__} {error}") from None


def _check_accessors(document: dict[str, Any], path: Path, binary: int) -> None:
    lengths = [
        _buffer_length(buffer, index, path, binary) for index, buffer in enumerate(_objects(document, "buffers", path))
    ]
    views = _objects(document, "bufferViews", path)
    for index, view in enumerate(views):
        offset, length = int(view.get("byteOffset", 0)), int(view["byteLength"])
        if offset < 0 or length < 0 or offset + length > lengths[int(view["buffer"])]:
            raise MeshError(
                f"{path}: bufferView {index} ends at byte {offset + length}, "
                f"its buffer has {lengths[int(view['buffer'])]}"
            )
    unbacked = 0
    for index, accessor in enumerate(_objects(document, "accessors", path)):
        count = int(accessor["count"])
        unbacked += count if "bufferView" not in accessor or "sparse" in accessor else 0
        if not 0 <= count <= _MAX_COUNT or unbacked > _MAX_UNBACKED:
            raise MeshError(
                f"{path}: accessor {index} claims {count} elements; allowed are 0 to {_MAX_COUNT}, "
                f"and {_MAX_UNBACKED} in all without data"
            )
        if "bufferView" not in accessor or not count:
            continue
        view = views[int(accessor["bufferView"])]
        element = _COMPONENT_BYTES[accessor["componentType"]] * _COMPONENTS[accessor["type"]]
        stride = int(view.get("byteStride", 0)) or element
        if stride < element or int(accessor.get("byteOffset", 0)) < 0:
            raise MeshError(f"{path}: accessor {index} has a stride of {stride} bytes or a negative offset")
        end = int(accessor.get("byteOffset", 0)) + stride * (count - 1) + element
        if end > int(view["byteLength"]):
            raise MeshError(
                f"{path}: truncated: accessor {index} needs {end} bytes, its bufferView has {view['byteLength']}"
            )


def _check_side_file(file: Path, path: Path) -> None:
    # Also a device or a pipe is refused: reading it would never end.
    if not os.path.isfile(file):
        raise MeshError(f"{path}: its buffer file {str(file)!r} does not exist; keep it beside the .gltf")


def _buffer_length(buffer: dict[str, Any], index: int, path: Path, binary: int) -> int:
    claimed, uri = int(buffer["byteLength"]), buffer.get("uri")
    if uri is None:
        real = binary
    elif not isinstance(uri, str):
        raise MeshError(f"{path}: the uri of buffer {index} is {uri!r}, not text")
    elif uri.startswith("data:"):
        try:
            real = len(base64.b64decode(uri.partition(",")[2], validate=True))
        except binascii.Error as error:
            raise MeshError(f"{path}: buffer {index} is not base64: {error}") from None
    else:
        file = path.parent / urllib.parse.unquote(uri)
        _check_side_file(file, path)
        real = file.stat().st_size
    if real < claimed:
        raise MeshError(f"{path}: truncated: buffer {index} claims {claimed} bytes, {real} are there")
    return claimed
