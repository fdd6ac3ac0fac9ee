"""Parser of Gazebo world files (SDF): list the placed shapes of a world and its included models.

Visuals are used, or the collisions of a link without visible visuals. Lights, roads, plugins and physics are ignored.
What cannot be placed (a model that is not on this machine, a heightmap, an actor) is counted as lost.
"""

from __future__ import annotations

import contextlib
import os
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.scenes.readers.gazebo.files import ModelFinder, path_below
from navi_core.scenes.readers.gazebo.poses import SHAPES, Scope, is_true, numbers, read_pose
from navi_core.scenes.readers.part import Float64, read_once, reading
from navi_core.scenes.readers.xml_files import first_child, read_xml

WORLD_SUFFIXES = (".world", ".sdf")
"""How the files' names end; an .sdf may also be a model."""
MAX_REACH = 2500.0
"""Distance from the world's origin at which nothing is believed [m]: a scene measures at most twice that."""
_MESHES = (".dae", ".stl", ".obj", ".glb", ".gltf", ".ply")
_MAX_NESTING = 32
"""Models within models: one that includes itself has no end."""
_MAX_SHAPES = 200_000
_GROUND = """<model name="ground_plane"><link name="link"><visual name="visual"><geometry>
<plane><size>100 100</size></plane></geometry></visual></link></model>"""
"""Gazebo's own ground, which worlds include and nobody ships."""
_MAX_NAME = 256
_COPIES = tuple(f"{dash}{word}" for dash in "_- " for word in ("clone", "copy"))


@dataclass(frozen=True)
class WorldShape:
    """Placed geometry (mesh or simple shape) of a Gazebo world."""

    geometry: ET.Element
    """A <mesh>, or a simple shape."""
    mesh: Path | None
    """The mesh file."""
    matrix: Float64
    """From its own coordinates to the world's, shape (4, 4)."""
    kind: str
    """What its model is called, without a counter behind it."""
    scale: npt.NDArray[np.float64] | None = None
    """Scale of a mesh that replaces its <scale>."""


@dataclass
class World:
    """Parsed Gazebo world: its placed shapes by SDF files alone; mesh files are not opened."""

    path: Path
    """The world's file."""
    shapes: list[WorldShape] = field(default_factory=list)
    """Everything placed."""
    files: dict[Path, None] = field(default_factory=dict)
    """Every file that the scene is made of, besides the world's own."""
    lost: Counter[str] = field(default_factory=Counter)
    """What is left out, and how often; a model that is missing is `model://NAME`."""
    robots: list[str] = field(default_factory=list)
    """Models that can move and carry sensors."""
    respelled: dict[str, str] = field(default_factory=dict)
    """Files that were found by other capitals alone."""


def is_world_name(path: Path) -> bool:
    """Return whether a file name can be that of a Gazebo world."""
    return path.name.lower().endswith(WORLD_SUFFIXES)


def is_world(path: Path) -> bool:
    """Return whether a file is a Gazebo world: an .sdf by its first bytes, a .world by its name."""
    suffix = path.suffix.lower()
    return suffix == ".world" or (
        suffix == ".sdf" and first_child(path, ("world", "model", "actor", "light")) == "world"
    )


def has_true_child(element: ET.Element, tag: str) -> bool:
    """Return whether an XML element has a child of the given tag with a true value."""
    return is_true(element.findtext(tag) or "")


def too_far(name: str, reach: float) -> str:
    """Format the warning for a part that is skipped because it lies too far out."""
    return f"{name} ({reach:,.0f} m away, further than {MAX_REACH:,.0f} m: was it thrown out by the physics?)"


def plan_world(path: Path) -> World:
    """Parse a Gazebo world and its included models into placed shapes.

    Raises:
        MeshError: It is broken, or no world.
    """
    with reading(path):
        return _Planner(path).plan()


