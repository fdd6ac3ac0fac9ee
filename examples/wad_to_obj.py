"""Converts levels of a Doom WAD file to OBJ meshes that `navi scenes compile` reads: one file per level.

    python examples/wad_to_obj.py freedoom2.wad --out places MAP01 MAP07

Lengths are divided by 48 units a metre: a usual door of 64 units is 1.33 m wide. Closed doors are opened up to 4 units
below the lowest ceiling beside them. Skies become ceilings, grates are left out, and the solid over ceilings is filled.
Floors and ceilings are the convex leaves of the level's own partition (BSP), so that the mesh is closed.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np

UNITS = 48.0
"""Units of a level in a metre."""
_LUMPS = {
    "LINEDEFS": [("a", "u2"), ("b", "u2"), ("flags", "u2"), ("special", "u2"), ("tag", "u2"), ("sides", "u2", 2)],
    "SIDEDEFS": [("offset", "i2", 2), ("textures", "S8", 3), ("sector", "u2")],
    "VERTEXES": [("at", "i2", 2)],
    "SEGS": [("a", "u2"), ("b", "u2"), ("angle", "i2"), ("line", "u2"), ("back", "u2"), ("offset", "i2")],
    "SSECTORS": [("count", "u2"), ("first", "u2")],
    "NODES": [("at", "i2", 2), ("by", "i2", 2), ("boxes", "i2", 8), ("children", "u2", 2)],
    "SECTORS": [("floor", "i2"), ("ceiling", "i2"), ("flats", "S8", 2), ("light", "i2"), ("special", "u2"),
                ("tag", "u2")],
}  # fmt: skip
_NOBODY, _LEAF = 0xFFFF, 0x8000
_CLOSED, _BELOW = 8, 4
"""Height up to which a sector is a closed door, and how far an open one stays below the ceilings beside it [units]."""


_SHEET = 14
"""Distance between the sheets that fill the solid over a ceiling, so that no drone is placed there [units]."""


def read_levels(file: Path) -> dict[str, dict[str, np.ndarray]]:
    """Read the lumps of every level of a WAD file, by the level's name."""
    data = file.read_bytes()
    if data[:4] not in (b"IWAD", b"PWAD"):
        raise SystemExit(f"error: {file} is no WAD file; next: apt-get download freedoom, dpkg-deb -x freedoom_*.deb .")
    count, start = np.frombuffer(data, "<i4", 2, 4)
    entries = np.frombuffer(data, np.dtype([("at", "<i4"), ("size", "<i4"), ("name", "S8")]), count, start)
    levels: dict[str, dict[str, np.ndarray]] = {}
    for entry, after in itertools.pairwise(entries):
        name = entry["name"].decode("ascii", "replace")
        if after["name"] == b"THINGS":
            level = levels[name] = {}
        elif name in _LUMPS and levels:
            kind = np.dtype([(part[0], f"<{part[1]}" if part[1][0] != "S" else part[1], *part[2:])
                             for part in _LUMPS[name]])  # fmt: skip
            level[name] = np.frombuffer(data, kind, entry["size"] // kind.itemsize, entry["at"])
    return levels


def open_doors(level: dict[str, np.ndarray]) -> np.ndarray:
    """Return the heights of floor and ceiling (S, 2) of each sector, with closed doors opened [units]."""
    sectors, lines, sides = level["SECTORS"], level["LINEDEFS"], level["SIDEDEFS"]
    heights = np.stack([sectors["floor"], sectors["ceiling"]], axis=1).astype(float)
    both = lines[(lines["sides"] != _NOBODY).all(axis=1)]
    pairs = sides["sector"][both["sides"]]
    opened = heights.copy()
    for s in np.flatnonzero(heights[:, 1] - heights[:, 0] <= _CLOSED):
        touching = (pairs == s).any(axis=1) & (pairs[:, 0] != pairs[:, 1])
        others = np.unique(pairs[touching][pairs[touching] != s])
        others = others[heights[others, 1] - heights[others, 0] > _CLOSED]
        if len(others) and ((both["special"][touching] > 0).any() or sectors["tag"][s]):
            opened[s, 1] = max(heights[s, 1], heights[others, 1].min() - _BELOW)
    return opened


def leaves(level: dict[str, np.ndarray]) -> list[tuple[int, np.ndarray]]:
    """Return sector and convex outline (n, 2) [units] of each leaf of the level's partition, counter-clockwise."""
    nodes, corners = level["NODES"], level["VERTEXES"]["at"].astype(float)
    low, high = corners.min(axis=0) - 64.0, corners.max(axis=0) + 64.0
    square = np.array([low, (high[0], low[1]), high, (low[0], high[1])])
    found: list[tuple[int, np.ndarray]] = []
    stack = [(len(nodes) - 1 if len(nodes) else _LEAF, square)]
    while stack:
        number, outline = stack.pop()
        if number & _LEAF and number != -1:
            leaf = level["SSECTORS"][number & ~_LEAF]
            for seg in level["SEGS"][leaf["first"] : leaf["first"] + leaf["count"]]:
                line = level["LINEDEFS"][seg["line"]]
                a, b = (corners[line[end]] for end in ("ba" if seg["back"] else "ab"))
                outline = cut(outline, a, b - a, 1.0)
                sector = int(level["SIDEDEFS"]["sector"][line["sides"][int(seg["back"])]])
            if len(outline) >= 3:
                found.append((sector, outline))
            continue
        node = nodes[number]
        at, by = node["at"].astype(float), node["by"].astype(float)
        stack += [(int(child), cut(outline, at, by, side)) for child, side in zip(node["children"], (1.0, -1.0))]
    return found


def cut(outline: np.ndarray, at: np.ndarray, by: np.ndarray, side: float) -> np.ndarray:
    """Cut a convex outline (n, 2) by a line and keep the part on its right (side 1) or left (−1)."""
    if len(outline) < 3:
        return outline
    away = side * ((outline[:, 0] - at[0]) * by[1] - (outline[:, 1] - at[1]) * by[0])
    kept: list[np.ndarray] = []
    for here, there, p, q in zip(outline, np.roll(outline, -1, axis=0), away, np.roll(away, -1), strict=True):
        if p >= 0:
            kept.append(here)
        if (p > 0 and q < 0) or (p < 0 and q > 0):
            kept.append(here + (there - here) * p / (p - q))
    return np.array(kept).reshape(-1, 2)


def level_faces(level: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """Return the polygons (n, 3) of a level by name: x right, y up, z towards the viewer [m]."""
    heights, faces = open_doors(level), {"floor": [], "ceiling": [], "wall": [], "solid": []}
    top = heights[:, 1].max()
    for sector, outline in leaves(level):
        floor, ceiling = heights[sector]
        sheets = np.arange(ceiling + _SHEET, top, _SHEET)
        for name, height, ring in (
            ("floor", floor, outline), ("ceiling", ceiling, outline[::-1]), *(("solid", h, outline) for h in sheets),
        ):  # fmt: skip
            faces[name].append(np.column_stack([ring[:, 0], np.full(len(ring), height), -ring[:, 1]]) / UNITS)
    corners, sides = level["VERTEXES"]["at"].astype(float), level["SIDEDEFS"]["sector"]
    for line in level["LINEDEFS"]:
        a, b = corners[line["a"]], corners[line["b"]]
        right, left = (None if side == _NOBODY else heights[sides[side]] for side in line["sides"])
        if right is None:
            continue
        spans = [right] if left is None else [np.sort([right[0], left[0]]), np.sort([right[1], left[1]])]
        for low, high in spans:
            if high > low:
                quad = [(*a, low), (*b, low), (*b, high), (*a, high)]
                faces["wall"].append(np.array([(x, y, -z) for x, z, y in quad]) / UNITS)
    return faces


def write_obj(file: Path, faces: dict[str, list[np.ndarray]]) -> None:
    """Write polygons as an OBJ file with one object per name."""
    lines, count = ["# levels of Freedoom are under the BSD licence"], 1
    for name, polygons in faces.items():
        lines.append(f"o {name}")
        for polygon in polygons:
            lines += [f"v {x:.5f} {y:.5f} {z:.5f}" for x, y, z in polygon]
            lines.append("f " + " ".join(str(count + n) for n in range(len(polygon))))
            count += len(polygon)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wad", type=Path)
    parser.add_argument("levels", nargs="*", help="names such as MAP01 or E1M1; by default all")
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    found = read_levels(given.wad)
    for name in given.levels or found:
        if name not in found:
            raise SystemExit(f"error: no level {name}; allowed: {', '.join(found)}")
        target = given.out / f"{given.wad.stem}_{name.lower()}.obj"
        write_obj(target, level_faces(found[name]))
        print(target)
