"""Report building blocks: self-contained HTML pages, Markdown for the metadata of assets, SVG charts."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from navi_core.errors import printable
from navi_core.record import navi_home
from navi_pipeline.lib.records import write_text

if TYPE_CHECKING:
    import numpy as np

Part = str
"""HTML fragment of a report."""

_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:84em;margin:2em auto;padding:0 1em}"
    "p,nav{max-width:60em}.verdict{font-size:1.25em;font-weight:600;border-left:4px solid #0072b2;padding-left:.8em}"
    "table{width:100%;border-collapse:collapse;margin:1em 0;font-size:.88em;font-variant-numeric:tabular-nums}"
    "td,th{border:1px solid #8886;padding:.25em .5em;text-align:right;vertical-align:top}"
    "td:first-child,th:first-child,.text{text-align:left}h1,p,td:first-child,.text{overflow-wrap:anywhere}"
    "img{max-width:100%}svg{display:block;max-width:46em}figure{display:inline-block;margin:0 1% 1em 0;width:48%}"
    # On a phone a row is a list of its cells, each behind its heading.
    "@media(max-width:700px){figure{width:100%}tr.head{display:none}tr,td{display:block;width:auto}"
    "tr{margin:0 0 1em;border:1px solid #8886}"
    "td,td:first-child{display:flex;justify-content:space-between;gap:1em;border:0;text-align:right}"
    "td:empty{display:none}td::before{content:attr(data-label);font-weight:600;text-align:left}}"
)
_COLUMNS = 10
"""Most columns of a table on a page; further ones follow in a table that is unfolded."""
_UNITS = {
    "percent": "[%]", "points": "[points]", "m2": "[m²]", "m": "[m]", "100m": "/ 100 m", "minute": "/ min",
    "ms": "[ms]", "seconds": "[s]", "hours": "[h]", "bytes": "[bytes]",
}  # fmt: skip
"""Unit of a column by the last word of its name."""
_WORDS = {
    "c_vis_auc": "coverage, mean of the flight", "c_vis": "coverage at the end", "c_visit": "cells visited",
    "c_surf_auc": "surface seen, mean of the flight", "c_surf": "surface seen at the end",
    "c_vis_steps_to_90": "decisions to 90 %", "success": "goals reached", "steps_per_second": "decisions / s",
    "episodes": "flights", "spl": "SPL", "soft_spl": "soft SPL", "decisions": "decisions of a flight",
    "reward_ema": "reward, smoothed", "sps": "decisions / s", "mean_sps": "decisions / s", "low": "95 % from",
    "high": "95 % to", "run_id": "run", "recorded_at": "time (UTC)", "collisions_per": "collisions",
    "path_length": "path", "interval": "95 % interval", "left": "way left", "iqm_a": "IQM of a",
    "iqm_b": "IQM of b",
    "mean_difference": "a − b", "mean_a": "a", "mean_b": "b",
}  # fmt: skip
"""Words for the name of a column without its unit."""
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)[\d:.]*(Z|\+00:00)?")
_STANDALONE = '<svg xmlns="http://www.w3.org/2000/svg" width="640" color="black" '
"""Opening tag of a standalone SVG file; the white background is part of the style."""
_BRACKETS = str.maketrans("[]\\", "()/")
"""Translation table for characters that would end a Markdown picture's title."""


def reports_folder() -> Path:
    """Return the folder of reports, `reports/` of the Navi home."""
    return navi_home() / "reports"


def text_part(text: str) -> Part:
    """Render text as an HTML paragraph."""
    return f"<p>{escape(text)}</p>"


