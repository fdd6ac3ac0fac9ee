"""Mesh part with face names, header facts, and polygon triangulation, shared by all mesh readers.

Polygons become triangles here: `triangulate` cuts rings, `join_holes` makes one ring of a polygon with holes.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.kernels.meshes import split_polygons

T = TypeVar("T")
Float64 = npt.NDArray[np.float64]
Numbers = float | Float64
Int64 = npt.NDArray[np.int64]
MAX_TRIANGLES = 50_000_000
"""Triangles of a file over all instances: a small file can place one mesh a million times."""
_MAX_JSON = 256 << 20
"""Bytes of a JSON file beside a mesh."""
_BROKEN = (
    KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, DeprecationWarning
)  # fmt: skip
"""What reading an untyped document of another form raises; the last one by numpy, at a text that is no number."""
_SAMPLE = 1 << 20
"""Bytes sampled of a text file."""
_MAX_CORNERS = 4096
"""Corners of a polygon: the work grows with their square."""


@dataclass(frozen=True)
class MeshFacts:
    """Mesh metadata that is known without decoding the geometry."""

    triangles: int
    """Triangles over all instances; an estimate where `exact` is false."""
    exact: bool = False
    """True where the header counts the triangles, or their bytes do."""
    bounds: Float64 | None = None
    """Bounds (2, 3) in the file's units and axes; None where only the geometry has them."""


@dataclass(frozen=True)
class Part:
    """Part of a mesh: triangles that share their object and material names."""

    points: Float64
    """Positions in the file's world coordinates and units, shape (V, 3)."""
    faces: Int64
    """Vertex indices, shape (F, 3)."""
    objects: tuple[str, ...] = ()
    """Names of the object, best first: node and mesh, or object and group."""
    material: str = ""
    """Name of the material; empty where there is none."""
    colors: npt.NDArray[np.float32] | None = None
    """Colour of each face in 0…1, shape (F, 3): the one most of its corners have."""
    linear: bool = False
    """True where `colors` are linear light, as glTF stores them, and not sRGB."""
    ids: Mapping[str, Int64] = field(default_factory=dict)
    """Integer properties of each face by name (`object_id`, `category_id`), shape (F,) each."""
    uv: Float64 | None = None
    """Texture coordinates of the vertices, shape (V, 2); only where textures were asked for."""
    image: bytes | None = None
    """The encoded base-colour texture; only where textures were asked for."""

    def __post_init__(self) -> None:
        check_indices(self.faces, len(self.points))


def _reason(error: Exception) -> str:
    """Return what an exception of `_BROKEN` means for the file."""
    if isinstance(error, IndexError):
        return "an index points beyond its list"
    if isinstance(error, KeyError):
        return f"the entry {error} is missing"
    if isinstance(error, TypeError | AttributeError):
        return "an entry has another type than its format demands"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context manager that converts any fault while reading a file into a `MeshError` that begins with its path.

    NumPy's floating-point warnings are off, since a broken file may hold any bit pattern; non-finite results are
    refused by name.
    """
    try:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            yield
    except MeshError as error:
        raise MeshError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None
    except OSError as error:
        raise MeshError(f"{path}: cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise MeshError(f"{path}: does not fit into memory; split the scene") from None
    except _BROKEN as error:
        raise MeshError(f"{path}: is broken: {_reason(error)}; export it again") from None


def read_once(known: dict[Path, T | MeshError], path: Path, read: Callable[[Path], T]) -> T:
    """Return the cached result of `read` for a path, or re-raise its cached fault; each file is read once.

    Faults are cached, too: a scene may refer to one broken file a thousand times.
    """
    if path not in known:
        try:
            known[path] = read(path)
        except MeshError as error:
            known[path] = error
    found = known[path]
    if isinstance(found, MeshError):
        raise MeshError(str(found))
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Load a JSON file whose top level is an object.

    Raises:
        MeshError: The file cannot be read, is too large or broken, or holds something else.
    """
    with reading(path):
        if path.stat().st_size > _MAX_JSON:
            raise MeshError(f"{path.stat().st_size} bytes of JSON are more than {_MAX_JSON}")
        return parse_json(path.read_bytes())


