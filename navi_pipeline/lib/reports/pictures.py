"""Pictures and tables for the metadata of assets; matplotlib is imported when one is drawn."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from navi_core.errors import printable

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

__all__ = [
    "cloning_curves",
    "embedded_picture",
    "histograms",
    "interval_bars",
    "markdown_table",
    "new_figure",
    "panorama",
    "png",
    "reward_curves",
    "scatter",
    "shown_cell",
]

_PANELS = (
    ("reward_ema", "reward (smoothed)"),
    ("view_gain", "area seen [m² per decision]"),
    ("collision", "collision term"),
    ("explained_variance", "explained variance"),
)

_BRACKETS = str.maketrans("[]\\", "()/")
"""What would end the title of a picture in markdown."""
_CLONING_PANELS = (("nll", "negative log-likelihood"), ("validation_nll", "the same on held-out flights"))


def embedded_picture(png: bytes, title: str) -> str:
    """Return markdown that shows a PNG without any file or server.

    Args:
        png: The file.
        title: Of any signs: names of scenes and studies are other people's.
    """
    told = " ".join(printable(title.translate(_BRACKETS), "\n").split())
    return f"![{told}](data:image/png;base64,{base64.b64encode(png).decode()})"


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a markdown table; columns are those of the first row."""
    if not rows:
        return "*no rows*"
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_escaped(row.get(name)) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def reward_curves(curve: pandas.DataFrame, title: str) -> bytes:
    """Draw the curves of one training run.

    Args:
        curve: Rows of the view `training_curve` of one run, by step.
        title: Name of the run.

    Returns:
        A PNG file.
    """
    return _curves(curve, _PANELS, title)


def cloning_curves(curve: pandas.DataFrame, title: str) -> bytes:
    """Draw the losses of one cloning run (see `policies.cloning_curve_of`), as a PNG file."""
    return _curves(curve, _CLONING_PANELS, title)


def _curves(curve: pandas.DataFrame, wanted: Sequence[tuple[str, str]], title: str) -> bytes:
    panels = [(name, label) for name, label in wanted if name in curve and curve[name].notna().any()]
    figure = new_figure(4.2 * max(1, min(2, len(panels))), 2.6 * max(1, -(-len(panels) // 2)))
    for index, (name, label) in enumerate(panels, start=1):
        axes = figure.add_subplot(-(-len(panels) // 2), min(2, len(panels)), index)
        axes.plot(curve["step"] / 1e3, curve[name], lw=1.3)
        axes.set_xlabel("decisions [thousand]", fontsize=8)
        axes.set_title(label, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
    figure.suptitle(title, fontsize=9)
    return png(figure)


def interval_bars(rows: Sequence[tuple[str, float, float, float]], label: str) -> bytes:
    """Draw one bar a name with its interval, the first on top.

    Args:
        rows: Name, value, lower and upper bound.
        label: Of the values' axis.

    Returns:
        A PNG file.
    """
    figure = new_figure(6.0, 0.9 + 0.34 * max(1, len(rows)))
    axes = figure.add_subplot(1, 1, 1)
    for place, (_, value, low, high) in enumerate(reversed(rows)):
        axes.barh(place, value, color="C0", alpha=0.6)
        axes.plot([low, high], [place, place], color="k", lw=1.5)
    axes.set_yticks(range(len(rows)), [name for name, *_ in reversed(rows)], fontsize=8)
    axes.set_xlabel(label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3, axis="x")
    return png(figure)


def histograms(values: Mapping[str, Any], title: str) -> bytes:
    """Draw the distribution of each named array (N,), as a PNG file."""
    figure = new_figure(2.2 * len(values), 2.2)
    for place, (name, numbers) in enumerate(values.items(), start=1):
        axes = figure.add_subplot(1, len(values), place)
        axes.hist(numbers, bins=41, color="C0")
        axes.set_title(name, fontsize=9)
        axes.set_yticks([])
        axes.tick_params(labelsize=7)
    figure.suptitle(title, fontsize=9)
    return png(figure)


def panorama(observation: Any, title: str) -> bytes:
    """Draw what the drone sees, normalised depth and semantic ids, forward in the middle.

    Args:
        observation: (3, Az, El): normalised depth, semantic id, valid.
        title: Of the picture.

    Returns:
        A PNG file.
    """
    import numpy as np

    depth, semantic, valid = (np.roll(np.asarray(channel).T, observation.shape[1] // 2, 1) for channel in observation)
    figure = new_figure(7.0, 3.4)
    images = ((depth, "depth", "viridis"), (semantic, "names", "tab20"))
    for place, (image, name, colours) in enumerate(images, start=1):
        axes = figure.add_subplot(2, 1, place)
        axes.imshow(np.where(valid > 0, image, np.nan), cmap=colours, aspect="auto", interpolation="nearest")
        axes.set_ylabel(name, fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
    figure.suptitle(title, fontsize=9)
    return png(figure)


def scatter(points: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str) -> bytes:
    """Draw (x, y) points of each named group, as a PNG file."""
    figure = new_figure(5.0, 3.0)
    axes = figure.add_subplot(1, 1, 1)
    for name, pairs in points.items():
        axes.plot([a for a, _ in pairs], [b for _, b in pairs], "o", ms=4, alpha=0.7, label=name)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=7)
    if points:
        axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
    return png(figure)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure without any window system [inch]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=90)
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "navi"})
    return buffer.getvalue()


def shown_cell(value: Any) -> str:
    """Return a value as it stands in the cell of a table: four digits, nothing for what is missing."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _escaped(value: Any) -> str:
    return shown_cell(value).replace("|", "\\|").replace("\n", " ")
