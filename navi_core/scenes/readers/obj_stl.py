"""Readers of Wavefront OBJ and STL meshes.

OBJ: positions, vertex colours, polygons and the names of objects, groups and materials. STL, binary and text: loose
triangles, named by their solids.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from navi_core.errors import MeshError
from navi_core.scenes.readers.part import MAX_TRIANGLES, MeshFacts, Part, face_majority, sample_text_facts, triangulate

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NAMES = (b"o", b"g", b"usemtl")


def read_obj(path: Path) -> list[Part]:  # noqa: C901
    """Read an OBJ file: one part per run of faces with the same object, group and material.

    Colours behind the positions (`v x y z r g b`) are vertex colours.

    Raises:
        MeshError: A line cannot be read or refers to a vertex that does not exist (yet); the line is named.
    """
    vertices: list[tuple[float, float, float]] = []
    colors: list[tuple[float, float, float]] = []
    # Corners of the polygons, and how many each has: a list of lists would take ten times the memory.
    faces: dict[tuple[str, ...], tuple[array[int], array[int]]] = {}
    names = dict.fromkeys(_NAMES, "")
    current: tuple[array[int], array[int]] | None = None
    for number, line in _lines(path):
        fields = line.split()
        if not fields:
            continue
        try:
            match fields[0]:
                case b"v":
                    vertices.append((float(fields[1]), float(fields[2]), float(fields[3])))
                    if len(fields) >= 7:
                        colors.append((float(fields[4]), float(fields[5]), float(fields[6])))
                case b"f":
                    if current is None:
                        current = faces.setdefault(tuple(names.values()), (array("q"), array("q")))
                    ring = [_index(field, len(vertices)) for field in fields[1:]]
                    if len(ring) < 3:
                        raise ValueError(f"a face needs 3 vertices, it has {len(ring)}")
                    current[0].extend(ring)
                    current[1].append(len(ring))
                case b"o" | b"g" | b"usemtl" as key:
                    names[key] = b" ".join(fields[1:]).decode("utf-8", "replace")
                    current = None
        except (ValueError, IndexError) as error:
            shown = line[:60].decode("utf-8", "replace").strip()
            raise MeshError(f"line {number} {shown!r} is broken or truncated: {error}") from None
    points = np.array(vertices, dtype=np.float64).reshape(-1, 3)
    # Only if every vertex has a colour: a partial list is ambiguous and ignored.
    shades = np.array(colors, dtype=np.float32) if colors and len(colors) == len(vertices) else None
    parts: list[Part] = []
    for (group_object, group, material), (rings, lengths) in faces.items():
        corners, _ = triangulate(points, np.frombuffer(rings, np.int64), np.frombuffer(lengths, np.int64))
        used, inverse = np.unique(corners, return_inverse=True)
        shade = face_majority(shades, corners) if shades is not None else None
        parts.append(Part(points[used], inverse.reshape(-1, 3), (group_object, group), material, shade))
    return parts


def read_obj_facts(path: Path) -> MeshFacts:
    """Estimate the mesh facts of an OBJ file by sampling its text."""
    return sample_text_facts(path, b"f ")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, logical line) of an OBJ file: byte order mark and comments removed, continuations joined."""
    with path.open("rb") as stream:
        head = stream.read(3)
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise MeshError("is text in UTF-16; save it as UTF-8 or ASCII")
        stream.seek(len(_BYTE_ORDER_MARK) if head == _BYTE_ORDER_MARK else 0)
        begun: list[bytes] = []
        first = 0
        for number, line in enumerate(stream, start=1):
            # A name may hold either character, the path of a file on Windows for one.
            special = (b"#" in line or b"\\" in line) and line.split(None, 1)[0] not in _NAMES
            if special:
                line = line.partition(b"#")[0]
            if special and line.rstrip().endswith(b"\\"):
                first = first or number
                begun.append(line.rstrip().removesuffix(b"\\"))
            elif begun:
                yield first, b" ".join([*begun, line])
                begun, first = [], 0
            else:
                yield number, line
        yield first, b" ".join(begun)


def _index(field: bytes, count: int) -> int:
    value = int(field.split(b"/", 1)[0])
    index = value - 1 if value > 0 else count + value
    if value == 0 or not 0 <= index < count:
        raise ValueError(f"vertex {value} does not exist, {count} are defined so far")
    return index


_STL_HEADER, _RECORD = 84, 50
_TRIANGLE = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])


def read_stl(path: Path) -> list[Part]:
    """Read an STL file: one part for a binary file, one per solid of a text file.

    Raises:
        MeshError: The file is truncated or a line cannot be read.
    """
    count = _read_stl_count(path)
    if count is None:
        return _read_stl_text(path.read_bytes(), path)
    if count > MAX_TRIANGLES:
        raise MeshError(f"{count} triangles, more than {MAX_TRIANGLES}; split the scene")
    with path.open("rb") as stream:
        stream.seek(_STL_HEADER)
        records = np.frombuffer(stream.read(_RECORD * count), _TRIANGLE)
    points = records["corners"].astype(np.float64).reshape(-1, 3)
    return [Part(points, np.arange(3 * count, dtype=np.int64).reshape(-1, 3))] if count else []


def read_stl_facts(path: Path) -> MeshFacts:
    """Read the mesh facts of an STL file; a text file is sampled.

    Raises:
        MeshError: A binary file is truncated.
    """
    count = _read_stl_count(path)
    return sample_text_facts(path, b"facet") if count is None else MeshFacts(count, exact=True)


def _read_stl_count(path: Path) -> int | None:
    """Return the triangle count of a binary STL, None for a text STL; some binary files begin with "solid", too."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(_STL_HEADER)
    count = int.from_bytes(head[80:84], "little")
    need = _STL_HEADER + _RECORD * count
    # A header is padded with zeros, and so is a count of triangles; without zeros the exact length decides.
    solid = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(b"solid")
    if solid and b"\0" not in head and size != need:
        return None
    if size < _STL_HEADER:
        raise MeshError(f"truncated: {size} bytes, a binary STL header alone has {_STL_HEADER}")
    if size < need:
        raise MeshError(f"truncated: {count} triangles need {need} bytes, {size} are there")
    return count


def _read_stl_text(data: bytes, path: Path) -> list[Part]:  # noqa: ARG001
    parts: list[Part] = []
    corners: list[tuple[float, float, float]] = []
    name, closed = "", True

    def close(number: int) -> None:
        if len(corners) % 3:
            raise MeshError(f"line {number}: broken or truncated: {len(corners)} corners are no triangles")
        if corners:
            faces = np.arange(len(corners), dtype=np.int64).reshape(-1, 3)
            parts.append(Part(np.array(corners, dtype=np.float64), faces, (name,)))
            corners.clear()

    number = 0
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        fields = line.split()
        try:
            match fields[0].lower() if fields else b"":
                case b"vertex":
                    corners.append((float(fields[1]), float(fields[2]), float(fields[3])))
                case b"solid":
                    close(number)
                    name, closed = b" ".join(fields[1:]).decode("utf-8", "replace"), False
                case b"endsolid":
                    close(number)
                    closed = True
        except (ValueError, IndexError) as error:
            shown = line[:60].decode("utf-8", "replace").strip()
            raise MeshError(f"line {number} {shown!r} is broken or truncated: {error}") from None
    if not closed:
        raise MeshError("truncated: the last solid has no 'endsolid'")
    close(number)
    return parts
