"""SDF geometry: poses, the frames that they are relative to (SDF 1.4 to 1.11), tessellation of simple shapes.

Semantics follow the specification's "Pose frame semantics": a pose is relative to the model or link it lies in, unless
`relative_to` (`frame` before SDF 1.7) names another frame of that model, or of a model in it as `model::frame`.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.scenes.readers.part import Float64, rotation_matrix, triangulate


def is_true(text: str) -> bool:
    """Parse an SDF boolean."""
    return text.strip().lower() in ("1", "true")


def numbers(
    element: ET.Element | None, count: int, default: tuple[float, ...] | None = None
) -> npt.NDArray[np.float64]:
    """Parse the numbers in an XML element's text.

    Args:
        element: The element; None or one without text stands for the default.
        count: How many are wanted.
        default: What counts where there are none; None where they must be there.

    Raises:
        MeshError: They are missing, others than wanted, or not finite.
    """
    text = (element.text or "").strip() if element is not None else ""
    if not text and default is not None:
        return np.array(default, float)
    try:
        values = np.array([float(word) for word in text.split()])
    except ValueError:
        values = np.zeros(0)
    if len(values) != count or not np.isfinite(values).all():
        name = "a number" if element is None else f"<{element.tag}>"
        raise MeshError(f"{name} is {text!r:.60}, not {count} numbers")
    return values


def read_pose(element: ET.Element | None) -> Float64:
    """Parse a <pose> into a matrix (4, 4): x y z roll pitch yaw, or x y z and a quaternion; identity if absent.

    Raises:
        MeshError: It cannot be read.
    """
    out = np.eye(4)
    if element is None:
        return out
    match element.get("rotation_format", "euler_rpy"):
        case "quat_xyzw":
            values = numbers(element, 7, (0, 0, 0, 0, 0, 0, 1))
            length = float(np.linalg.norm(values[3:]))
            if length == 0:
                raise MeshError("<pose> has the quaternion 0 0 0 0, which is no rotation")
            out[:3, :3] = rotation_matrix(*(values[3:] / length))
        case "euler_rpy":
            values = numbers(element, 6, (0,) * 6)
            turn = np.deg2rad(values[3:]) if is_true(element.get("degrees", "")) else values[3:]
            (cr, cp, cy), (sr, sp, sy) = ([f(float(angle)) for angle in turn] for f in (math.cos, math.sin))
            # First about x, then y, then z, all of them fixed.
            out[:3, :3] = [
                [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
                [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
                [-sp, cp * sr, cp * cr],
            ]
        case other:
            raise MeshError(f"<pose> has the rotation_format {other!r:.40}; read are euler_rpy and quat_xyzw")
    out[:3, 3] = values[:3]
    return out


def inverse(matrix: Float64) -> Float64:
    """Return the inverse of a rigid transform (4, 4)."""
    out = np.eye(4)
    out[:3, :3] = matrix[:3, :3].T
    out[:3, 3] = -matrix[:3, :3].T @ matrix[:3, 3]
    return out


@dataclass
class Scope:
    """Frame scope of an SDF world or model: the names that poses in it may be relative to."""

    element: ET.Element
    """The <world> or <model>."""
    pose: ET.Element | None = None
    """Its own pose: the one of the <include> where that has one."""
    placement_frame: str = ""
    """The frame of the model that stands at its pose; empty for the model's own."""
    models: dict[str, Scope] = field(default_factory=dict)
    """Models in it, by name."""
    merged: list[Scope] = field(default_factory=list)
    """Those whose frames are also this one's own: included with `merge` (from SDF 1.9)."""
    located: dict[str, Float64] = field(default_factory=dict)
    """Where frames stand that were asked for."""

    def locate(self, name: str, asked: tuple[str, ...] = ()) -> Float64:
        """Return the pose matrix (4, 4) of a named frame, link, joint or model in this scope.

        Raises:
            MeshError: There is none of that name, or it is relative to itself.
        """
        if name in ("", "__model__", "__root__") or (name == "world" and self.element.tag == "world"):
            return np.eye(4)
        if name in asked:
            raise MeshError(f"the frame {name!r} is relative to itself: {' → '.join((*asked, name))}")
        if name not in self.located:
            self.located[name] = self._locate(name, (*asked, name))
        return self.located[name]

    def _locate(self, name: str, asked: tuple[str, ...]) -> Float64:
        head, nested, rest = name.partition("::")
        if head in self.models:
            model = self.models[head]
            stands = self.locate_model(model, asked)
            return stands @ model.locate(rest) if nested else stands
        if (child := self._named.get(name)) is not None:
            base = child.get("attached_to", "") if child.tag == "frame" else ""
            base = (child.findtext("child") or "").strip() if child.tag == "joint" else base
            return self._stand(child.find("pose"), base, asked)
        for model in self.merged:
            if model.holds(head):
                return self.locate_model(model, asked) @ model.locate(name)
        raise MeshError(f"a pose is relative to {name!r:.60}, which is no frame, link, joint or model there")

    @cached_property
    def _named(self) -> dict[str, ET.Element]:
        """Frames, links and joints by name; the first wins."""
        children = (child for child in reversed(list(self.element)) if child.tag in ("frame", "link", "joint"))
        return {child.get("name", ""): child for child in children}

    def holds(self, name: str) -> bool:
        """Return whether a frame, link, joint or model of this name is in scope."""
        return name in self._named or name in self.models or any(model.holds(name) for model in self.merged)

    def locate_model(self, model: Scope, asked: tuple[str, ...] = ()) -> Float64:
        """Return the pose matrix (4, 4) of a nested model in this scope."""
        return self._stand(model.pose, "", asked) @ inverse(model.locate(model.placement_frame))

    def place(self, element: ET.Element, base: str = "") -> Float64:
        """Return the pose matrix (4, 4) of a link, or of a visual of the link `base`, in this scope.

        Raises:
            MeshError: Its pose cannot be read.
        """
        return self._stand(element.find("pose"), base, ())

    def _stand(self, pose: ET.Element | None, base: str, asked: tuple[str, ...]) -> Float64:
        # Before SDF 1.7 the attribute was called `frame`; Gazebo writes it empty into every pose.
        named = (pose.get("relative_to") or pose.get("frame") or "") if pose is not None else ""
        return self.locate(named or base, asked) @ read_pose(pose)


