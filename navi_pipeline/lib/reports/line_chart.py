"""Charts as SVG inside a page: no file, no script, sharp at any size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["interval_chart", "line_chart"]

_COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#787774", "#337ea9", "#9f6b53")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 300, 56, 34, 12, 12

Curve = tuple[Sequence[float], Sequence[float]]
"""x and y of a line's points."""


def line_chart(curves: Mapping[str, Curve], *, x: str, y: str) -> str:
    """Draw lines over a common pair of axes.

    Args:
        curves: Name → points; those that are not finite are left out.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.

    Returns:
        An SVG element with its legend below, or an empty text where there is nothing to draw.
    """
    kept = {name: _finite(*points) for name, points in curves.items()}
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return ""
    low_x, high_x = _range([px for points in kept.values() for px, _ in points])
    low_y, high_y = _range([py for points in kept.values() for _, py in points])
    place = _Frame(low_x, high_x, low_y, high_y)
    parts = [place.axes(x, y)]
    legend = []
    for number, (name, points) in enumerate(kept.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{place.x(px):.1f},{place.y(py):.1f}" for px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if len(points) < 25:
            parts += [f'<circle cx="{place.x(a):.1f}" cy="{place.y(b):.1f}" r="3" fill="{colour}"/>' for a, b in points]
        legend.append(f'<span class="key"><i style="background:{colour}"></i>{escape(name)}</span>')
    return f"{_svg(parts, _HEIGHT, y)}<p>{''.join(legend)}</p>"


def interval_chart(rows: Sequence[tuple[str, float, float, float]], *, label: str) -> str:
    """Draw a value with its interval for each name, one below the other.

    Args:
        rows: Name, value, low end, high end.
        label: What the values are.

    Returns:
        An SVG element, or an empty text where there is nothing to draw.
    """
    rows = [row for row in rows if all(math.isfinite(number) for number in row[1:])]
    if not rows:
        return ""
    low, high = _range([number for row in rows for number in row[1:]])
    height = 24 * len(rows) + 40
    left = 200

    def across(value: float) -> float:
        return left + (value - low) / (high - low) * (_WIDTH - left - 20)

    parts = []
    for number, (name, value, below, above) in enumerate(rows):
        y = 20 + 24 * number
        colour = _COLOURS[0]
        parts.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(name[:28])}</text>')
        parts.append(
            f'<line x1="{across(below):.1f}" y1="{y}" x2="{across(above):.1f}" y2="{y}" stroke="{colour}" '
            f'stroke-width="3" opacity=".45"/><circle cx="{across(value):.1f}" cy="{y}" r="5" fill="{colour}"/>'
        )
    parts += [
        f'<text x="{across(tick):.1f}" y="{height - 6}" text-anchor="middle">{tick:g}</text>'
        for tick in _ticks(low, high)
    ]
    return _svg(parts, height, label)


class _Frame:
    """Where data lie on the canvas."""

    def __init__(self, low_x: float, high_x: float, low_y: float, high_y: float) -> None:
        self._x, self._y = (low_x, high_x), (low_y, high_y)

    def x(self, value: float) -> float:
        low, high = self._x
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self._y
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _BOTTOM - _TOP)

    def axes(self, x: str, y: str) -> str:
        parts = []
        for tick in _ticks(*self._y):
            at = self.y(tick)
            parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#8884"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
        parts += [
            f'<text x="{self.x(tick):.1f}" y="{_HEIGHT - 18}" text-anchor="middle">{_short(tick)}</text>'
            for tick in _ticks(*self._x)
        ]
        parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 3}" text-anchor="end">{escape(x)}</text>')
        parts.append(f'<text x="{_LEFT}" y="{_TOP - 2}" font-weight="600">{escape(y)}</text>')
        return "".join(parts)


def _svg(parts: Sequence[str], height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" style="width:100%;height:auto" '
        f'font-size="12" fill="currentColor">{"".join(parts)}</svg>'
    )


def _finite(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        pad = abs(low) * 0.05 or 1.0
        return low - pad, high + pad
    return low, high


def _ticks(low: float, high: float) -> list[float]:
    """Return some four to eight round numbers between two ends."""
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 8)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [(first + number) * step for number in range(count)]


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):g}{unit}"
    return f"{value:g}"
