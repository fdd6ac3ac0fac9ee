"""Reports that stand alone: one HTML file with its tables and pictures inside, readable without any server."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from navi_core.errors import RecordError
from navi_core.record import navi_home
from navi_core.record.durable import write_durably
from navi_pipeline.lib.reports.pictures import shown_cell

__all__ = ["Part", "html_report", "picture_part", "reports_folder", "table_part", "text_part", "write_report"]

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
    ".key{margin-right:1em}.key i{display:inline-block;width:1em;height:.6em;margin-right:.4em}"
)


def reports_folder() -> Path:
    """Return the folder of reports, `reports/` of the Navi home."""
    return navi_home() / "reports"


def text_part(text: str) -> Part:
    """Return a paragraph."""
    return f"<p>{escape(text)}</p>"


def table_part(rows: Sequence[Mapping[str, Any]]) -> Part:
    """Return rows as a table; columns are those of the first row."""
    if not rows:
        return "<p><em>no rows</em></p>"
    names = list(rows[0])
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(shown_cell(row.get(name)))}</td>" for name in names) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def picture_part(picture: bytes, title: str) -> Part:
    """Return a PNG that lies in the document itself."""
    return f'<img alt="{escape(title)}" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'


def html_report(title: str, parts: Sequence[Part]) -> str:
    """Return a whole document."""
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    head += f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    inner = "\n".join(parts)
    return f"<!doctype html><html><head>{head}</head><body>\n<h1>{escape(title)}</h1>\n{inner}\n</body></html>\n"


def write_report(name: str, title: str, parts: Sequence[Part]) -> Path:
    """Write a report whole or not at all; one of the same name is replaced.

    Raises:
        RecordError: The file cannot be written.
    """
    file = reports_folder() / f"{name}.html"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, html_report(title, parts).encode())
    except OSError as error:
        raise RecordError(f"cannot write the report {file}: {error.strerror or error}") from error
    return file
