"""The simple shapes of SDF as triangles: box, cylinder, cone, capsule, sphere, ellipsoid, plane, polyline."""

import xml.etree.ElementTree as ET

import numpy as np
import numpy.typing as npt

from navi_core.errors import MeshError
from navi_core.scenes.readers.gazebo.poses import numbers
from navi_core.scenes.readers.part import triangulate

Surface = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]

_AROUND = 32
"""Sides of what is round."""
_MAX_POINTS = 4096
"""Corners of a polyline's outline."""
SHAPES = ("box", "capsule", "cone", "cylinder", "ellipsoid", "plane", "polyline", "sphere")
"""Tags that `shape_triangles` knows."""


def shape_triangles(shape: ET.Element) -> Surface:
    """Return points (V, 3) [m] and triangles (F, 3) of a simple shape, around its own origin.

    What is round has 32 sides, its corners on the true surface.

    Raises:
        MeshError: A size is missing or impossible.
    """
    if shape.tag == "polyline":
        return _polyline(shape)
    if shape.tag == "plane":
        return plane_corners(shape), np.array([[0, 1, 2], [0, 2, 3]])
    if shape.tag == "box":
        return _box(_sizes(shape.find("size"), 3) / 2)
    if shape.tag == "ellipsoid":
        points, faces = _turned(*_half_circle(0.0))
        return points * _sizes(shape.find("radii"), 3), faces
    radius = float(_sizes(shape.find("radius"), 1)[0])
    if shape.tag == "sphere":
        points, faces = _turned(*_half_circle(0.0))
        return points * radius, faces
    half = float(_sizes(shape.find("length"), 1)[0]) / 2
    if shape.tag == "capsule":
        return _turned(*(line * radius for line in _half_circle(half / radius)))
    top = 0.0 if shape.tag == "cone" else radius
    return _turned(np.array([0.0, radius, top, 0.0]), np.array([-half, -half, half, half]))


def plane_corners(shape: ET.Element) -> npt.NDArray[np.float64]:
    """Return the corners (4, 3) [m] of the piece of a plane that is drawn.

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
    """Return radii and heights from pole to pole of a unit sphere that is cut in two and drawn apart by 2 · `half`."""
    angle = np.linspace(-np.pi / 2, np.pi / 2, _AROUND // 2 + 1)
    radii, heights = np.cos(angle), np.sin(angle)
    radii[[0, -1]] = 0.0
    if half:
        middle = _AROUND // 4
        radii = np.insert(radii, middle, 1.0)
        heights = np.concatenate([heights[: middle + 1] - half, heights[middle:] + half])
    return radii, heights


def _turned(radii: npt.NDArray[np.float64], heights: npt.NDArray[np.float64]) -> Surface:
    """Return the surface of a line (radius, height) from pole to pole that is turned about z."""
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
    """Return the prism over an outline in x and y, from z = 0 up."""
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