class _Planner:
    """Recursive parser of a Gazebo world and all that it includes."""

    def __init__(self, path: Path) -> None:
        self._world = World(path)
        self._finder = ModelFinder(path)
        self._documents: dict[Path, ET.Element | MeshError] = {}
        self._models = 0

    def plan(self) -> World:
        path = self._world.path
        root = self._read(path)
        element = root.find("world") if root.tag != "world" else root
        if element is None:
            raise MeshError(f"holds no <world>{', but a model: name a world that includes it' if len(root) else ''}")
        saved = element.find("state")
        try:
            state = _saved(saved) if saved is not None else _State()
            self._walk(self._scope(element, path, 0), np.eye(4), state, "")
        except RecursionError:
            raise MeshError("poses are relative to one another in a chain that is too long to follow") from None
        for tag in ("actor", "population"):
            self._world.lost.update(f"<{tag}> {item.get('name', '')}".strip() for item in element.findall(tag))
        self._world.respelled = self._finder.respelled
        del self._world.files[path]
        return self._world

    def _read(self, path: Path) -> ET.Element:
        self._world.files[path] = None
        return read_once(self._documents, path, read_xml)

    def _scope(self, element: ET.Element, file: Path, nesting: int) -> _Model:
        """Parse a <world> or <model> with all models nested in it."""
        self._models += 1
        if nesting > _MAX_NESTING or self._models > _MAX_SHAPES:
            raise MeshError(
                f"models lie more than {_MAX_NESTING} deep in models at {element.get('name')!r} ({file}), or there are "
                f"more than {_MAX_SHAPES}; a model that includes itself has no end"
            )
        scope = _Model(element, file=file, name=element.get("name", ""), kind=_kind(element.get("name", "")))
        scope.pose, scope.placement_frame = element.find("pose"), element.get("placement_frame", "")
        for child in element:
            inner = None
            if child.tag == "model":
                inner = self._scope(child, file, nesting + 1)
            elif child.tag == "include":
                inner = self._include(child, file, nesting + 1)
            if inner is not None:
                scope.inside.append(inner)
                scope.models.setdefault(inner.name, inner)
                if child.tag == "include" and is_true(child.get("merge", "")):
                    scope.merged.append(inner)
        return scope

    def _include(self, include: ET.Element, file: Path, nesting: int) -> _Model | None:
        """Load the model of an <include>; None if it is no model, or is skipped."""
        uri = (include.findtext("uri") or "").strip()
        name = path_below(uri).rpartition("/")[2].lower().replace(" ", "_")
        found = self._finder.find(uri, file)
        if found is None and name == "sun":
            return None
        try:
            if found is not None:
                source = self._description(found)
                if not self._finder.is_confined(source, file):
                    raise MeshError(f"{uri} ({source} is a link that leads out of the folders of models)")
                root = self._read(source)
                model = root.find("model")
                if model is None:
                    if root.find("light") is not None:
                        return None
                    raise MeshError(f"{uri} ({source} holds no <model>)")
            elif name == "ground_plane":
                model, source = ET.fromstring(_GROUND), file
            else:
                raise MeshError(uri or "an <include> without a <uri>")
        except MeshError as error:
            self._world.lost[str(error)] += 1
            return None
        scope = self._scope(model, source, nesting)
        scope.name = (include.findtext("name") or "").strip() or scope.name
        kind = _kind(found.name if found is not None and found.is_dir() and not found.name.isdigit() else scope.kind)
        scope.kind = kind or scope.kind
        if include.find("pose") is not None:
            scope.pose = include.find("pose")
        scope.placement_frame = (include.findtext("placement_frame") or "").strip() or scope.placement_frame
        scope.fixed = has_true_child(include, "static")
        return scope

    def _description(self, found: Path) -> Path:
        """Return the SDF file of a model folder: the newest that its model.config lists."""
        if found.is_file():
            return found
        config = found / "model.config"
        listed: list[tuple[tuple[int, ...], Path]] = []
        # A broken one lists nothing, for instance with a bare & in an author's name.
        with contextlib.suppress(MeshError):
            for item in self._read(config).iter("sdf") if config.is_file() else ():
                version = tuple(int(part) for part in re.findall(r"\d{1,9}", item.get("version", "0")[:_MAX_NAME]))
                file = Path(os.path.normpath(found / (item.text or "").strip()))
                if file.is_relative_to(found) and file.is_file():
                    listed.append((version, file))
        if listed:
            return max(listed)[1]
        if (found / "model.sdf").is_file():
            return found / "model.sdf"
        raise MeshError(f"{found} (it has no model.config that lists an .sdf, and no model.sdf)")

    def _walk(self, scope: _Model, matrix: Float64, state: _State, name: str) -> None:
        """Collect the visible shapes of a world or model and of its nested models."""
        try:
            for link in scope.element.findall("link"):
                stands = state.links.get(link.get("name", ""))
                stands = matrix @ scope.place(link) if stands is None else stands
                for item in _shown(link):
                    self._shape(scope, item, matrix, stands, state.scale)
            known = [state.models.get(model.name, _State()) for model in scope.inside]
            placed = [
                saved.pose if saved.pose is not None else matrix @ scope.locate_model(model)
                for model, saved in zip(scope.inside, known, strict=True)
            ]
        except MeshError as error:
            raise MeshError(f"{error}, in the model {scope.name!r} of {scope.file}" if name else str(error)) from None
        moves = not (scope.fixed or has_true_child(scope.element, "static"))
        if moves and scope.element.find("link/sensor") is not None:
            self._world.robots.append(scope.name)
        for model, saved, stands in zip(scope.inside, known, placed, strict=True):
            self._walk(model, stands, saved, model.name)

    def _shape(
        self,
        scope: _Model,
        item: ET.Element,
        matrix: Float64,
        stands: Float64,
        scale: npt.NDArray[np.float64] | None,
    ) -> None:
        pose = item.find("pose")
        named = (pose.get("relative_to") or pose.get("frame") or "") if pose is not None else ""
        place = matrix @ scope.place(item) if named else stands @ read_pose(pose)
        shape = _drawn(item)
        if shape is None:
            return
        reach = float(np.abs(place[:3, 3]).max())
        if reach > MAX_REACH:
            self._world.lost[too_far(scope.kind or scope.name, reach)] += 1
            return
        mesh = None
        if shape.tag == "mesh":
            uri = (shape.findtext("uri") or "").strip()
            mesh = self._finder.find(uri, scope.file)
            if mesh is None or not mesh.is_file():
                self._world.lost[uri or f"a <mesh> without a <uri> in {scope.file}"] += 1
                return
            if not mesh.name.lower().endswith(_MESHES):
                self._world.lost[f"{uri} (a mesh type that is not read; read are {', '.join(_MESHES)})"] += 1
                return
            self._world.files[mesh] = None
        elif shape.tag not in SHAPES:
            self._world.lost[f"<{shape.tag}> of {scope.name}"] += 1
            return
        elif len(item.findall("geometry/polyline")) > 1:
            self._world.lost[f"<polyline> with holes of {scope.name}"] += 1
            return
        if len(self._world.shapes) >= _MAX_SHAPES:
            raise MeshError(f"places more than {_MAX_SHAPES} shapes; split the world")
        self._world.shapes.append(WorldShape(shape, mesh, place, scope.kind, scale))