def parse_json(data: bytes) -> dict[str, Any]:
    """Parse JSON text whose top level is an object.

    Raises:
        MeshError: The text is broken or holds something else.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MeshError(f"its JSON is broken or truncated: {error}") from None
    if not isinstance(document, dict):
        raise MeshError(f"its JSON is a {type(document).__name__}, not an object")
    return document


def rotation_matrix(x: Numbers, y: Numbers, z: Numbers, w: Numbers) -> Float64:
    """Return the rotation matrix (3, 3) of a unit quaternion; (3, 3, N) for N quaternions (N,) each."""
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def sample_text_facts(path: Path, key: bytes) -> MeshFacts:
    """Estimate a text mesh's triangle count from the density of lines starting with `key` in two sampled blocks."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        stream.seek(max(0, size // 2 - _SAMPLE // 2))
        middle = stream.read(_SAMPLE)
        stream.seek(max(0, size - _SAMPLE))
        # OBJ files list vertices first: the end of the file is where the faces are.
        last = stream.read(_SAMPLE)
    share = max(_density(block, key) for block in (middle, last))
    return MeshFacts(math.ceil(share * size))


def _density(block: bytes, key: bytes) -> float:
    return sum(line.lstrip().startswith(key) for line in block.splitlines()) / max(len(block), 1)


def check_indices(faces: Int64, vertices: int) -> None:
    """Refuse faces with vertex indices out of range.

    Raises:
        MeshError: Names the vertex.
    """
    low, high = int(faces.min(initial=0)), int(faces.max(initial=-1))
    if low < 0 or high >= vertices:
        raise MeshError(f"a face refers to vertex {low if low < 0 else high}, but there are {vertices} vertices")


def face_majority(values: npt.NDArray[Any], faces: Int64) -> npt.NDArray[Any]:
    """Return each face's majority value over its corners; the first corner's where all three differ.

    Args:
        values: Per vertex, shape (V,) or (V, C).
        faces: Vertex indices, shape (F, 3).
    """
    a, b, c = (values[faces[:, k]] for k in range(3))
    same = b == c if values.ndim == 1 else (b == c).all(axis=1)
    return np.where(same if values.ndim == 1 else same[:, None], b, a)


def triangulate(points: Float64, corners: Int64, lengths: Int64) -> tuple[Int64, Int64]:
    """Triangulate polygons: return triangles (F, 3) and their polygon indices (F,), ascending.

    Polygons of fewer than three corners are left out.

    Args:
        points: Positions (V, 3).
        corners: Vertices of the polygons, one polygon after the other.
        lengths: Corners of each polygon (N,).

    Raises:
        MeshError: A corner is no vertex, or there are too many triangles or corners.
    """
    check_indices(corners, len(points))
    total, longest = int(np.maximum(lengths - 2, 0).sum()), int(lengths.max(initial=0))
    if total > MAX_TRIANGLES:
        raise MeshError(f"{total} triangles, more than {MAX_TRIANGLES}; split the scene")
    if longest > _MAX_CORNERS:
        raise MeshError(f"a polygon of {longest} corners, more than {_MAX_CORNERS}; export triangles")
    begin = np.cumsum(lengths) - lengths
    found = [(np.zeros((0, 3), np.int64), np.zeros(0, np.int64))]
    for count in np.unique(lengths[lengths >= 3]).tolist():
        rows = np.flatnonzero(lengths == count)
        rings = corners[begin[rows][:, None] + np.arange(count)]
        faces = rings
        if count > 3:
            faces = np.empty((len(rows), count - 2, 3), np.int64)
            split_polygons(np.ascontiguousarray(points, np.float64), rings, faces)
        found.append((faces.reshape(-1, 3), np.repeat(rows, count - 2)))
    if len(found) == 2:
        return found[1]
    faces, origin = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    rank = np.argsort(origin, kind="stable")
    return faces[rank], origin[rank]