Surface = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]

_AROUND = 32
"""Sides of what is round."""
_MAX_POINTS = 4096
"""Corners of a polyline's outline."""
SHAPES = ("box", "capsule", "cone", "cylinder", "ellipsoid", "plane", "polyline", "sphere")
"""Tags that `shape_triangles` knows."""


def shape_triangles(shape: ET.Element) -> Surface:
    """Tessellate a simple shape: points (V, 3) [m] and triangles (F, 3) around its own origin.

    Round shapes have 32 sides, with their vertices on the true surface.

    Raises:
        MeshError: A size is missing or impossible.
    """
    match shape.tag:
        case "polyline":
            return _polyline(shape)
        case "plane":
            return plane_corners(shape), np.array([[0, 1, 2], [0, 2, 3]])
        case "box":
            return _box(_sizes(shape.find("size"), 3) / 2)
        case "sphere" | "ellipsoid":
            radii = _sizes(shape.find("radius"), 1) if shape.tag == "sphere" else _sizes(shape.find("radii"), 3)
            points, faces = _turned(*_half_circle(0.0))
            return points * radii, faces
    radius, half = float(_sizes(shape.find("radius"), 1)[0]), float(_sizes(shape.find("length"), 1)[0]) / 2
    if shape.tag == "capsule":
        return _turned(*(line * radius for line in _half_circle(half / radius)))
    top = 0.0 if shape.tag == "cone" else radius
    return _turned(np.array([0.0, radius, top, 0.0]), np.array([-half, -half, half, half]))


