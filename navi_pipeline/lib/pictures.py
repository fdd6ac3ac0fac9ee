"""Pictures and tables for the metadata of assets; matplotlib is imported when one is drawn."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

__all__ = ["embedded_picture", "markdown_table", "new_figure", "png", "reward_curves", "shown_cell"]

_PANELS = (
    ("reward_ema", "reward (smoothed)"),
    ("view_gain", "area seen [m² per decision]"),
    ("collision", "collision term"),
    ("explained_variance", "explained variance"),
)


def embedded_picture(png: bytes, title: str) -> str:
    """Return markdown that shows a PNG without any file or server."""
    return f"![{title}](data:image/png;base64,{base64.b64encode(png).decode()})"


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
    panels = [(name, label) for name, label in _PANELS if name in curve and curve[name].notna().any()]
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