_MAX_HOLED = 1024
"""Corners of outline and holes together: the work may grow with their cube."""


def join_holes(points: Float64, outline: Int64, holes: Sequence[Int64]) -> Int64:
    """Merge a polygon's outline and holes into one ring of vertices, joined by seams (bridge edges).

    Args:
        points: Positions (V, 3); every vertex of the rings is one.
        outline: Vertices of the outline, at least three.
        holes: Vertices of the holes; those of fewer than three are left out.

    Raises:
        MeshError: There are too many corners.
    """
    holes = [hole for hole in holes if len(hole) >= 3]
    count = len(outline) + sum(map(len, holes))
    if count > _MAX_HOLED:
        raise MeshError(f"a polygon with holes of {count} corners, more than {_MAX_HOLED}; export triangles")
    # Of a file's points only its own: a façade has a thousand such polygons.
    own = np.concatenate([outline, *holes])
    points = points[own]
    outline, *holes = np.split(np.arange(count), np.cumsum([len(outline), *map(len, holes)])[:-1])
    # The plane in which the outline is largest, as the triangulation takes it.
    corners = points[outline] - points[outline[0]]
    normal = np.cross(corners[1:-1], corners[2:]).sum(axis=0)
    flat = np.delete(points, int(np.argmax(np.abs(normal))), axis=1)
    turn = _area(flat[outline])
    ring = outline
    rest = [hole if _area(flat[hole]) * turn < 0 else hole[::-1] for hole in holes]
    # From one side to the other, so that no seam has to cross a hole that is not joined yet.
    rest.sort(key=lambda hole: -float(flat[hole, 0].max()))
    while rest:
        hole = rest.pop(0)
        start = int(np.argmax(flat[hole, 0]))
        hole = np.roll(hole, -start)
        at = _seam(flat, ring, hole, rest, turn)
        ring = np.concatenate([ring[: at + 1], hole, hole[:1], ring[at:]])
    return own[ring]


def _area(ring: Float64) -> float:
    after = np.roll(ring, -1, axis=0)
    return float((ring[:, 0] * after[:, 1] - ring[:, 1] * after[:, 0]).sum())


def _seam(flat: Float64, ring: Int64, hole: Int64, others: Sequence[Int64], turn: float) -> int:
    """Return the ring index for a hole's bridge edge: the nearest vertex visible from the hole's first corner."""
    sides = [(flat[line], np.roll(flat[line], -1, axis=0)) for line in (ring, hole, *others)]
    begin, end = (np.concatenate(ends) for ends in zip(*sides, strict=True))
    eye = flat[hole[0]]
    order = np.argsort(((flat[ring] - eye) ** 2).sum(axis=1), kind="stable").tolist()
    for at in order:
        target = flat[ring[at]]
        before, after = flat[ring[at - 1]], flat[ring[(at + 1) % len(ring)]]
        # A corner of a seam is there twice; only one of the two looks to where the hole is.
        if not _looks(before, target, after, eye, turn):
            continue
        side = _side(eye, target, begin)
        crossed = (side * _side(eye, target, end) < 0) & (_side(begin, end, eye) * _side(begin, end, target) < 0)
        touched = (side == 0) & (((begin - eye) * (begin - target)).sum(axis=1) < 0)
        if not (crossed | touched).any():
            return at  # type: ignore[no-any-return]
    return order[0]  # type: ignore[no-any-return]


def _looks(before: Float64, corner: Float64, after: Float64, target: Float64, turn: float) -> bool:
    """In-cone test: return whether a target lies within the polygon's interior angle at a corner."""
    left, right = _side(corner, target, before) * turn >= 0, _side(corner, target, after) * turn <= 0
    return bool(left and right if _side(before, corner, after) * turn >= 0 else left or right)


def _side(a: Float64, b: Float64, c: Float64) -> Float64:
    """Return the orientation test of point c against line a–b (2D cross product): positive on the left."""
    return (b[..., 0] - a[..., 0]) * (c[..., 1] - a[..., 1]) - (b[..., 1] - a[..., 1]) * (c[..., 0] - a[..., 0])
