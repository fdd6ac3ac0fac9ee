"""Mesh builder of the procedural generators: solid boxes and prisms with semantic names, no inner voids."""

import math
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from navi_core.scenes.mesh import Mesh, mesh_from_arrays
from navi_core.scenes.naming import build_vocabulary

FILL_SPACING = 0.25
"""Largest distance between sheets inside a solid [m]: clearance stays under a 0.15 m drone radius."""

# Corners are numbered x | y<<1 | z<<2; each face is wound counter-clockwise seen from outside.
_BOX_CORNERS = np.array([[k & 1, k >> 1 & 1, k >> 2 & 1] for k in range(8)])
_BOX_FACES = np.array(
    [
        [0, 4, 6], [0, 6, 2], [1, 3, 7], [1, 7, 5],
        [0, 1, 5], [0, 5, 4], [2, 6, 7], [2, 7, 3],
        [0, 2, 3], [0, 3, 1], [4, 5, 7], [4, 7, 6],
    ]
)  # fmt: skip


class MeshBuilder:
    """Mesh builder: collects named solids and merges them into one `Mesh`."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, npt.NDArray[np.float64], npt.NDArray[np.int64]]] = []
        """What was added, as `add` takes it: name, vertices (V, 3) [m] and faces (F, 3)."""

    def add(self, name: str, vertices: npt.ArrayLike, faces: npt.ArrayLike) -> None:
        """Add a triangle mesh: vertices (V, 3) [m], faces (F, 3) local indices, all of semantic name `name`."""
        self.parts.append((name, np.asarray(vertices, dtype=np.float64), np.asarray(faces, dtype=np.int64)))

    def box(
        self,
        name: str,
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
        *,
        yaw: float = 0.0,
        pivot: tuple[float, float] | None = None,
    ) -> None:
        """Add a solid axis-aligned box, optionally rotated about a vertical axis.

        Boxes thicker than `FILL_SPACING` get sheets inside, because enclosed space counts as free
        space: without them a drone could be placed inside a wardrobe.

        Args:
            name: Semantic name.
            lower: Minimum corner (3,) [m].
            upper: Maximum corner (3,) [m].
            yaw: Counter-clockwise turn seen from above [rad].
            pivot: (x, z) of the turning axis [m]; the box centre when left out.
        """
        low = np.asarray(lower, dtype=np.float64)
        high = np.asarray(upper, dtype=np.float64)
        self.add(name, self._turn(low + _BOX_CORNERS * (high - low), low, high, yaw, pivot), _BOX_FACES)
        size = high - low
        axis = int(np.argmin(size))
        sheets = math.ceil(size[axis] / FILL_SPACING) - 1
        # The sheets end short of the faces so that no edge lies in the visible surface.
        inset = np.full(3, 0.004)
        inset[axis] = 0.0
        others = [a for a in range(3) if a != axis]
        for k in range(1, sheets + 1):
            quad = np.repeat((low + inset)[None], 4, axis=0)
            quad[:, axis] = low[axis] + size[axis] * k / (sheets + 1)
            quad[[1, 2], others[0]] = (high - inset)[others[0]]
            quad[[2, 3], others[1]] = (high - inset)[others[1]]
            self.add(name, self._turn(quad, low, high, yaw, pivot), [[0, 1, 2], [0, 2, 3]])

    def beam(
        self, name: str, axis: int, across: Sequence[float], along: Sequence[float], heights: Sequence[float]
    ) -> None:
        """Add a box along a wall line x = c (axis 0) or z = c (axis 1).

        Args:
            name: Semantic name.
            axis: Of the line.
            across: Least and greatest coordinate on that axis [m].
            along: The same along the line [m].
            heights: Bottom and top [m].
        """
        (x0, x1), (z0, z1) = (across, along) if axis == 0 else (along, across)
        self.box(name, (x0, heights[0], z0), (x1, heights[1], z1))

    def prism(
        self,
        name: str,
        center: tuple[float, float],
        radii: tuple[float, float],
        heights: tuple[float, float],
        sides: int = 8,
        turn: float = 0.0,
    ) -> None:
        """Add a closed frustum with a regular polygonal base: pillars, pots, crowns of plants.

        Args:
            name: Semantic name.
            center: (x, z) of its axis [m].
            radii: Radius at the bottom and at the top [m].
            heights: Bottom and top [m].
            sides: Corners of the base.
            turn: Turn of the base [rad].
        """
        angle = turn + 2 * math.pi * np.arange(sides) / sides
        ring = np.stack([np.cos(angle), np.zeros(sides), -np.sin(angle)], axis=1)
        axis = np.array([center[0], 0.0, center[1]])
        vertices = [
            *(ring * r + axis + np.array([0.0, height, 0.0]) for r, height in zip(radii, heights, strict=True)),
            np.array([[center[0], heights[0], center[1]], [center[0], heights[1], center[1]]]),
        ]
        i = np.arange(sides)
        j = (i + 1) % sides
        bottom, top = np.full(sides, 2 * sides), np.full(sides, 2 * sides + 1)
        faces = np.concatenate(
            [
                np.stack([i, j, j + sides], axis=1),
                np.stack([i, j + sides, i + sides], axis=1),
                np.stack([bottom, j, i], axis=1),
                np.stack([top, i + sides, j + sides], axis=1),
            ]
        )
        self.add(name, np.concatenate(vertices), faces)
        # A cross of sheets inside, for the same reason as in `box`.
        if max(radii) > FILL_SPACING / 2:
            for offset in np.arange(-max(radii) + FILL_SPACING, max(radii), FILL_SPACING):
                half = [math.sqrt(max(4e-4, (0.9 * r) ** 2 - offset**2)) for r in radii]
                if max(half) > 0.03:
                    x, (y0, y1) = center[0] + offset, heights
                    quad = [
                        (x, y0 + 0.004, center[1] - half[0]),
                        (x, y0 + 0.004, center[1] + half[0]),
                        (x, y1 - 0.004, center[1] + half[1]),
                        (x, y1 - 0.004, center[1] - half[1]),
                    ]
                    self.add(name, quad, [[0, 1, 2], [0, 2, 3]])

    def wedge(self, name: str, corners: Sequence[tuple[float, float]], heights: tuple[float, float]) -> None:
        """Add a solid triangular prism, with sheets inside as in `box`.

        Args:
            name: Semantic name.
            corners: Three (x, z), counter-clockwise seen from above [m].
            heights: Bottom and top [m].
        """
        flat = np.array([(x, 0.0, z) for x, z in corners])
        rings = [flat + np.array([0.0, height, 0.0]) for height in heights]
        sides = [[0, 1, 4], [0, 4, 3], [1, 2, 5], [1, 5, 4], [2, 0, 3], [2, 3, 5]]
        self.add(name, np.concatenate(rings), [[0, 2, 1], [3, 4, 5], *sides])
        inner = flat + 0.02 * (flat.mean(axis=0) - flat)
        for height in np.linspace(*heights, max(2, math.ceil((heights[1] - heights[0]) / FILL_SPACING) + 1))[1:-1]:
            self.add(name, inner + np.array([0.0, height, 0.0]), [[0, 1, 2]])

    def raised(self, height: float) -> Self:
        """Raise everything added so far [m]; return the builder."""
        self.parts = [(name, points + np.array([0.0, height, 0.0]), faces) for name, points, faces in self.parts]
        return self

    def turned(self, yaw: float) -> Self:
        """Turn everything added so far about the vertical axis through the origin [rad]; return the builder."""
        origin = np.zeros(3)
        self.parts = [
            (name, self._turn(points, origin, origin, yaw, None), faces) for name, points, faces in self.parts
        ]
        return self

    def build(self, name: str) -> Mesh:
        """Build the mesh of all added solids; semantic ids follow the sorted names."""
        names, vertices, faces = zip(*self.parts, strict=True)
        vocabulary = build_vocabulary(names)
        ids = {semantic: i for i, semantic in vocabulary.items()}
        semantic = np.repeat(np.array([ids[key] for key in names], np.int32), [len(part) for part in faces])
        shift = np.cumsum([0, *(len(part) for part in vertices)])
        corners = np.concatenate([part + first for part, first in zip(faces, shift, strict=False)])
        return mesh_from_arrays(name, np.concatenate(vertices), corners, semantic, vocabulary)

    @staticmethod
    def _turn(
        points: npt.NDArray[np.float64],
        low: npt.NDArray[np.float64],
        high: npt.NDArray[np.float64],
        yaw: float,
        pivot: tuple[float, float] | None,
    ) -> npt.NDArray[np.float64]:
        if yaw == 0.0:
            return points
        cx, cz = pivot if pivot is not None else ((low[0] + high[0]) / 2, (low[2] + high[2]) / 2)
        c, s = math.cos(yaw), math.sin(yaw)
        x, z = points[:, 0] - cx, points[:, 2] - cz
        return np.stack([cx + c * x + s * z, points[:, 1], cz - s * x + c * z], axis=1)
