"""Pages and tables of reports: one self-contained HTML file each, and markdown for the metadata of assets."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from navi_core.errors import RecordError, printable
from navi_core.record import navi_home
from navi_core.record.durable import write_durably

Part = str
"""A piece of HTML."""

# Wide tables scroll within themselves, so that the page fits a phone.
_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{display:block;overflow-x:auto;white-space:nowrap;border-collapse:collapse;margin:1em 0}"
    "td,th{border:1px solid #ccc;padding:.25em .6em;text-align:right}"
    "td:first-child,th:first-child{text-align:left}img{max-width:100%}"
    "figure{display:inline-block;margin:0 1em 1em 0;max-width:100%}"
)
_STANDALONE = '<svg xmlns="http://www.w3.org/2000/svg" width="640" color="black" '
"""Start of an SVG file; the white background is the style's."""
_BRACKETS = str.maketrans("[]\\", "()/")
"""Signs that would end the title of a picture in markdown."""


def reports_folder() -> Path:
    """Return the folder of reports, `reports/` of the Navi home."""
    return navi_home() / "reports"


def text_part(text: str) -> Part:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>"


def table_part(rows: Sequence[Mapping[str, object]]) -> Part:
    """Return rows as a table; columns are those of the first row."""
    if not rows:
        return "<p><em>no rows</em></p>"
    names = list(rows[0])
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(row.get(name)))}</td>" for name in names) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def section(title: str, parts: Sequence[Part], *, level: int = 2, anchor: str | None = None) -> list[Part]:
    """Return parts under a heading; nothing where all parts are empty."""
    name = f' id="{anchor}"' if anchor else ""
    return [f"<h{level}{name}>{escape(title)}</h{level}>", *parts] if any(parts) else []


def html_page(title: str, parts: Sequence[Part]) -> str:
    """Return a whole document."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    head += f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    inner = "\n".join(parts)
    return f"<!doctype html><html><head>{head}</head><body>\n<h1>{escape(title)}</h1>\n{inner}\n</body></html>\n"


def write_page(file: Path, title: str, parts: Sequence[Part]) -> Path:
    """Write a page whole or not at all, in place of an earlier one, and return its path.

    Raises:
        RecordError: The file cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, html_page(title, parts).encode())
    except OSError as error:
        raise RecordError(f"cannot write the report {file}: {error.strerror or error}") from error
    return file


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as a markdown table; columns are those of the first row."""
    if not rows:
        return "*no rows*"
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    cells = ([_cell(row.get(name)).replace("|", "\\|").replace("\n", " ") for name in names] for row in rows)
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells)])


def embedded_picture(picture: bytes, title: str, kind: str = "png") -> str:
    """Return markdown that shows a picture without any file or server.

    Args:
        picture: The file.
        title: Title of any signs: names of scenes and studies are user-defined.
        kind: Image type, `png` or `svg+xml`.
    """
    name = " ".join(printable(title.translate(_BRACKETS), "\n").split())
    return f"![{name}](data:image/{kind};base64,{base64.b64encode(picture).decode()})"


def embedded_charts(charts: Sequence[str], title: str) -> str:
    """Return markdown that shows SVG charts; see `embedded_picture`."""
    files = [
        chart.replace("<svg ", _STANDALONE, 1).replace('style="', 'style="background:white;', 1)
        for chart in charts
        if chart
    ]
    return "\n\n".join(embedded_picture(file.encode(), title, "svg+xml") for file in files) or "*nothing to draw*"


def _cell(value: object) -> str:
    """Return a value as a cell of a table: four digits, empty where it is missing."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
