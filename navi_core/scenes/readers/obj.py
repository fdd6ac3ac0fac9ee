"""Wavefront OBJ: positions, vertex colours, polygons and the names of objects, groups and materials."""

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from navi_core.errors import MeshError
from navi_core.scenes.readers.part import MeshFacts, Part, face_majority, sample_text_facts, triangulate

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NAMES = (b"o", b"g", b"usemtl")


def read_obj(path: Path) -> list[Part]:
    """Return one part for every run of faces with the same object, group and material.

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
    # Only where every vertex has one: a partial list belongs to nobody.
    shades = np.array(colors, dtype=np.float32) if colors and len(colors) == len(vertices) else None
    parts: list[Part] = []
    for (group_object, group, material), (rings, lengths) in faces.items():
        corners, _ = triangulate(points, np.frombuffer(rings, np.int64), np.frombuffer(lengths, np.int64))
        used, inverse = np.unique(corners, return_inverse=True)
        shade = face_majority(shades, corners) if shades is not None else None
        parts.append(Part(points[used], inverse.reshape(-1, 3), (group_object, group), material, shade))
    return parts


def read_obj_facts(path: Path) -> MeshFacts:
    """Return the facts of an OBJ file, sampled."""
    return sample_text_facts(path, b"f ")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with the numbers at which they begin, without a byte order mark, comments and continuations."""
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
