"""Reader of Gazebo worlds (`X.world`, or an `.sdf` with a <world>) as meshes of their visible parts.

Parts that cannot be placed are left out with a warning; a world with hardly any part left is refused.
A world is in metres with +Z up. As in Gazebo, the unit of a COLLADA mesh counts and its up axis does not.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.scenes.readers.gazebo.files import VARIABLES
from navi_core.scenes.readers.gazebo.plan import MAX_REACH, World, WorldShape, has_true_child, plan_world, too_far
from navi_core.scenes.readers.gazebo.poses import numbers, shape_triangles
from navi_core.scenes.readers.part import MAX_TRIANGLES, Float64, Part, read_once

_LEVEL = 0.99
"""Cosine of the angle to the vertical from which on a plane's normal is that of a ground."""
_LEAST = 0.1
"""Share of the placed things that must be there: a hospital without its chairs is one, a lone ground plane is not."""
_LISTED = 20
"""Names that a message lists."""
_log = logging.getLogger(__name__)


def read_world(path: Path, read: Callable[[Path], list[Part]]) -> list[Part]:
    """Read a Gazebo world: the placed parts of all visible shapes, in metres with +Z up.

    A part is named by its model (`book_12` is a book), then by its mesh.

    Args:
        path: The file.
        read: Reads a mesh file, in its own axes.

    Raises:
        MeshError: The world is broken, or hardly anything of it can be placed.
    """
    world = plan_world(path)
    meshes: dict[Path, list[Part] | MeshError] = {}
    parts: list[Part] = []
    grounds: list[WorldShape] = []
    kept = total = 0
    for shape in world.shapes:
        try:
            if shape.geometry.tag == "plane" and _lies(shape):
                grounds.append(shape)
                continue
            found = _parts(shape, meshes, read)
        except MeshError as error:
            world.lost[str(error)] += 1
            continue
        # Vertices that no face uses take memory, too.
        total += sum(max(len(part.faces), len(part.points) // 3) for part in found)
        if total > MAX_TRIANGLES:
            raise MeshError(f"its models have more than {MAX_TRIANGLES} triangles; split the world")
        placed = [replace(part, points=_moved(part.points, shape.matrix)) for part in found]
        reach = max((float(np.abs(part.points).max(initial=0)) for part in placed), default=0.0)
        if reach <= MAX_REACH:
            parts += placed
            kept += 1
        elif np.isfinite(reach):
            world.lost[too_far(shape.kind, reach)] += 1
        else:
            raise MeshError(f"a mesh of {shape.kind} is placed where there are no numbers")
    _judge(world, kept)
    parts += [part for shape in grounds for part in _ground(shape, parts)]
    _warn(world)
    return parts


def _parts(
    shape: WorldShape, meshes: dict[Path, list[Part] | MeshError], read: Callable[[Path], list[Part]]
) -> list[Part]:
    """Load one shape's mesh or tessellate it; return its mesh parts in the local frame."""
    if shape.mesh is None:
        points, faces = shape_triangles(shape.geometry)
        return [Part(points, faces, (shape.kind,))]

    def surfaces(mesh: Path) -> list[Part]:
        found = [part for part in read(mesh) if len(part.faces)]
        if not found:
            raise MeshError(f"{mesh}: holds no triangles")
        return found

    found = read_once(meshes, shape.mesh, surfaces)
    scale = shape.scale if shape.scale is not None else numbers(shape.geometry.find("scale"), 3, (1, 1, 1))
    parts = [replace(part, points=part.points * scale, objects=(shape.kind, *part.objects)) for part in found]
    submesh = shape.geometry.find("submesh")
    if submesh is not None:
        name = (submesh.findtext("name") or "").strip()
        parts = [part for part in parts if name in part.objects[1:]]
        if not parts:
            raise MeshError(f"{shape.mesh} has no submesh {name!r:.60}")
        if has_true_child(submesh, "center"):
            corners = np.concatenate([part.points for part in parts])
            middle = (corners.min(axis=0) + corners.max(axis=0)) / 2
            parts = [replace(part, points=part.points - middle) for part in parts]
    return parts


def _moved(points: npt.NDArray[np.float64], matrix: Float64) -> npt.NDArray[np.float64]:
    return points @ matrix[:3, :3].T + matrix[:3, 3]


def _lies(shape: WorldShape) -> bool:
    """Return whether a plane is horizontal: a floor or the ground."""
    a, b, c, _ = _moved(shape_triangles(shape.geometry)[0], shape.matrix)
    normal = np.cross(b - a, c - a)
    return bool(abs(normal[2]) > _LEVEL * np.linalg.norm(normal))


def _ground(shape: WorldShape, others: list[Part]) -> list[Part]:
    """Return a ground plane, clipped to the extent of all other parts; Gazebo's planes are infinite.

    A strip of ground outside the walls would count as reachable floor, and could exceed the rooms' area.
    """
    corners = cut = _moved(shape_triangles(shape.geometry)[0], shape.matrix)
    bounds = np.array([[part.points.min(axis=0), part.points.max(axis=0)] for part in others])
    low, high = bounds[:, 0].min(axis=0), bounds[:, 1].max(axis=0)
    for axis in (0, 1):
        for side, limit in ((1.0, low[axis]), (-1.0, -high[axis])):
            cut = _cut(cut, side * cut[:, axis] - limit)
    # One that lies apart from everything is no ground.
    points = cut if len(cut) >= 3 else corners
    fan = np.arange(1, len(points) - 1)
    return [Part(points, np.stack([np.zeros_like(fan), fan, fan + 1], axis=1), (shape.kind,))]


def _cut(points: npt.NDArray[np.float64], inside: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Clip a convex polygon (N, 3) to the half-plane where a linear function, given at its corners, is ≥ 0."""
    out = []
    for a, b, f, g in zip(points, np.roll(points, -1, axis=0), inside, np.roll(inside, -1), strict=True):
        if f >= 0:
            out.append(a)
        if (f < 0) != (g < 0):
            out.append(a + (b - a) * (f / (f - g)))
    return np.array(out).reshape(-1, 3)


def _judge(world: World, kept: int) -> None:
    """Validate a parsed world: raise `MeshError` if too few of its shapes could be placed."""
    lost = sum(world.lost.values())
    if not kept and not lost:
        raise MeshError("shows nothing but ground planes; name a world that holds something")
    if kept < _LEAST * (kept + lost):
        raise MeshError(f"{lost} of {lost + kept} things in it cannot be placed: {_names(world.lost)}{_advice(world)}")


def _advice(world: World) -> str:
    return (
        f"; put what is missing into a folder 'models' beside the world's, or name its folder in {VARIABLES[2]}"
        if any("://" in name for name in world.lost)
        else ""
    )


def _names(found: Counter[str]) -> str:
    few = list(found.items())[:_LISTED]
    shown = [f"{name:.300} ({count}×)" if count > 1 else f"{name:.300}" for name, count in few]
    return ", ".join(shown) + (f" and {len(found) - _LISTED} more" if len(found) > _LISTED else "")


def _warn(world: World) -> None:
    if world.lost:
        _log.warning(
            "%s: left out of the scene (%d), as they cannot be placed: %s%s",
            world.path,
            sum(world.lost.values()),
            _names(world.lost),
            _advice(world),
        )
    if world.robots:
        names = _names(Counter(world.robots))
        _log.warning("%s: carry sensors and stand in the scene like furniture: %s; remove robots", world.path, names)
    if world.respelled:
        names = ", ".join(f"{a} is {b}" for a, b in list(world.respelled.items())[:3])
        _log.warning("%s: found under other capitals than named (%d): %s", world.path, len(world.respelled), names)
