"""Reader of PLY meshes, text and binary: positions, vertex and face colours, integer face properties.

Scans keep their annotation in face properties (`object_id`, `category_id`), which general readers drop.
"""

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.scenes.readers.part import MeshFacts, Part, face_majority, triangulate

_TYPES = {
    **dict.fromkeys(("char", "int8"), "i1"),
    **dict.fromkeys(("uchar", "uint8"), "u1"),
    **dict.fromkeys(("short", "int16"), "i2"),
    **dict.fromkeys(("ushort", "uint16"), "u2"),
    **dict.fromkeys(("int", "int32"), "i4"),
    **dict.fromkeys(("uint", "uint32"), "u4"),
    **dict.fromkeys(("float", "float32"), "f4"),
    **dict.fromkeys(("double", "float64"), "f8"),
}
_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
_CORNER_LISTS = ("vertex_indices", "vertex_index")
_IDS = ("object_id", "category_id", "segment_id", "material_id", "label")
_MAX_HEADER = 65536


@dataclass(frozen=True)
class _Element:
    """Element declaration of a PLY header: name, count, properties."""

    name: str
    """`vertex`, `face` or another."""
    count: int
    """Rows."""
    properties: list[tuple[str, str, str]] = field(default_factory=list)
    """(name, value type, type of the list's length or "") as numpy type codes."""

    def names(self) -> tuple[str, ...]:
        """Return the property names."""
        return tuple(name for name, _, _ in self.properties)


