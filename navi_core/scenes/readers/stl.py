"""STL, binary and text: loose triangles, named by their solids."""

from pathlib import Path

import numpy as np

from navi_core.errors import MeshError
from navi_core.scenes.readers.part import MAX_TRIANGLES, MeshFacts, Part, sample_text_facts

_HEADER, _RECORD = 84, 50
_TRIANGLE = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])


def read_stl(path: Path) -> list[Part]:
    """Return the parts of an STL file: one for a binary file, one per solid of a text file.

    Raises:
        MeshError: The file is truncated or a line cannot be read.
    """
    count = _read_count(path)
    if count is None:
        return _read_text(path.read_bytes(), path)
    if count > MAX_TRIANGLES:
        raise MeshError(f"{count} triangles, more than {MAX_TRIANGLES}; split the scene")
    with path.open("rb") as stream:
        stream.seek(_HEADER)
        records = np.frombuffer(stream.read(_RECORD * count), _TRIANGLE)
    points = records["corners"].astype(np.float64).reshape(-1, 3)
    return [Part(points, np.arange(3 * count, dtype=np.int64).reshape(-1, 3))] if count else []


def read_stl_facts(path: Path) -> MeshFacts:
    """Return the facts of an STL file; a text file is sampled.

    Raises:
        MeshError: A binary file is truncated.
    """
    count = _read_count(path)
    return sample_text_facts(path, b"facet") if count is None else MeshFacts(count, True, None, False)


def _read_count(path: Path) -> int | None:
    """Return the triangles of a binary file, None for a text file; some binary files begin with "solid", too."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(_HEADER)
    count = int.from_bytes(head[80:84], "little")
    need = _HEADER + _RECORD * count
    # A header is padded with zeros, and so is a count of triangles; without zeros the exact length decides.
    solid = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(b"solid")
    if solid and b"\0" not in head and size != need:
        return None
    if size < _HEADER:
        raise MeshError(f"truncated: {size} bytes, a binary STL header alone has {_HEADER}")
    if size < need:
        raise MeshError(f"truncated: {count} triangles need {need} bytes, {size} are there")
    return count


def _read_text(data: bytes, path: Path) -> list[Part]:
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
