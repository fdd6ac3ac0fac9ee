"""SDF poses and the frames that they are relative to (SDF 1.4 to 1.11).

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

Matrix = npt.NDArray[np.float64]


def is_true(text: str) -> bool:
    """Return whether a text means true."""
    return text.strip().lower() in ("1", "true")


def numbers(
    element: ET.Element | None, count: int, default: tuple[float, ...] | None = None
) -> npt.NDArray[np.float64]:
    """Return the numbers that an element holds.

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


def read_pose(element: ET.Element | None) -> Matrix:
    """Return the matrix (4, 4) of a <pose>: x y z roll pitch yaw, or x y z and a quaternion; identity for none.

    Raises:
        MeshError: It cannot be read.
    """
    out = np.eye(4)
    if element is None:
        return out
    rotation = element.get("rotation_format", "euler_rpy")
    if rotation not in ("euler_rpy", "quat_xyzw"):
        raise MeshError(f"<pose> has the rotation_format {rotation!r:.40}; read are euler_rpy and quat_xyzw")
    if rotation == "quat_xyzw":
        values = numbers(element, 7, (0, 0, 0, 0, 0, 0, 1))
        length = float(np.linalg.norm(values[3:]))
        if length == 0:
            raise MeshError("<pose> has the quaternion 0 0 0 0, which is no rotation")
        x, y, z, w = values[3:] / length
        out[:3, :3] = [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    else:
        values = numbers(element, 6, (0,) * 6)
        turn = np.deg2rad(values[3:]) if is_true(element.get("degrees", "")) else values[3:]
        (cr, cp, cy), (sr, sp, sy) = ([f(float(angle)) for angle in turn] for f in (math.cos, math.sin))
        # First about x, then y, then z, all of them fixed.
        out[:3, :3] = [
            [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
            [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
            [-sp, cp * sr, cp * cr],
        ]
    out[:3, 3] = values[:3]
    return out


def inverse(matrix: Matrix) -> Matrix:
    """Return the inverse of a placement without scale."""
    out = np.eye(4)
    out[:3, :3] = matrix[:3, :3].T
    out[:3, 3] = -matrix[:3, :3].T @ matrix[:3, 3]
    return out


@dataclass
class Scope:
    """A world or a model: the names that poses in it may be relative to."""

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
    located: dict[str, Matrix] = field(default_factory=dict)
    """Where frames stand that were asked for."""

    def locate(self, name: str, asked: tuple[str, ...] = ()) -> Matrix:
        """Return where a frame, link, joint or model stands in this scope.

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

    def _locate(self, name: str, asked: tuple[str, ...]) -> Matrix:
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
        """Frames, links and joints; the first of a name."""
        children = (child for child in reversed(list(self.element)) if child.tag in ("frame", "link", "joint"))
        return {child.get("name", ""): child for child in children}

    def holds(self, name: str) -> bool:
        """Return whether a frame, link, joint or model of this name is in scope."""
        return name in self._named or name in self.models or any(model.holds(name) for model in self.merged)

    def locate_model(self, model: Scope, asked: tuple[str, ...] = ()) -> Matrix:
        """Return where a model in this one stands."""
        return self._stand(model.pose, "", asked) @ inverse(model.locate(model.placement_frame))

    def place(self, element: ET.Element, base: str = "") -> Matrix:
        """Return where a link, or a visual of the link `base`, stands in this scope.

        Raises:
            MeshError: Its pose cannot be read.
        """
        return self._stand(element.find("pose"), base, ())

    def _stand(self, pose: ET.Element | None, base: str, asked: tuple[str, ...]) -> Matrix:
        # Before SDF 1.7 the attribute was called `frame`; Gazebo writes it empty into every pose.
        named = (pose.get("relative_to") or pose.get("frame") or "") if pose is not None else ""
        return self.locate(named or base, asked) @ read_pose(pose)