def table_part(rows: Sequence[Mapping[str, object]]) -> Part:
    """Render rows as an HTML table with readable headings; columns are those of the first row, ten beside each other.

    A table fits its page: cells break their lines, and on a phone each row is a list.
    """
    if not rows:
        return "<p><em>no rows</em></p>"
    names = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    table = _table(rows, names[:_COLUMNS])
    if len(names) <= _COLUMNS:
        return table
    rest = [
        _table(rows, [names[0], *names[at : at + _COLUMNS - 1]]) for at in range(_COLUMNS, len(names), _COLUMNS - 1)
    ]
    return f"{table}<details><summary>{len(names) - _COLUMNS} more columns</summary>{''.join(rest)}</details>"


def _table(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> Part:
    labels = [escape(heading(name)) for name in names]
    head = "".join(f'<th title="{escape(name)}">{label}</th>' for name, label in zip(names, labels, strict=True))
    body = "".join(
        "<tr>" + "".join(_column(row.get(name), label) for name, label in zip(names, labels, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<table><tr class="head">{head}</tr>{body}</table>'


def _column(value: object, label: str) -> str:
    text = _cell(value)
    kind = ' class="text"' if len(text) > 24 and not isinstance(value, int | float) else ""
    return f'<td{kind} data-label="{label}">{escape(text)}</td>'


def heading(name: str) -> str:
    """Return the heading of a column: words, and the unit that its name ends with (`path_length_m`: path [m])."""
    base, unit, median = name, "", name.endswith("_median")
    base = base.removesuffix("_median")
    head, _, last = base.rpartition("_")
    if head and last in _UNITS:
        base, unit = head, f" {_UNITS[last]}"
    words = _WORDS.get(base) or _WORDS.get(name) or base.removesuffix("_per").replace("_", " ").strip()
    return words + unit + (", median" if median else "")


def section(title: str, parts: Sequence[Part], *, level: int = 2, anchor: str | None = None) -> list[Part]:
    """Render parts under an HTML heading; empty if all parts are empty."""
    name = f' id="{anchor}"' if anchor else ""
    return [f"<h{level}{name}>{escape(title)}</h{level}>", *parts] if any(parts) else []


def html_page(title: str, parts: Sequence[Part]) -> str:
    """Render a complete, self-contained HTML document."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    head += f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    inner = "\n".join(parts)
    return f"<!doctype html><html><head>{head}</head><body>\n<h1>{escape(title)}</h1>\n{inner}\n</body></html>\n"


def write_page(file: Path, title: str, parts: Sequence[Part]) -> Path:
    """Write an HTML page atomically and return its path.

    Raises:
        RecordError: The file cannot be written.
    """
    write_text(file, html_page(title, parts), "the report ")
    return file


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Render rows as a Markdown table; columns are those of the first row."""
    if not rows:
        return "*no rows*"
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    cells = ([_cell(row.get(name)).replace("|", "\\|").replace("\n", " ") for name in names] for row in rows)
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells)])


def embedded_picture(picture: bytes, title: str, kind: str = "png") -> str:
    """Render a picture as a Markdown image with a data URI, independent of files and servers.

    Args:
        picture: The file.
        title: Title of any signs: names of scenes and studies are user-defined.
        kind: Image type, `png` or `svg+xml`.
    """
    name = " ".join(printable(title.translate(_BRACKETS), "\n").split())
    return f"![{name}](data:image/{kind};base64,{base64.b64encode(picture).decode()})"


def embedded_charts(charts: Sequence[str], title: str) -> str:
    """Render SVG charts as Markdown images; see `embedded_picture`."""
    files = [standalone_chart(chart) for chart in charts if chart]
    return "\n\n".join(embedded_picture(file.encode(), title, "svg+xml") for file in files) or "*nothing to draw*"


def standalone_chart(chart: str) -> str:
    """Return a chart as an SVG document of its own, black on white."""
    return chart.replace("<svg ", _STANDALONE, 1).replace('style="', 'style="background:white;', 1)


def _cell(value: object) -> str:
    """Format a value as a table cell: four significant digits, thousands, minutes of a time; empty if missing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 and math.isfinite(value) else f"{value:.4g}"
    found = _TIME.fullmatch(str(value))
    return f"{found[1]} {found[2]}" if found else str(value)


_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8588d", "#3d9bd6", "#b27c00", "#787774", "#9f6b53")
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
"""Dash patterns that go round with the colours, so that lines differ without colour, too."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 312, 56, 34, 24, 12
_INTERVAL_LEFT, _ROW, _LETTER = 200, 24, 7
"""Layout of interval charts: left edge of the plot, height of a row, width of a character [px]."""

REWARD_PANELS = {
    "reward_ema": "reward (smoothed)",
    "view_gain": "area seen [m² per decision]",
    "collision": "collision term",
    "explained_variance": "explained variance",
}
"""Panels of a training's curves: metric → label."""
CLONING_PANELS = {"nll": "negative log-likelihood", "validation_nll": "negative log-likelihood, held-out flights"}
"""Panels of a behaviour-cloning run's curves: metric → label."""

Points = Sequence[tuple[float | None, float | None]]


def line_chart(curves: Mapping[str, tuple[Sequence[float | None], Sequence[float | None]]], *, x: str, y: str) -> str:
    """Draw a line chart of several curves over common axes.

    Args:
        curves: Name → x and y of its points; points that are not finite are left out.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.

    Returns:
        An SVG element with a legend, or an empty text where there is nothing to draw.
    """
    return _frame({name: list(zip(*points, strict=True)) for name, points in curves.items()}, x, y, lines=True)


def scatter_chart(groups: Mapping[str, Points], *, x: str, y: str) -> str:
    """Draw a scatter chart of (x, y) points by group; arguments and result as `line_chart`."""
    return _frame(groups, x, y, lines=False)


def curve_charts(curve: Mapping[str, Sequence[float | None]], panels: Mapping[str, str]) -> list[str]:
    """Draw one line chart for each metric that a run has.

    Args:
        curve: `step` and metrics, by step.
        panels: Metric → label.
    """
    charts = [
        line_chart({label: (curve["step"], curve[name])}, x="decisions", y=label)
        for name, label in panels.items()
        if name in curve
    ]
    return [chart for chart in charts if chart]


def histogram_chart(values: Mapping[str, np.ndarray], *, x: str) -> str:
    """Draw histograms of named arrays (N,) with 41 bins."""
    import numpy as np

    curves = {}
    for name, numbers in values.items():
        counts, edges = np.histogram(numbers, bins=41)
        curves[name] = ((edges[:-1] + edges[1:]) / 2).tolist(), counts.tolist()
    return line_chart(curves, x=x, y="count")


def interval_chart(rows: Sequence[tuple[str, float | None, float | None, float | None]], *, label: str) -> str:
    """Draw a forest plot: for each name one row with value and interval.

    Args:
        rows: Name, value, low end, high end; without ends a point is drawn, without a value nothing.
        label: Label of the values.

    Returns:
        An SVG element, or an empty text where there is nothing to draw.
    """
    drawn: list[tuple[str, float, float, float]] = []
    for name, value, *ends in rows:
        if value is not None and math.isfinite(value):
            below, above = (value if end is None or not math.isfinite(end) else end for end in ends)
            drawn.append((name, value, below, above))
    if not drawn:
        return ""
    height = _ROW * len(drawn) + 40
    across, ticks = _axis([number for row in drawn for number in row[1:]], _INTERVAL_LEFT, _WIDTH - 20)
    parts = [
        _text(_INTERVAL_LEFT - 10, y + 4, name[:28], "end")
        + f'<line x1="{across(below):.1f}" y1="{y}" x2="{across(above):.1f}" y2="{y}" stroke="{_COLOURS[0]}" '
        f'stroke-width="2"/><circle cx="{across(value):.1f}" cy="{y}" r="5" fill="{_COLOURS[0]}"/>'
        for y, (name, value, below, above) in zip(range(20, height, _ROW), drawn, strict=False)
    ]
    parts += [_text(across(tick), height - 18, f"{tick:g}", "middle") for tick in ticks]
    parts.append(_text(_WIDTH - 20, height - 3, label, "end"))
    values = "; ".join(f"{name}: {value:.4g} [{below:.4g}, {above:.4g}]" for name, value, below, above in drawn)
    return _svg(parts, height, f"{label}. {values}.")


def panorama_picture(observation: np.ndarray) -> bytes:
    """Render an observation (3, Az, El) of depth, semantic id and validity as a PNG file, forward in the middle."""
    import io

    import numpy as np
    from matplotlib import colormaps
    from matplotlib.image import imsave

    depth, semantic, valid = (np.roll(np.asarray(channel).T, observation.shape[1] // 2, 1) for channel in observation)
    ids = semantic.astype(int) % 20
    images = [
        np.where(valid[..., None] > 0, colours, 1.0)
        for colours in (colormaps["viridis"](depth), colormaps["tab20"](ids))
    ]
    picture = io.BytesIO()
    imsave(picture, np.kron(np.concatenate(images), np.ones((4, 4, 1))).clip(0.0, 1.0))
    return picture.getvalue()


def _frame(groups: Mapping[str, Points], x: str, y: str, *, lines: bool) -> str:
    """Draw groups of points as lines or dots within axes, with ticks, and a legend below."""
    finite = {
        name: [(float(a), float(b)) for a, b in points if a is not None and b is not None and math.isfinite(a + b)]
        for name, points in groups.items()
    }
    kept = {name: points for name, points in finite.items() if points}
    if not kept:
        return ""
    xs, ys = zip(*(point for points in kept.values() for point in points), strict=True)
    across, x_ticks = _axis(xs, _LEFT, _WIDTH - _RIGHT)
    up, y_ticks = _axis(ys, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}" stroke="#8884"/>'
        + _text(_LEFT - 6, up(tick) + 4, _short(tick), "end")
        for tick in y_ticks
    ]
    parts += [_text(across(tick), _HEIGHT - 18, _short(tick), "middle") for tick in x_ticks]
    parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 3, x, "end"))
    parts.append(f'<text x="{_LEFT}" y="12" font-weight="600">{escape(y)}</text>')
    key_x, key_y = _LEFT, _HEIGHT + 16
    for number, (name, points) in enumerate(kept.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        if lines:
            path = " ".join(f"{across(a):.1f},{up(b):.1f}" for a, b in points)
            dashes = _DASHES[number % len(_DASHES)]
            broken = f' stroke-dasharray="{dashes}"' if dashes else ""
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{broken}/>')
        if not lines or len(points) < 25:
            parts += [f'<circle cx="{across(a):.1f}" cy="{up(b):.1f}" r="3" fill="{colour}"/>' for a, b in points]
        width = 24 + _LETTER * len(name)
        if key_x > _LEFT and key_x + width > _WIDTH:
            key_x, key_y = _LEFT, key_y + 18
        parts.append(f'<rect x="{key_x}" y="{key_y - 8}" width="12" height="8" fill="{colour}"/>')
        parts.append(_text(key_x + 16, key_y, name, "start"))
        key_x += width
    ends = "; ".join(f"{name}: {_short(points[0][1])} to {_short(points[-1][1])}" for name, points in kept.items())
    return _svg(parts, key_y + 8, f"{y} over {x}. {ends}.")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(parts: Sequence[str], height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" style="width:100%;height:auto" '
        f'font-size="12" fill="currentColor">{"".join(parts)}</svg>'
    )


def _axis(values: Sequence[float], start: float, end: float) -> tuple[Callable[[float], float], list[float]]:
    """Return the scale of values to pixels from `start` to `end`, and four to eight round ticks."""
    pad = 0.0 if min(values) < max(values) else abs(values[0]) * 0.05 or 1.0
    low, high = min(values) - pad, max(values) + pad
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 8)
    ticks = [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return lambda value: start + (value - low) / (high - low) * (end - start), ticks


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.4g}{unit}"
    return f"{value:.4g}"
