"""Furniture generators: each function samples the dimensions of one piece, made of boxes."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from navi_core.scenes.procedural.builder import MeshBuilder
from navi_core.scenes.procedural.structure import Rect

Part = tuple[str, tuple[float, float, float], tuple[float, float, float]]
"""(semantic, minimum corner, maximum corner) in the item's frame."""


@dataclass(frozen=True)
class Item:
    """Piece of furniture in its local frame: x centred, back at z = 0, front towards −z, standing on y = 0 [m]."""

    width: float
    depth: float
    parts: tuple[Part, ...]

    def footprint(self, x: float, z: float, angle: float) -> Rect:
        """Return the item's bounding rectangle on the floor, with its back's middle at (x, z), rotated by `angle`."""
        c, s = math.cos(angle), math.sin(angle)
        corners = [
            (x + c * u + s * v, z - s * u + c * v)
            for u in (-self.width / 2, self.width / 2)
            for v in (-self.depth, 0.0)
        ]
        xs, zs = [p[0] for p in corners], [p[1] for p in corners]
        return Rect(min(xs), min(zs), max(xs), max(zs))

    def build(self, builder: MeshBuilder, x: float, z: float, angle: float, y: float = 0.0) -> None:
        """Add the item's boxes to a mesh builder, with its back's middle at (x, y, z), rotated by `angle` [rad]."""
        shift = np.array([x, y, z])
        for name, lower, upper in self.parts:
            builder.box(name, np.asarray(lower) + shift, np.asarray(upper) + shift, yaw=angle, pivot=(x, z))


def _box(name: str, x0: float, x1: float, y0: float, y1: float, z0: float, z1: float) -> Part:
    return name, (x0, y0, z0), (x1, y1, z1)


def _legs(name: str, w: float, d: float, height: float, inset: float, thick: float, z: float = 0.0) -> list[Part]:
    parts = []
    for x in (-w / 2 + inset, w / 2 - inset - thick):
        parts += [_box(name, x, x + thick, 0.002, height, v, v + thick) for v in (z - d + inset, z - inset - thick)]
    return parts


def table(rng: np.random.Generator) -> Item:
    """Generate a table with a row of chairs on its two long sides."""
    w, d, h = rng.uniform(1.0, 1.9), rng.uniform(0.7, 0.95), rng.uniform(0.70, 0.78)
    z = -0.55
    parts = [_box("table", -w / 2, w / 2, h - 0.04, h, z - d, z), *_legs("table", w, d, h - 0.035, 0.05, 0.06, z)]
    count = max(1, int(w / 0.7))
    for k in range(count):
        x = (k + 0.5) / count * w - w / 2
        for sign, edge in ((1, z), (-1, z - d)):
            if rng.random() < 0.85:
                parts += _chair_parts(x, edge + sign * rng.uniform(0.22, 0.3), sign)
    return Item(w + 0.1, d + 1.1, tuple(parts))


def _chair_parts(x: float, z: float, sign: int) -> list[Part]:
    w, seat, back = 0.42, 0.45, 0.88
    near, far = sorted((z + sign * 0.17, z + sign * 0.22))
    parts = [
        _box("chair", x - w / 2, x + w / 2, seat - 0.04, seat, z - 0.21, z + 0.21),
        _box("chair", x - w / 2 + 0.01, x + w / 2 - 0.01, seat - 0.01, back, near, far),
    ]
    for u in (x - w / 2 + 0.02, x + w / 2 - 0.06):
        parts += [_box("chair", u, u + 0.04, 0.002, seat - 0.02, v, v + 0.04) for v in (z - 0.19, z + 0.15)]
    return parts


def chair(rng: np.random.Generator) -> Item:  # noqa: ARG001
    """Generate one chair."""
    return Item(0.46, 0.5, tuple(_chair_parts(0.0, -0.25, 1)))


def sofa(rng: np.random.Generator) -> Item:
    """Generate a sofa with back and arms."""
    w, d, h = rng.uniform(1.4, 2.4), rng.uniform(0.8, 0.95), rng.uniform(0.38, 0.46)
    arm = rng.uniform(0.14, 0.22)
    return Item(
        w,
        d,
        (
            _box("sofa", -w / 2 + arm - 0.01, w / 2 - arm + 0.01, 0.06, h, -d, -0.2),
            _box("sofa", -w / 2 + 0.005, w / 2 - 0.005, 0.05, h + 0.38, -0.22, 0.0),
            _box("sofa", -w / 2, -w / 2 + arm, 0.04, h + 0.18, -d + 0.01, -0.01),
            _box("sofa", w / 2 - arm, w / 2, 0.04, h + 0.18, -d + 0.01, -0.01),
        ),
    )


