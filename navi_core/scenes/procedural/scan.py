"""Family `scan`: furnished floors as a scanner leaves them, often without a ceiling, and with holes in the walls."""

import numpy as np
import numpy.typing as npt

from navi_core.scenes.procedural.apartment import build_apartment
from navi_core.scenes.procedural.builder import MeshBuilder
from navi_core.scenes.procedural.rooms import build_rooms

_OPEN = 0.7
"""Share of the scans without a ceiling."""

_HOLES = 0.06
"""Holes per m² of the floor's bounding rectangle."""

_RADII = (0.15, 0.7)
"""Least and greatest radius of a hole [m]."""

_FINE = 0.25
"""Longest edge of a triangle at a hole [m]: how ragged its rim is."""


def build_scan(rng: np.random.Generator) -> MeshBuilder:
    """Build an apartment or a floor of rooms, and take away what a scanner often misses.

    A hole goes through everything but the floor: windows that are open, mirrors, what stood behind something.
    """
    whole = build_apartment(rng) if rng.random() < 0.6 else build_rooms(rng)
    parts = [part for part in whole.parts if part[0] != "ceiling"] if rng.random() < _OPEN else whole.parts
    names = sorted({name for name, _, _ in parts})
    triangles = np.concatenate([vertices[faces] for _, vertices, faces in parts])
    named = np.repeat([names.index(name) for name, _, _ in parts], [len(faces) for _, _, faces in parts])
    walls = triangles[named == names.index("wall")]
    size = np.ptp(walls.reshape(-1, 3), axis=0)
    floor = named == names.index("floor")
    builder = MeshBuilder()
    builder.add("floor", triangles[floor].reshape(-1, 3), np.arange(3 * floor.sum()).reshape(-1, 3))
    triangles, named = triangles[~floor], named[~floor]
    for centre in _points_on(rng, walls, int(rng.poisson(_HOLES * size[0] * size[2]))):
        triangles, named = _without_ball(triangles, named, centre, rng.uniform(*_RADII))
    for number in np.unique(named):
        own = triangles[named == number]
        builder.add(names[number], own.reshape(-1, 3), np.arange(3 * len(own)).reshape(-1, 3))
    return builder


def _points_on(rng: np.random.Generator, triangles: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """Draw points (count, 3) of the surface of triangles (T, 3, 3), each as likely as any other."""
    a, b, c = triangles.transpose(1, 0, 2)
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    pick = rng.choice(len(triangles), count, p=area / area.sum())
    u, v = rng.random((2, count, 1))
    beyond = u + v > 1.0
    u, v = np.where(beyond, 1.0 - u, u), np.where(beyond, 1.0 - v, v)
    return np.asarray(a[pick] + u * (b - a)[pick] + v * (c - a)[pick])


def _without_ball(
    triangles: npt.NDArray[np.float64], named: npt.NDArray[np.int64], centre: npt.NDArray[np.float64], radius: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Take a ball out of triangles (T, 3, 3) and their names (T,).

    Those at the ball are cut in two until they are fine; then those whose middle lies in it are left out.
    """
    kept = []
    while len(triangles):
        low, high = triangles.min(axis=1) - centre, triangles.max(axis=1) - centre
        at_ball = ((low < radius) & (high > -radius)).all(axis=1)
        edges = np.linalg.norm(triangles - np.roll(triangles, 1, axis=1), axis=2)
        fine = edges.max(axis=1) <= _FINE
        inside = np.linalg.norm(triangles.mean(axis=1) - centre, axis=1) < radius
        stay, cut = ~at_ball | (fine & ~inside), at_ball & ~fine
        kept.append((triangles[stay], named[stay]))
        triangles, named = _halved(triangles[cut], edges[cut].argmax(axis=1)), np.tile(named[cut], 2)
    return np.concatenate([t for t, _ in kept]), np.concatenate([n for _, n in kept])


def _halved(triangles: npt.NDArray[np.float64], longest: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Cut each triangle in two at the middle of its edge from corner `longest` − 1 to `longest`; first halves first."""
    rows = np.arange(len(triangles))
    start, end, apex = (triangles[rows, (longest + k) % 3] for k in (-1, 0, 1))
    middle = (start + end) / 2
    return np.concatenate([np.stack([start, middle, apex], axis=1), np.stack([middle, end, apex], axis=1)])
