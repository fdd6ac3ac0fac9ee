"""COLLADA (.dae) mesh reader: triangles and polygons, placed by the scene graph.

Numbers follow the COLLADA 1.4.1 specification; the unit is applied; `collada_up_axis` returns the up axis.
"""

import logging
import mmap
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.scenes.readers.part import (
    MAX_TRIANGLES,
    Float64,
    MeshFacts,
    Part,
    check_indices,
    join_holes,
    triangulate,
)
from navi_core.scenes.readers.xml_files import first_text, read_xml

_MAX_INSTANCES = 5_000_000
"""Nodes and what is in them over all instances: thirty libraries, each of which names the next twice, are a billion."""
_MAX_NESTING = 64
"""Instances within instances."""
_HEAD = 1 << 20
"""Bytes in which the up axis is looked for."""
_PRIMITIVES = ("triangles", "polylist", "polygons", "trifans", "tristrips")
_COUNT = re.compile(
    rb"<(?:\w{1,40}:)?(triangles|polylist|polygons|trifans|tristrips)\b[^<>]{0,400}?\bcount\s{0,9}=\s{0,9}[\"'](\d{1,12})"
)
"""Every repetition has an end, so that a file of a billion opening brackets is looked through once."""
_log = logging.getLogger(__name__)


def read_collada(path: Path) -> list[Part]:
    """Read a COLLADA file: one part per triangle or polygon list of every placed geometry, in metres, axes unchanged.

    Lines are left out, skins are not applied.

    Raises:
        MeshError: The file is broken, refers to what is not there, or to another file.
    """
    return _Document(path, read_xml(path)).parts()


def collada_up_axis(path: Path) -> str:
    """Return the up axis that a COLLADA file declares: `y` (the default) or `z`.

    Raises:
        MeshError: It is neither.
    """
    axis = first_text(path, "up_axis", _HEAD) or "Y_UP"
    if axis not in ("Y_UP", "Z_UP"):
        raise MeshError(f"its up_axis is {axis!r}; export it with Y_UP or Z_UP")
    return axis[0].lower()


def read_collada_facts(path: Path) -> MeshFacts:
    """Estimate the triangle count from the declared list sizes of a COLLADA file; a polygon counts twice."""
    most = path.stat().st_size // 6  # No triangle takes fewer bytes.
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = [(match[1], int(match[2])) for match in _COUNT.finditer(data)]
    total = sum(min(count, most) * (1 if kind == b"triangles" else 2) for kind, count in found)
    return MeshFacts(total)


