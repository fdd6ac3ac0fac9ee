"""Triangle mesh of a scene, and validation of its geometry and unit."""

import hashlib
import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.scenes.naming import MAX_SEMANTIC

MIN_EXTENT = 0.05
"""Smallest plausible largest extent of a scene [m]."""
MAX_EXTENT = 5000.0
"""Largest plausible extent of a scene [m]."""
_FAR = 1000.0
"""Extent that is a doubt [m]."""
_HIGH = 60.0
"""Height that is a doubt in a scene that is as wide [m]; a house in centimetres is 250 high."""
_STRAYS = 100
"""Triangles on each side of a large mesh that may be strays, at most a thousandth of all."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mesh:
    """Indexed triangle mesh in world coordinates (+Y up, metres) with a semantic id per face."""

    vertices: npt.NDArray[np.float64]
    """Positions [m], shape (V, 3)."""
    faces: npt.NDArray[np.int32]
    """Vertex indices, shape (F, 3)."""
    face_semantic: npt.NDArray[np.int32]
    """Semantic id of each face, shape (F,), 1…65535, keys of `semantic_names`."""
    semantic_names: dict[int, str]
    """Name of each semantic id; 1 is "surface"."""
    name: str
    """Scene name, used for files."""
    source_hash: str
    """SHA-256 (hex) of the source file's bytes, or of the arrays for a generated mesh."""

    @property
    def triangles(self) -> npt.NDArray[np.float64]:
        """Vertex positions of each face [m], shape (F, 3, 3)."""
        return self.vertices[self.faces]

    @property
    def bounds(self) -> npt.NDArray[np.float64]:
        """Tight axis-aligned bounds of the faces [m], shape (2, 3): minimum, maximum."""
        used = self.vertices[np.unique(self.faces)]
        return np.stack([used.min(axis=0), used.max(axis=0)])


def mesh_from_arrays(
    name: str,
    vertices: npt.ArrayLike,
    faces: npt.ArrayLike,
    face_semantic: npt.ArrayLike | None = None,
    semantic_names: dict[int, str] | None = None,
) -> Mesh:
    """Build a `Mesh` from plain arrays, hashing the arrays as its source; see `check_mesh` for validation.

    Args:
        name: Scene name.
        vertices: Positions [m], shape (V, 3).
        faces: Vertex indices, shape (F, 3).
        face_semantic: Ids per face, shape (F,); all 1 when left out.
        semantic_names: Names of the ids; `{1: "surface"}` when left out.

    Raises:
        MeshError: An array has another shape, or holds what is no number, no index or no id.
    """
    points = _triples(name, "vertices", vertices, "f")
    corners = _triples(name, "faces", faces, "iu").astype(np.int32)
    ids = (
        np.ones(len(corners), np.int32)
        if face_semantic is None
        else _numbers(name, "semantic ids", face_semantic, "iu").astype(np.int32)
    )
    names = dict(semantic_names) if semantic_names is not None else {1: "surface"}
    for key, value in names.items():
        if not isinstance(key, int | np.integer) or not isinstance(value, str):
            raise MeshError(f"{name}: semantic name {key!r}: {value!r}; names are strings by whole number")
    digest = hashlib.sha256()
    for array in (points.astype("<f8"), corners.astype("<i4"), ids.astype("<i4")):
        digest.update(np.int64(array.size).tobytes())
        digest.update(array.tobytes())
    for key in sorted(names):
        digest.update(f"{key}\0{names[key]}\0".encode())
    return Mesh(points, corners, ids, names, name, digest.hexdigest())