@dataclass
class _Model(Scope):
    """SDF model, or the world itself, with its source file."""

    file: Path = Path()
    name: str = ""
    kind: str = ""
    fixed: bool = False
    inside: list[_Model] = field(default_factory=list)
    """The models in it, in their order; two may have one name."""


@dataclass
class _State:
    """Saved simulation state of a model: poses in the world frame, also for nested models."""

    pose: Float64 | None = None
    scale: npt.NDArray[np.float64] | None = None
    links: dict[str, Float64] = field(default_factory=dict)
    models: dict[str, _State] = field(default_factory=dict)


def _saved(element: ET.Element) -> _State:
    """Parse the saved state of a <state> element or of a <model> in it."""
    pose = element.find("pose")
    # Of meshes alone: Gazebo writes the scaled size of a simple shape into the shape.
    scale = numbers(element.find("scale"), 3, (1, 1, 1))
    return _State(
        read_pose(pose) if pose is not None else None,
        scale if (scale != 1).any() else None,
        {link.get("name", ""): read_pose(link.find("pose")) for link in element.findall("link")},
        {model.get("name", ""): _saved(model) for model in element.findall("model")},
    )


def _shown(link: ET.Element) -> list[ET.Element]:
    """Return the visible <visual> elements of a link; if there are none, its <collision> elements, as obstacles."""
    seen = [
        item
        for item in link.findall("visual")
        if _drawn(item) is not None and float(numbers(item.find("transparency"), 1, (0,))[0]) < 1
    ]
    return seen or link.findall("collision")


def _drawn(item: ET.Element) -> ET.Element | None:
    """Return the shape element of a <visual> or <collision>; None if it has none or is <empty>."""
    return next((shape for shape in item.iterfind("geometry/*") if shape.tag != "empty"), None)


def _kind(name: str) -> str:
    """Return a model's name without its instance suffix: `book_12` and `book_clone` become `book`."""
    kind, before = name[:_MAX_NAME], ""
    while kind != before:
        before = kind
        kind = kind.rstrip("0123456789()").rstrip("_- ")
        if kind.lower().endswith(_COPIES):
            kind = kind[: -len(next(copy for copy in _COPIES if kind.lower().endswith(copy)))]
    return kind or name[:_MAX_NAME]