class _Document:
    """Parsed COLLADA document; its geometries are read once and placed for every instance."""

    def __init__(self, path: Path, root: ET.Element) -> None:
        if root.tag != "COLLADA":
            raise MeshError(f"its root is <{root.tag}>, not <COLLADA>")
        self._path, self._root = path, root
        # By kind too: exporters give a node the name of its geometry.
        self._ids = {(element.tag, key): element for element in root.iter() if (key := element.get("id"))}
        self._points: dict[str, Float64] = {}
        self._geometries: dict[str, list[tuple[Float64, npt.NDArray[np.int64], str]]] = {}

    def parts(self) -> list[Part]:
        """Return the placed parts of the document's visual scene."""
        unit = self._root.find("asset/unit")
        metres = float(unit.get("meter", "1").replace(",", ".")) if unit is not None else 1.0
        if not (np.isfinite(metres) and metres > 0):
            raise MeshError(f"is broken: a unit of {metres} m")
        parts: list[Part] = []
        total, skins = 0, 0
        for instance, matrix, name in self._instances():
            geometry, bind, skinned = self._geometry_of(instance)
            skins += skinned
            matrix = matrix @ bind
            if not np.isfinite(matrix).all():
                raise MeshError(
                    f"the node {name!r} is placed by a <lookat>, a <skew> or by what is no number, which "
                    "is not read; apply the transforms when exporting"
                )
            materials = self._materials(instance)
            for points, faces, symbol in self._geometry(geometry):
                total += len(faces)
                if total > MAX_TRIANGLES:
                    raise MeshError(f"more than {MAX_TRIANGLES} triangles; split the scene")
                placed = (points @ matrix[:3, :3].T + matrix[:3, 3]) * metres
                own = tuple(n for n in (name, geometry.get("name") or geometry.get("id") or "") if n)
                parts.append(Part(placed, faces, own, materials.get(symbol, symbol)))
        if skins:
            _log.warning("%s: %d skins are not applied: their meshes stand as they were made", self._path, skins)
        return parts

    def _instances(self) -> Iterator[tuple[ET.Element, Float64, str]]:
        """Yield every <instance_geometry> and <instance_controller> with its world matrix and node name."""
        shown = self._root.find("scene/instance_visual_scene")
        scene = (
            self._follow(shown, "visual_scene")
            if shown is not None
            else self._root.find("library_visual_scenes/visual_scene")
        )
        if scene is None:
            # A library of geometries alone.
            for geometry in self._root.iterfind("library_geometries/geometry"):
                yield geometry, np.eye(4), ""
            return
        stack: list[tuple[ET.Element, Float64, int]] = [(node, np.eye(4), 0) for node in scene.findall("node")]
        stack.reverse()
        count = 0
        while stack:
            node, above, nesting = stack.pop()
            # With what is in it: one node of a million transforms can be placed a million times.
            count += 1 + len(node)
            if count > _MAX_INSTANCES:
                raise MeshError(
                    f"its scene places more than {_MAX_INSTANCES} nodes with what is in them; split the scene"
                )
            matrix = above @ _transform(node)
            name = node.get("name") or node.get("id") or ""
            inner: list[tuple[ET.Element, Float64, int]] = []
            for child in node:
                match child.tag:
                    case "instance_geometry" | "instance_controller":
                        yield child, matrix, name
                    case "node":
                        inner.append((child, matrix, nesting))
                    case "instance_node":
                        if nesting >= _MAX_NESTING:
                            raise MeshError(
                                f"instances lie more than {_MAX_NESTING} deep in instances at {name!r}; a node that "
                                "contains itself has no end"
                            )
                        inner.append((self._follow(child, "node"), matrix, nesting + 1))
            stack += reversed(inner)

    def _follow(self, element: ET.Element, *kinds: str) -> ET.Element:
        """Resolve a reference to an element of the given tags in the same file."""
        url = str(element.get("url") or element.get("source") or "")
        if not url.startswith("#"):
            raise MeshError(f"{element.tag} refers to {url!r:.80}, outside of the file, which is not read")
        found = next((self._ids[kind, url[1:]] for kind in kinds if (kind, url[1:]) in self._ids), None)
        if found is None:
            raise MeshError(f"{element.tag} refers to {url!r:.80}, which is not there; export it again")
        return found

    def _geometry_of(self, instance: ET.Element) -> tuple[ET.Element, Float64, bool]:
        """Resolve an instance to its geometry, its bind-shape matrix (4, 4), and whether it is skinned."""
        if instance.tag == "geometry":
            return instance, np.eye(4), False
        kinds = ("geometry", "controller")
        found, matrix, skinned = self._follow(instance, *kinds), np.eye(4), False
        for _ in range(_MAX_NESTING):
            if found.tag != "controller":
                return found, matrix, skinned
            deform = next((child for child in found if child.tag in ("skin", "morph")), found)
            bind = deform.find("bind_shape_matrix")
            matrix = matrix @ (_numbers(bind, np.float64).reshape(4, 4) if bind is not None else np.eye(4))
            found, skinned = self._follow(deform, *kinds), True
        raise MeshError("its controllers refer to each other")

    def _materials(self, instance: ET.Element) -> dict[str, str]:
        """Return the material names that an instance binds, by material symbol of its geometry."""
        names: dict[str, str] = {}
        for bound in instance.iterfind("bind_material/technique_common/instance_material"):
            target = self._ids.get(("material", bound.get("target", "").removeprefix("#")))
            symbol = str(bound.get("symbol", ""))
            names[symbol] = (target.get("name") or target.get("id") or symbol) if target is not None else symbol
        return names

    def _geometry(self, geometry: ET.Element) -> list[tuple[Float64, npt.NDArray[np.int64], str]]:
        """Decode every list of a geometry: positions, triangles and material, in local coordinates."""
        key = geometry.get("id", "")
        if key not in self._geometries or not key:
            found = []
            for primitive in geometry.iterfind("mesh/*"):
                if primitive.tag in _PRIMITIVES:
                    points, faces = self._primitive(primitive, key)
                    if len(faces):
                        used, inverse = np.unique(faces, return_inverse=True)
                        found.append((points[used], inverse.reshape(-1, 3), primitive.get("material", "")))
            self._geometries[key] = found
        return self._geometries[key]

    def _primitive(self, primitive: ET.Element, where: str) -> tuple[Float64, npt.NDArray[np.int64]]:
        inputs = primitive.findall("input")
        vertex = next((item for item in inputs if item.get("semantic") == "VERTEX"), None)
        rings = [_numbers(item, np.int64) for item in primitive.findall("p")]
        holed = [
            [_numbers(item, np.int64) for item in (*polygon.findall("p"), *polygon.findall("h"))]
            for polygon in primitive.findall("ph")
        ]
        every = [*rings, *(ring for polygon in holed for ring in polygon)]
        if vertex is None or not any(len(ring) for ring in every):
            return np.zeros((0, 3)), np.zeros((0, 3), np.int64)
        stride = 1 + max(int(item.get("offset", 0)) for item in inputs)
        offset = int(vertex.get("offset", 0))
        if not 0 <= offset < stride or any(len(ring) % stride for ring in every):
            raise MeshError(f"{where!r} is broken: its indices do not come in groups of {stride}")
        corners = [ring.reshape(-1, stride)[:, offset] for ring in rings]
        points = self._positions(self._follow(vertex, "vertices"))
        for polygon in holed:
            outline, *holes = (ring.reshape(-1, stride)[:, offset] for ring in polygon)
            check_indices(np.concatenate([outline, *holes]), len(points))
            if len(outline) >= 3:
                corners.append(join_holes(points, outline, holes))
        if primitive.tag in ("trifans", "tristrips"):
            corners = [_unrolled(corner, primitive.tag).reshape(-1) for corner in corners if len(corner)]
        flat = np.concatenate(corners)
        match primitive.tag:
            case "polygons":
                lengths = np.array([len(corner) for corner in corners])
            case "polylist":
                lengths = _numbers(primitive.find("vcount"), np.int64)
            case _:
                lengths = np.full(len(flat) // 3, 3)
        if lengths.min(initial=0) < 0 or lengths.sum() != len(flat):
            raise MeshError(
                f"{where!r} is broken: its {primitive.tag} want {lengths.sum()} corners, {len(flat)} are there"
            )
        return points, triangulate(points, flat, lengths)[0]

    def _positions(self, vertices: ET.Element) -> Float64:
        """Decode the positions (V, 3) of a <vertices> element."""
        named = {item.get("semantic"): item for item in vertices.findall("input")}["POSITION"]
        source = self._follow(named, "source")
        key = source.get("id", "")
        if key not in self._points:
            accessor = source.find("technique_common/accessor")
            if accessor is None:
                raise MeshError(f"{key!r} is broken: it has no accessor")
            values = _numbers(self._follow(accessor, "float_array"), np.float64)
            count, stride = int(accessor.get("count", 0)), int(accessor.get("stride", 1))
            begin = int(accessor.get("offset", 0))
            # A parameter without a name is skipped.
            axes = [place for place, item in enumerate(accessor.findall("param")) if item.get("name")][:3] or [0, 1, 2]
            if len(axes) != 3 or stride <= max(axes) or begin < 0 or count < 0 or begin + count * stride > len(values):
                raise MeshError(
                    f"{key!r} is broken or truncated: {count} positions of {stride} numbers from "
                    f"{begin} on, {len(values)} are there"
                )
            self._points[key] = values[begin : begin + count * stride].reshape(count, stride)[:, axes]
        return self._points[key]


def _unrolled(corners: npt.NDArray[np.int64], kind: str) -> npt.NDArray[np.int64]:
    """Convert one triangle fan or strip into triangles."""
    if kind == "trifans":
        return np.stack([np.full(max(len(corners) - 2, 0), corners[0]), corners[1:-1], corners[2:]], axis=1)
    faces = np.stack([corners[:-2], corners[1:-1], corners[2:]], axis=1)
    faces[1::2] = faces[1::2, ::-1]
    return faces


def _numbers(element: ET.Element | None, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Parse the numbers in an element's text; DeprecationWarning or ValueError if it holds anything else."""
    text = (element.text or "").strip() if element is not None else ""
    if not text:
        return np.zeros(0, kind)
    with warnings.catch_warnings():
        # numpy warns so where it stopped in the middle.
        warnings.simplefilter("error", DeprecationWarning)
        return np.fromstring(text, dtype=kind, sep=" ")


def _transform(node: ET.Element) -> Float64:
    """Return a node's local transform: the product of its transform elements, in order."""
    matrix = np.eye(4)
    for child in node:
        step = np.eye(4)
        match child.tag:
            case "lookat" | "skew":
                # Cameras have them; a mesh below is refused by its name.
                step = np.full((4, 4), np.nan)
            case "matrix":
                step = _numbers(child, np.float64).reshape(4, 4)
            case "translate":
                step[:3, 3] = _numbers(child, np.float64).reshape(3)
            case "scale":
                step[[0, 1, 2], [0, 1, 2]] = _numbers(child, np.float64).reshape(3)
            case "rotate":
                step[:3, :3] = _rotation(*_numbers(child, np.float64).reshape(4))
            case _:
                continue
        matrix = matrix @ step
    return matrix


def _rotation(x: float, y: float, z: float, degrees: float) -> Float64:
    """Return the rotation matrix (3, 3) about an axis by degrees; the identity for a zero axis."""
    length = float(np.linalg.norm([x, y, z]))
    if length == 0:
        return np.eye(3)
    x, y, z = np.array([x, y, z]) / length
    angle = np.deg2rad(degrees)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + (np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross)  # type: ignore[no-any-return]