def bed(rng: np.random.Generator) -> Item:
    """Generate a bed with a headboard at the wall."""
    w, d, h = float(rng.choice([0.9, 1.2, 1.4, 1.6, 1.8])), rng.uniform(2.0, 2.1), rng.uniform(0.4, 0.55)
    return Item(
        w + 0.06,
        d + 0.05,
        (
            _box("bed", -w / 2, w / 2, 0.12, h, -d - 0.05, -0.04),
            _box("bed", -w / 2 - 0.03, w / 2 + 0.03, 0.01, h + rng.uniform(0.35, 0.7), -0.05, 0.0),
            _box("bed", -w / 2 + 0.08, -w / 2 + 0.08 + w * 0.35, h - 0.01, h + 0.1, -0.5, -0.1),
        ),
    )


def shelf(rng: np.random.Generator) -> Item:
    """Generate an open shelf: two sides, a back and boards."""
    w, d, h = rng.uniform(0.7, 1.6), rng.uniform(0.26, 0.4), rng.uniform(0.9, 2.1)
    parts = [
        _box("shelf", -w / 2, -w / 2 + 0.03, 0.002, h, -d, 0.0),
        _box("shelf", w / 2 - 0.03, w / 2, 0.002, h, -d, 0.0),
        _box("shelf", -w / 2 + 0.02, w / 2 - 0.02, 0.01, h - 0.01, -0.025, -0.003),
    ]
    boards = max(2, round(h / rng.uniform(0.32, 0.45)))
    parts += [
        _box("shelf", -w / 2 + 0.02, w / 2 - 0.02, y, y + 0.025, -d + 0.005, -0.01)
        for y in np.linspace(0.05, h - 0.04, boards)
    ]
    return Item(w, d, tuple(parts))


def cabinet(rng: np.random.Generator) -> Item:
    """Generate a closed cabinet or wardrobe."""
    w, d, h = rng.uniform(0.8, 2.0), rng.uniform(0.4, 0.62), rng.choice([0.8, 1.2, 2.0, 2.2])
    return Item(
        w,
        d,
        (
            _box("cabinet", -w / 2, w / 2, 0.06, float(h), -d + 0.02, 0.0),
            _box("cabinet", -w / 2 + 0.03, w / 2 - 0.03, 0.002, 0.07, -d + 0.06, -0.03),
        ),
    )


def counter(rng: np.random.Generator) -> Item:
    """Generate a kitchen counter with wall cupboards above it."""
    w, d = rng.uniform(1.6, 3.2), 0.62
    return Item(
        w,
        d,
        (
            _box("counter", -w / 2, w / 2, 0.002, 0.87, -d + 0.03, 0.0),
            _box("counter", -w / 2 - 0.005, w / 2 + 0.005, 0.865, 0.905, -d, -0.002),
            _box("cabinet", -w / 2 + 0.05, w / 2 - 0.05, 1.42, 2.05, -0.36, -0.004),
        ),
    )


def desk(rng: np.random.Generator) -> Item:
    """Generate a desk with a screen, drawers and a chair."""
    w, d, h = rng.uniform(1.1, 1.7), rng.uniform(0.6, 0.8), 0.74
    side = float(rng.choice([-1.0, 1.0])) * (w / 2 - 0.22)
    parts = [
        _box("desk", -w / 2, w / 2, h - 0.03, h, -d, 0.0),
        *_legs("desk", w, d, h - 0.025, 0.03, 0.05),
        _box("desk", side - 0.18, side + 0.18, 0.05, h - 0.02, -d + 0.1, -0.05),
        _box("screen", -0.28, 0.28, h + 0.08, h + 0.42, -0.16, -0.13),
        _box("screen", -0.05, 0.05, h - 0.005, h + 0.1, -0.13, -0.1),
        *_chair_parts(-side * 0.4, -d - 0.1, -1),
    ]
    return Item(w, d + 0.35, tuple(parts))


def low_table(rng: np.random.Generator) -> Item:
    """Generate a coffee table."""
    w, d, h = rng.uniform(0.6, 1.2), rng.uniform(0.5, 0.7), rng.uniform(0.35, 0.48)
    return Item(w, d, (_box("table", -w / 2, w / 2, h - 0.05, h, -d, 0.0), *_legs("table", w, d, h - 0.04, 0.04, 0.05)))


def plant(rng: np.random.Generator) -> Item:
    """Generate a potted plant: pot, trunk and crown."""
    r, h = rng.uniform(0.14, 0.24), rng.uniform(0.8, 1.9)
    pot = rng.uniform(0.25, 0.45)
    c = -0.3
    return Item(
        0.6,
        0.6,
        (
            _box("plant", -r, r, 0.002, pot, c - r, c + r),
            _box("plant", -0.03, 0.03, pot - 0.02, h, c - 0.03, c + 0.03),
            _box("plant", -0.26, 0.26, h * 0.6, h * 0.85, c - 0.26, c + 0.26),
            _box("plant", -0.18, 0.18, h * 0.84, h, c - 0.18, c + 0.18),
        ),
    )


