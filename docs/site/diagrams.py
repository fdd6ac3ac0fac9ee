"""Draw the diagrams of the documentation: `python docs/site/diagrams.py` writes docs/img/*.svg from diagrams.yaml."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
CELL, ROW, WIDTH, HEIGHT = 190, 92, 158, 54
"""Distance of columns and rows, size of a box [px]."""
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1c2733; text-anchor: middle; }
.note { font-size: 11px; fill: #4a5a6a; }
.box { fill: #e8f1fb; stroke: #3b6ea5; stroke-width: 1.4; }
.data { fill: #fdf3e1; stroke: #b07a1e; }
.edge { stroke: #4a5a6a; stroke-width: 1.4; fill: none; marker-end: url(#tip); }
</style>"""
HEAD = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z" fill="#4a5a6a"/></marker></defs>'
)

Box = tuple[float, float, str]
"""Column, row and text of a box; lines are separated by |, a leading * marks data."""


def _edge(a: Box, b: Box, label: str) -> Iterator[str]:
    """Yield an arrow between the borders of two boxes, and its label."""
    (ax, ay), (bx, by) = _middle(a), _middle(b)
    dx, dy = bx - ax, by - ay
    scale = min(WIDTH / 2 / abs(dx) if dx else math.inf, HEIGHT / 2 / abs(dy) if dy else math.inf)
    x0, y0, x1, y1 = ax + dx * scale, ay + dy * scale, bx - dx * scale, by - dy * scale
    yield f'<path class="edge" d="M{x0:.0f} {y0:.0f} L{x1:.0f} {y1:.0f}"/>'
    if label:
        y = (y0 + y1) / 2 + (-36 if not dy else 4)
        yield f'<text class="note" x="{(x0 + x1) / 2 + (0 if not dy else 34):.0f}" y="{y:.0f}">{escape(label)}</text>'


def _middle(box: Box) -> tuple[float, float]:
    return 12 + WIDTH / 2 + box[0] * CELL, 44 + HEIGHT / 2 + box[1] * ROW


def _svg(title: str, width: float, height: float, parts: list[str]) -> str:
    """Return a whole SVG file."""
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(title)}</title>",
        STYLE,
        HEAD,
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text x="{width / 2:.0f}" y="24" font-weight="600">{escape(title)}</text>',
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def graph(title: str, boxes: dict[str, Box], edges: str) -> str:
    """Return a diagram of boxes and arrows as SVG; diagrams.yaml describes the arguments."""
    parts: list[str] = []
    for edge in edges.split():
        ends, _, label = edge.partition(":")
        a, b = ends.split(">")
        parts += _edge(boxes[a], boxes[b], label.replace("_", " "))
    for box in boxes.values():
        x, y = _middle(box)
        kind, lines = ("box data" if box[2].startswith("*") else "box"), box[2].lstrip("*").split("|")
        place = f'x="{x - WIDTH / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{WIDTH}" height="{HEIGHT}"'
        parts.append(f'<rect class="{kind}" {place} rx="6"/>')
        for i, line in enumerate(lines):
            place = f'x="{x:.0f}" y="{y + 5 + 17 * (i - (len(lines) - 1) / 2):.0f}"'
            parts.append(f'<text class="{"note" if i else "name"}" {place}>{escape(line)}</text>')
    width = 24 + WIDTH + CELL * max(box[0] for box in boxes.values())
    return _svg(title, width, 60 + HEIGHT + ROW * max(box[1] for box in boxes.values()), parts)


def occupancy() -> str:
    """Return a map of the occupancy memory with its 16 directions as SVG."""
    plan = "############ #sssssff#### #ssssssf??## #sssDssf??## #sssssff#### ####s####### ###sssff#### ############"
    colours = {"#": "#4a5a6a", "s": "#bfe3c6", "f": "#f6d58e", "?": "#ffffff", "D": "#bfe3c6"}
    size, parts = 40, []
    for row, line in enumerate(plan.split()):
        for column, cell in enumerate(line):
            place = f'x="{12 + column * size}" y="{44 + row * size}" width="{size}" height="{size}"'
            parts.append(f'<rect {place} fill="{colours[cell]}" stroke="#d7dee6"/>')
    x, y = 12 + 4.5 * size, 44 + 3.5 * size
    for direction in range(16):
        dx, dy = 70 * math.cos(math.tau * direction / 16), 70 * math.sin(math.tau * direction / 16)
        parts.append(f'<path class="edge" d="M{x:.0f} {y:.0f} l{dx:.0f} {dy:.0f}" opacity="0.5"/>')
    parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="9" fill="#3b6ea5"/>')
    for i, (cell, name) in enumerate({"#": "wall", "s": "seen", "f": "frontier", "?": "unknown"}.items()):
        parts.append(
            f'<rect x="510" y="{60 + 30 * i}" width="18" height="18" fill="{colours[cell]}" stroke="#4a5a6a"/>'
        )
        parts.append(f'<text x="570" y="{74 + 30 * i}">{name}</text>')
    return _svg("Occupancy memory: cells of 0.4 m and 16 directions", 640, 380, parts)


def diagrams() -> dict[str, str]:
    """Return every diagram: file name → SVG."""
    described = yaml.safe_load((HERE / "diagrams.yaml").read_text("utf-8"))
    return {f"{name}.svg": graph(**parts) for name, parts in described.items()} | {"occupancy-memory.svg": occupancy()}


if __name__ == "__main__":
    for name, text in diagrams().items():
        (HERE.parent / "img" / name).write_text(text, "utf-8")