def plane_corners(shape: ET.Element) -> npt.NDArray[np.float64]:
    """Return the corners (4, 3) [m] of the drawn rectangle of a plane.

    Raises:
        MeshError: Its size or normal is impossible.
    """
    x, y = _sizes(shape.find("size"), 2, (1, 1)) / 2
    normal = numbers(shape.find("normal"), 3, (0, 0, 1))
    length = float(np.linalg.norm(normal))
    if length == 0:
        raise MeshError("<normal> is 0 0 0, which is no direction")
    normal = normal / length
    # The shortest turn that takes +Z there (Rodrigues' formula); half a turn about x where that is opposite.
    a, b, c = -normal[1], normal[0], 0.0
    cross = np.array([[0, -c, b], [c, 0, -a], [-b, a, 0]])
    turn = np.diag([1.0, -1.0, -1.0])
    if normal[2] > -1 + 1e-12:
        turn = np.eye(3) + cross + cross @ cross / (1 + normal[2])
    return np.array([[-x, -y, 0], [x, -y, 0], [x, y, 0], [-x, y, 0]]) @ turn.T


def _sizes(element: ET.Element | None, count: int, default: tuple[float, ...] | None = None) -> npt.NDArray[np.float64]:
    values = numbers(element, count, default)
    if not (values > 0).all():
        name = element.tag if element is not None else "size"
        raise MeshError(f"<{name}> is {values.tolist()}, which is no size")
    return values


def _box(half: npt.NDArray[np.float64]) -> Surface:
    points = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float) * half
    sides = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
    return points, np.array([[a, b, c] for a, b, c, _ in sides] + [[a, c, d] for a, _, c, d in sides])


def _half_circle(half: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the profile (radii, heights) from pole to pole of a unit sphere, or of a capsule 2 · `half` longer."""
    angle = np.linspace(-np.pi / 2, np.pi / 2, _AROUND // 2 + 1)
    radii, heights = np.cos(angle), np.sin(angle)
    radii[[0, -1]] = 0.0
    if half:
        middle = _AROUND // 4
        radii = np.insert(radii, middle, 1.0)
        heights = np.concatenate([heights[: middle + 1] - half, heights[middle:] + half])
    return radii, heights


def _turned(radii: npt.NDArray[np.float64], heights: npt.NDArray[np.float64]) -> Surface:
    """Return the surface of revolution about z of a profile (radius, height) from pole to pole."""
    angle = 2 * np.pi * np.arange(_AROUND) / _AROUND
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points = np.concatenate(
        [
            np.concatenate([ring * radius, np.full((_AROUND, 1), height)], axis=1)
            for radius, height in zip(radii, heights, strict=True)
        ]
    )
    faces = []
    next_one = (np.arange(_AROUND) + 1) % _AROUND
    for row in range(len(radii) - 1):
        low, high = row * _AROUND + np.arange(_AROUND), (row + 1) * _AROUND + np.arange(_AROUND)
        if radii[row] > 0:
            faces.append(np.stack([low, low[next_one], high[next_one]], axis=1))
        if radii[row + 1] > 0:
            faces.append(np.stack([low, high[next_one], high], axis=1))
    return points, np.concatenate(faces)


def _polyline(shape: ET.Element) -> Surface:
    """Extrude a polyline outline in x and y into a prism, from z = 0 up."""
    height = float(_sizes(shape.find("height"), 1)[0])
    outline = np.array([numbers(point, 2) for point in shape.findall("point")]).reshape(-1, 2)
    if len(outline) > 1 and (outline[0] == outline[-1]).all():
        outline = outline[:-1]
    count = len(outline)
    if not 3 <= count <= _MAX_POINTS:
        raise MeshError(f"<polyline> has {count} points; 3 to {_MAX_POINTS} make an outline")
    points = np.concatenate([np.insert(outline, 2, z, axis=1) for z in (0.0, height)])
    low = np.arange(count)
    high, turn = low + count, np.roll(low, -1)
    caps, _ = triangulate(points, np.concatenate([low[::-1], high]), np.array([count, count]))
    sides = np.concatenate([np.stack([low, turn, turn + count], 1), np.stack([low, turn + count, high], 1)])
    return points, np.concatenate([caps, sides])