def lamp(rng: np.random.Generator) -> Item:
    """Generate a floor lamp: a thin pole that a depth sensor easily misses."""
    h = rng.uniform(1.4, 1.9)
    c = -0.2
    return Item(
        0.4,
        0.4,
        (
            _box("lamp", -0.14, 0.14, 0.002, 0.04, c - 0.14, c + 0.14),
            _box("lamp", -0.02, 0.02, 0.03, h - 0.05, c - 0.02, c + 0.02),
            _box("lamp", -0.19, 0.19, h - 0.25, h, c - 0.19, c + 0.19),
        ),
    )


def crate(rng: np.random.Generator) -> Item:
    """Generate a stack of one to three crates."""
    w, d = rng.uniform(0.4, 1.1), rng.uniform(0.4, 0.9)
    parts, y = [], 0.002
    for k in range(int(rng.integers(1, 4))):
        h, s = rng.uniform(0.3, 0.7), 1 - 0.12 * k
        parts.append(_box("crate", -w / 2 * s, w / 2 * s, y, y + h, -d / 2 - d / 2 * s, -d / 2 + d / 2 * s))
        y += h - 0.003
    return Item(w, d, tuple(parts))


def bench(rng: np.random.Generator) -> Item:
    """Generate a bench without a back."""
    w, d, h = rng.uniform(1.2, 2.2), rng.uniform(0.38, 0.5), 0.45
    return Item(
        w,
        d,
        (
            _box("bench", -w / 2, w / 2, h - 0.06, h, -d, 0.0),
            _box("bench", -w / 2 + 0.1, -w / 2 + 0.2, 0.002, h - 0.05, -d + 0.03, -0.03),
            _box("bench", w / 2 - 0.2, w / 2 - 0.1, 0.002, h - 0.05, -d + 0.03, -0.03),
        ),
    )


def television(rng: np.random.Generator) -> Item:
    """Generate a sideboard with a television."""
    w, d, t = rng.uniform(1.2, 1.9), rng.uniform(0.36, 0.45), rng.uniform(0.9, 1.3)
    return Item(
        w,
        d,
        (
            _box("cabinet", -w / 2, w / 2, 0.05, 0.5, -d, 0.0),
            _box("screen", -t / 2, t / 2, 0.56, 0.56 + t * 0.56, -d / 2 - 0.03, -d / 2 + 0.03),
            _box("screen", -0.15, 0.15, 0.495, 0.58, -d / 2 - 0.08, -d / 2 + 0.08),
        ),
    )


def bath(rng: np.random.Generator) -> Item:
    """Generate a bathtub: an open trough."""
    w, d, h, t = rng.uniform(1.5, 1.8), rng.uniform(0.7, 0.8), 0.58, 0.07
    return Item(
        w,
        d,
        (
            _box("bath", -w / 2, w / 2, 0.002, 0.15, -d, 0.0),
            _box("bath", -w / 2 + 0.002, w / 2 - 0.002, 0.1, h, -t, -0.002),
            _box("bath", -w / 2 + 0.002, w / 2 - 0.002, 0.1, h, -d + 0.002, -d + t),
            _box("bath", -w / 2 + 0.004, -w / 2 + t, 0.11, h - 0.005, -d + 0.01, -0.01),
            _box("bath", w / 2 - t, w / 2 - 0.004, 0.11, h - 0.005, -d + 0.01, -0.01),
        ),
    )


def toilet(rng: np.random.Generator) -> Item:  # noqa: ARG001
    """Generate a toilet with its cistern."""
    return Item(
        0.42,
        0.7,
        (
            _box("toilet", -0.18, 0.18, 0.002, 0.42, -0.68, -0.15),
            _box("toilet", -0.2, 0.2, 0.35, 0.8, -0.18, 0.0),
        ),
    )


def basin(rng: np.random.Generator) -> Item:
    """Generate a wash basin on a column, with a mirror."""
    w = rng.uniform(0.5, 0.9)
    return Item(
        w,
        0.48,
        (
            _box("basin", -w / 2, w / 2, 0.72, 0.88, -0.46, 0.0),
            _box("basin", -0.09, 0.09, 0.002, 0.73, -0.3, -0.08),
            _box("mirror", -w / 2 + 0.03, w / 2 - 0.03, 1.15, 1.85, -0.03, -0.005),
        ),
    )


CATALOGUE: dict[str, Callable[[np.random.Generator], Item]] = {
    f.__name__: f
    for f in (
        table, chair, sofa, bed, shelf, cabinet, counter, desk, low_table, plant, lamp, crate, bench, television,
        bath, toilet, basin,
    )
}  # fmt: skip
"""Every kind of item by name."""