def _read_header(path: Path) -> tuple[str, tuple[_Element, ...], int]:  # noqa: C901
    """Parse a PLY header: byte order ("" for text), elements, and header length [bytes].

    Raises:
        MeshError: The header is broken, or the file cannot hold what it claims.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(_MAX_HEADER)
    if not head.startswith(b"ply"):
        raise MeshError("does not begin with 'ply'")
    last = re.search(rb"[\r\n]end_header[ \t]*(?=[\r\n]|$)", head)
    text, end = (head[: last.start() + 1], head[last.start() + 1 : last.end()]) if last else (head, b"")
    order: str | None = None
    elements: list[_Element] = []
    for line in text.decode("ascii", "replace").splitlines()[1:]:
        match line.split():
            case ["format", kind, *_] if kind in _ORDERS:
                order = _ORDERS[kind]
            case ["element", name, number] if number.isascii() and number.isdigit() and len(number) < 16:
                elements.append(_Element(name, int(number)))
                # Every row takes at least one byte, in text as in binary.
                if int(number) > size:
                    raise MeshError(f"truncated: {number} elements {name!r} cannot lie in {size} bytes")
            case ["property", "list", length, kind, name] if elements and {length, kind} <= set(_TYPES):
                elements[-1].properties.append((name, _TYPES[kind], _TYPES[length]))
            case ["property", kind, name] if elements and kind in _TYPES:
                elements[-1].properties.append((name, _TYPES[kind], ""))
            case [] | ["comment" | "obj_info", *_]:
                pass
            case _:
                raise MeshError(f"broken: the header line {line[:60]!r} is not understood")
    if not end or order is None:
        raise MeshError(f"broken or truncated: its header has no {'end_header' if not end else 'format'} line")
    for element in elements:
        if len(set(element.names())) < len(element.properties):
            raise MeshError(f"broken: element {element.name!r} has a property twice")
    rest = head[len(text) + len(end) :]
    skip = 2 if rest.startswith(b"\r\n") else 1
    return order, tuple(elements), len(text) + len(end) + skip


def read_ply(path: Path) -> list[Part]:
    """Read a PLY file as one part.

    Raises:
        MeshError: The file is broken or truncated, or holds no faces.
    """
    order, elements, start = _read_header(path)
    with path.open("rb") as stream:
        stream.seek(start)
        data = stream.read()
    rows = (_read_text if order == "" else _read_binary)(data, order, elements)
    vertex, face = rows.get("vertex", {}), rows.get("face", {})
    if not {"x", "y", "z"} <= set(vertex):
        raise MeshError("its vertices have no x, y and z")
    polygons = next((face[name] for name in _CORNER_LISTS if name in face), None)
    if polygons is None:
        strips = "; triangle strips are not read" if "tristrips" in rows else ""
        raise MeshError(f"no triangles: it holds points without faces{strips}; export a surface")
    points = np.stack([np.asarray(vertex[axis], np.float64) for axis in "xyz"], axis=1)
    faces, origin = _triangles(points, polygons)
    ids = {name: np.asarray(face[name], np.int64)[origin] for name in _IDS if name in face}
    for name in _IDS:
        if name in vertex and name not in ids:
            ids[name] = face_majority(np.asarray(vertex[name], np.int64), faces)
    colors = _colors(face, elements)
    if colors is not None:
        colors = colors[origin]
    elif (shades := _colors(vertex, elements)) is not None:
        colors = face_majority(shades, faces)
    return [Part(points, faces, colors=colors, ids=ids)] if len(faces) else []


def read_ply_facts(path: Path) -> MeshFacts:
    """Read the mesh facts from a PLY file's header.

    Raises:
        MeshError: The header is broken, or counts no faces.
    """
    _, elements, _ = _read_header(path)
    faces = next((element.count for element in elements if element.name == "face"), 0)
    if faces == 0:
        raise MeshError("no triangles: it holds points without faces; export a surface")
    # Scans come as triangles or as quads; twice the faces errs upwards.
    return MeshFacts(2 * faces)


Columns = dict[str, npt.NDArray[Any]]
"""Property → values (N,), or for a list: (N, K) where all rows have K entries, else an object array of rows."""


def _read_binary(data: bytes, order: str, elements: tuple[_Element, ...]) -> dict[str, Columns]:
    rows: dict[str, Columns] = {}
    at = 0
    for element in elements:
        if element.count and element.properties:
            rows[element.name], at = _binary_rows(data, at, order, element)
    return rows


def _binary_rows(data: bytes, at: int, order: str, element: _Element) -> tuple[Columns, int]:
    # Nearly every file has lists of one length: then a row has a fixed size, and one view reads them all.
    fields: list[tuple[Any, ...]] = []
    for name, kind, length in element.properties:
        if not length:
            fields.append((name, order + kind))
            continue
        offset = at + np.dtype(fields).itemsize if fields else at
        width = np.dtype(order + length)
        if offset + width.itemsize > len(data):
            raise MeshError(f"truncated inside element {element.name!r}")
        count = int(np.frombuffer(data, width, 1, offset)[0])
        if not 0 <= count * np.dtype(kind).itemsize <= len(data):
            raise MeshError(f"broken: a list of {count} entries in element {element.name!r}")
        fields += [(f"#{name}", order + length), (name, order + kind, (count,))]
    row = np.dtype(fields)
    if at + row.itemsize * element.count <= len(data):
        table = np.frombuffer(data, row, element.count, at)
        if all((table[f"#{n}"] == table[n].shape[1]).all() for n, _, length in element.properties if length):
            return {name: table[name] for name in element.names()}, at + row.itemsize * element.count
    elif not any(length for _, _, length in element.properties):
        raise MeshError(f"truncated inside element {element.name!r}")
    return _binary_rows_slowly(data, at, order, element)


def _binary_rows_slowly(data: bytes, at: int, order: str, element: _Element) -> tuple[Columns, int]:
    values: dict[str, list[Any]] = {name: [] for name in element.names()}
    kinds = [(n, np.dtype(order + k), np.dtype(order + c) if c else None) for n, k, c in element.properties]
    try:
        for _ in range(element.count):
            for name, kind, length in kinds:
                count = 1
                if length is not None:
                    count = int(np.frombuffer(data, length, 1, at)[0])
                    if count < 0:
                        raise MeshError(f"broken: a list of {count} entries in element {element.name!r}")
                    at += length.itemsize
                entries = np.frombuffer(data, kind, count, at) if count else np.zeros(0, kind)
                at += kind.itemsize * count
                values[name].append(entries if length is not None else entries[0])
    except ValueError:
        raise MeshError(f"truncated inside element {element.name!r}") from None
    return {name: _column(values[name], bool(length)) for name, _, length in element.properties}, at


def _read_text(data: bytes, order: str, elements: tuple[_Element, ...]) -> dict[str, Columns]:  # noqa: ARG001
    lines = (line for line in data.splitlines() if line.strip())
    rows: dict[str, Columns] = {}
    for element in elements:
        values: dict[str, list[Any]] = {name: [] for name in element.names()}
        lists = [bool(length) for _, _, length in element.properties]
        for line in itertools.islice(lines, element.count):
            fields = iter(line.split())
            try:
                for (name, kind, _), many in zip(element.properties, lists, strict=True):
                    read = float if kind[0] == "f" else int
                    if many:
                        count = int(next(fields))
                        values[name].append(np.array([read(f) for f in itertools.islice(fields, max(count, 0))]))
                        if len(values[name][-1]) != count:
                            raise ValueError("the list is too short")
                    else:
                        values[name].append(read(next(fields)))
            except (ValueError, StopIteration, OverflowError) as error:
                shown = line[:60].decode("utf-8", "replace")
                raise MeshError(f"line {shown!r} of element {element.name!r} is broken: {error}") from None
        if any(len(column) < element.count for column in values.values()):
            raise MeshError(f"truncated inside element {element.name!r}")
        try:
            rows[element.name] = {
                name: _column(values[name], many) for (name, _, _), many in zip(element.properties, lists, strict=True)
            }
        except OverflowError:
            raise MeshError(f"a number of element {element.name!r} does not fit 64 bits") from None
    return rows


def _column(values: list[Any], many: bool) -> npt.NDArray[Any]:
    if not many:
        return np.array(values)
    if len({len(entries) for entries in values}) == 1:
        return np.stack(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _triangles(
    points: npt.NDArray[np.float64], polygons: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Triangulate PLY faces: triangles (F, 3) and source rows (F,); rows of fewer than 3 corners are dropped."""
    if polygons.ndim == 2:
        lengths, corners = np.full(len(polygons), polygons.shape[1], np.int64), polygons.reshape(-1)
    else:
        lengths, corners = np.array([len(ring) for ring in polygons], np.int64), np.concatenate([[], *polygons])
    return triangulate(points, corners.astype(np.int64), lengths)


def _colors(columns: Columns, elements: tuple[_Element, ...]) -> npt.NDArray[np.float32] | None:
    if not {"red", "green", "blue"} <= set(columns):
        return None
    kinds = {name: kind for element in elements for name, kind, _ in element.properties}
    values = np.stack([np.asarray(columns[name], np.float32) for name in ("red", "green", "blue")], axis=1)
    return values if kinds["red"][0] == "f" else values / np.float32(255)