def _numbers(name: str, what: str, value: npt.ArrayLike, kinds: str) -> npt.NDArray[Any]:
    """Validate an array's dtype kind ("f": floats, "iu": integers that fit into 32 bits) and return the array."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise MeshError(f"{name}: {what} are no array: {error}") from None
    if array.size == 0:
        return array.astype(np.float64 if "f" in kinds else np.int64)
    if array.dtype.kind not in kinds + ("iu" if "f" in kinds else ""):
        raise MeshError(f"{name}: {what} are {array.dtype}, expected {'real' if 'f' in kinds else 'whole'} numbers")
    if "f" in kinds:
        return np.ascontiguousarray(array, dtype=np.float64)
    low, high = int(array.min()), int(array.max())
    if low < -(2**31) or high >= 2**31:
        raise MeshError(f"{name}: {what} run from {low} to {high}; they must fit into 32 bits")
    return array


def _triples(name: str, what: str, value: npt.ArrayLike, kinds: str) -> npt.NDArray[Any]:
    array = _numbers(name, what, value, kinds)
    if array.size and (array.ndim != 2 or array.shape[1] != 3):
        raise MeshError(f"{name}: {what} of shape {array.shape}, expected (N, 3)")
    return array.reshape(-1, 3)


def check_mesh(mesh: Mesh, where: str | None = None) -> Mesh:
    """Validate a mesh for compilation: drop zero-area faces, refuse any other fault.

    Dropped faces are counted in one logged warning. The result shares arrays with the input where
    nothing changed.

    Args:
        mesh: The mesh to check.
        where: Name used in messages, a file path for instance; the mesh's name when left out.

    Raises:
        MeshError: The arrays have a wrong shape; there are no faces; vertices are not finite; an index
            or a semantic id is out of range; no face has an area; the extent cannot be metres.
    """
    where = where or mesh.name
    vertices, faces, ids = mesh.vertices, mesh.faces, mesh.face_semantic
    if vertices.ndim != 2 or vertices.shape[1:] != (3,) or faces.ndim != 2 or faces.shape[1:] != (3,):
        raise MeshError(
            f"{where}: vertices {vertices.shape} and faces {faces.shape} must have the shapes (V, 3) and (F, 3)"
        )
    if len(vertices) == 0 or len(faces) == 0:
        raise MeshError(
            f"{where}: the mesh is empty ({len(vertices)} vertices, {len(faces)} faces); "
            "export triangles, not points or curves"
        )
    if ids.shape != (len(faces),):
        raise MeshError(f"{where}: {ids.shape} semantic ids for {len(faces)} faces; one per face is needed")
    bad = ~np.isfinite(vertices).all(axis=1)
    if bad.any():
        # Scans contain unused vertices with non-finite coordinates.
        bad &= np.isin(np.arange(len(vertices)), faces)
    if bad.any():
        first = int(np.argmax(bad))
        value = ", ".join(f"{v:g}" for v in vertices[first])
        raise MeshError(
            f"{where}: {int(bad.sum())} of {len(vertices)} vertices are NaN or infinite; "
            f"the first is vertex {first} = ({value})"
        )
    low, high = int(faces.min()), int(faces.max())
    if low < 0 or high >= len(vertices):
        index = low if low < 0 else high
        face = int(np.argmax((faces == index).any(axis=1)))
        raise MeshError(f"{where}: face {face} refers to vertex {index}, but there are {len(vertices)} vertices")
    if ids.min() < 1 or ids.max() > MAX_SEMANTIC:
        raise MeshError(f"{where}: semantic ids run from {ids.min()} to {ids.max()}; allowed are 1 to {MAX_SEMANTIC}")
    _check_extent(mesh, where)
    mesh = _drop_zero_area(mesh, where)
    unnamed = sorted(set(np.unique(mesh.face_semantic).tolist()) - set(mesh.semantic_names))
    if unnamed:
        raise MeshError(f"{where}: semantic id {unnamed[0]} has no name; named are {sorted(mesh.semantic_names)[:20]}")
    return mesh


def _drop_zero_area(mesh: Mesh, where: str) -> Mesh:
    corners = mesh.triangles
    # Relative to the longest edge, so that a sliver of a millimetre model counts like one of a city.
    edges = np.stack([corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 1], corners[:, 0] - corners[:, 2]])
    longest = np.linalg.norm(edges, axis=2).max(axis=0)
    height = np.linalg.norm(np.cross(edges[0], edges[1]), axis=1) / np.maximum(longest, np.finfo(np.float64).tiny)
    keep = height > 1e-12 * np.maximum(1.0, np.abs(corners).max(axis=(1, 2)))
    if keep.all():
        return mesh
    if not keep.any():
        raise MeshError(f"{where}: all {len(keep)} faces have zero area; nothing would stop a ray")
    _log.warning("%s: dropped %d of %d faces of zero area", where, int((~keep).sum()), len(keep))
    return replace(mesh, faces=mesh.faces[keep], face_semantic=mesh.face_semantic[keep])


def unit_doubt(extent: npt.NDArray[np.float64]) -> str | None:
    """Return a warning if a mesh size (x, y, z) [m] is implausible for metres, None if it is plausible."""
    unit = likely_unit(extent)
    if unit is None:
        return "over 1 km: is its unit the millimetre or centimetre? (--unit-scale 0.001 or 0.01)"
    if unit != 1.0:
        side = f"; {_ON_ITS_SIDE}" if lies_on_its_side(extent * unit) else ""
        return f"{extent[1]:.0f} m high: is its unit the centimetre? (--unit-scale {unit}){side}"
    return None


def likely_unit(extent: npt.NDArray[np.float64]) -> float | None:
    """Guess the metres per unit from a mesh size (x, y, z); None where several units are plausible."""
    if extent.max() > _FAR:
        # A home of over ten metres, whichever side is up; a town is lower, a room in millimetres higher.
        return 0.01 if _HIGH < extent.min() < _FAR else None
    return 0.01 if extent[1] > _HIGH and max(extent[0], extent[2]) > _HIGH else 1.0


_ON_ITS_SIDE = "if it lies on its side: --up-axis z (compile.up_axis=z)"


def lies_on_its_side(extent: npt.NDArray[np.float64]) -> bool:
    """Return whether a mesh size (x, y, z) [m] is rather one of a mesh with +Z up."""
    # Buildings are wider than high; a tall model gets a warning only, since towers exist.
    return bool(extent[1] > 3.0 * max(extent[0], extent[2]) or (extent[2] < 4.0 < extent[1] and extent[0] > extent[2]))


def _without_strays(mesh: Mesh, step: int = 1) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Compute a bounding box robust to outliers: trimmed minimum and maximum (3,) of every `step`-th triangle."""
    faces = mesh.faces[::step]
    few = min(_STRAYS, len(faces) // 1000)
    lower, upper = np.empty((2, 3))
    for axis in range(3):
        place = mesh.vertices[:, axis][faces]
        lower[axis] = np.partition(place.min(axis=1), few)[few]
        upper[axis] = -np.partition(-place.max(axis=1), few)[few]
    return lower, upper


def _share_far_out(mesh: Mesh, lower: npt.NDArray[np.float64], upper: npt.NDArray[np.float64]) -> float:
    """Return the fraction of surface area in outlier triangles, further from the bounds than these are wide."""
    corners, wide = mesh.triangles, float((upper - lower).max())
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    far = ((corners.min(axis=1) < lower - wide) | (corners.max(axis=1) > upper + wide)).any(axis=1)
    return float(area[far].sum() / max(area.sum(), np.finfo(np.float64).tiny))


def _check_extent(mesh: Mesh, where: str) -> None:
    lower, upper = mesh.bounds
    extent = upper - lower
    largest = float(extent.max())
    # Where a sample is a third as large, there are no strays; else all are asked.
    low, high = _without_strays(mesh, max(1, len(mesh.faces) // 20_000))
    if (high - low).max() < largest / 3:
        low, high = _without_strays(mesh)
    size, bulk = (" × ".join(f"{v:.3g}" for v in lengths) for lengths in (extent, high - low))
    strays = None
    # The walls of a room with a fine statue, or the ground around a house, are few triangles too, but large.
    if 0 < (high - low).max() < largest / 3 and _share_far_out(mesh, low, high) < 0.5:
        strays = (
            f"without the few triangles furthest out it would measure {bulk} m: strays leave drones nowhere to start; "
            "remove them, in MeshLab for instance (Filters → Cleaning → Remove isolated pieces)"
        )
    if largest > MAX_EXTENT:
        unit = (
            "its unit is probably not the metre: --unit-scale 0.001 for millimetres, 0.01 for centimetres "
            "(compile.unit_scale=0.01)"
        )
        raise MeshError(f"{where}: the mesh measures {size} m, more than {MAX_EXTENT:g} m; {strays or unit}")
    doubt = strays or unit_doubt(extent)
    if doubt is not None:
        _log.warning("%s: the mesh measures %s m (x, y, z); %s", where, size, doubt)
    if 0 < largest < MIN_EXTENT:
        raise MeshError(
            f"{where}: the mesh measures {size} m, less than {MIN_EXTENT:g} m; its unit is probably not the metre: "
            "--unit-scale 1000 for kilometres, 1/largest extent for normalised models (compile.unit_scale=1000)"
        )
    if lies_on_its_side(extent):
        _log.warning("%s: the mesh measures %s m (x, y, z); %s", where, size, _ON_ITS_SIDE)
