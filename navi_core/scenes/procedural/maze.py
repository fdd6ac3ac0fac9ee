"""Family `maze`: a recursive-backtracker maze with a few loops, 12–20 m on a side."""

import numpy as np
import numpy.typing as npt

from navi_core.scenes.procedural.builder import MeshBuilder
from navi_core.scenes.procedural.furniture import CATALOGUE
from navi_core.scenes.procedural.structure import Rect, add_shell, add_wall_line

CEILING = 2.6
"""Height of the ceiling [m]."""


def build_maze(rng: np.random.Generator) -> MeshBuilder:
    """Build a maze: corridors of at least 1.5 m between walls, loops, chambers and stray crates."""
    thickness = round(rng.uniform(0.1, 0.2), 3)
    width, depth = rng.uniform(12, 20, 2).round(2)
    pitch = rng.uniform(1.75 + thickness, 2.6)
    nx, nz = max(4, int(width / pitch)), max(4, int(depth / pitch))
    dx, dz = width / nx, depth / nz
    # wall_x[i, j]: wall between cells (i, j) and (i + 1, j); wall_z[i, j]: between (i, j) and (i, j + 1).
    wall_x, wall_z = _carve(rng, nx, nz)
    loops = rng.uniform(0.05, 0.25)
    wall_x &= rng.random(wall_x.shape) >= loops
    wall_z &= rng.random(wall_z.shape) >= loops
    for _ in range(int(rng.integers(0, 3))):
        i, j = int(rng.integers(nx - 1)), int(rng.integers(nz - 1))
        wall_x[i, j : j + 2] = False
        wall_z[i : i + 2, j] = False

    builder = MeshBuilder()
    add_shell(builder, float(width), float(depth), CEILING, thickness)
    for axis, walls, across, along in ((0, wall_x, dx, dz), (1, wall_z.T, dz, dx)):
        for number, line in enumerate(walls, start=1):
            for a, b in _runs(line):
                add_wall_line(builder, axis, number * across, a * along, b * along, CEILING, thickness)
    _add_clutter(rng, builder, wall_x, wall_z, dx, dz, thickness)
    return builder


def _carve(rng: np.random.Generator, nx: int, nz: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return the walls left by a recursive backtracker (depth-first search with random neighbours)."""
    wall_x = np.ones((nx - 1, nz), dtype=bool)
    wall_z = np.ones((nx, nz - 1), dtype=bool)
    seen = np.zeros((nx, nz), dtype=bool)
    stack = [(int(rng.integers(nx)), int(rng.integers(nz)))]
    seen[stack[0]] = True
    while stack:
        i, j = stack[-1]
        near = [
            (a, b)
            for a, b in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1))
            if 0 <= a < nx and 0 <= b < nz and not seen[a, b]
        ]
        if not near:
            stack.pop()
            continue
        a, b = near[int(rng.integers(len(near)))]
        if a != i:
            wall_x[min(a, i), j] = False
        else:
            wall_z[i, min(b, j)] = False
        seen[a, b] = True
        stack.append((a, b))
    return wall_x, wall_z


def _runs(line: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return (start, end) of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _add_clutter(
    rng: np.random.Generator,
    builder: MeshBuilder,
    wall_x: npt.NDArray[np.bool_],
    wall_z: npt.NDArray[np.bool_],
    dx: float,
    dz: float,
    thickness: float,
) -> None:
    """Put a crate, plant or lamp into the back corner of some dead ends, where it blocks no way."""
    closed_x = np.pad(wall_x, ((1, 1), (0, 0)), constant_values=True)
    closed_z = np.pad(wall_z, ((0, 0), (1, 1)), constant_values=True)
    chance = rng.uniform(0.3, 0.9)
    closed = np.stack([closed_x[:-1], closed_x[1:], closed_z[:, :-1], closed_z[:, 1:]])
    for i, j in np.argwhere(closed.sum(axis=0) == 3).tolist():
        if rng.random() > chance:
            continue
        item = CATALOGUE[str(rng.choice(["crate", "plant", "lamp", "bench"]))](rng)
        cell = Rect(i * dx, j * dz, (i + 1) * dx, (j + 1) * dz).shrunk(thickness / 2 + 0.03)
        middle_x, middle_z = cell.center
        # The item stands with its back at the side opposite the cell's only opening: west, east, north or south.
        turn, x, z = (
            (1, cell.x1, middle_z),
            (3, cell.x0, middle_z),
            (0, middle_x, cell.z1),
            (2, middle_x, cell.z0),
        )[int(np.argmin(closed[:, i, j]))]
        item.build(builder, x, z, turn * np.pi / 2)
