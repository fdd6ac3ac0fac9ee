"""CLI command `navi runs compare`: settings, figures, cost, curves and paired intervals of runs or versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from navi_core.cli import completion
from navi_core.cli.runs import app as runs
from navi_core.errors import as_argument
from navi_core.terminal import cell, print_json, print_next, print_table, print_text, sparkline

_LISTED = 40
"""Longest value of a setting that is printed whole [characters]."""


@runs.command("compare")
def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Two or more runs, versions or aliases; the first is the baseline.",
            metavar="A B…",
            autocompletion=lambda: [*completion.versions(), *completion.runs()],
        ),
    ],
    page: Annotated[Path | None, typer.Option(help="Also write an HTML page with the curves overlaid.")] = None,
    home: Annotated[Path | None, typer.Option(help="Navi home; by default $NAVI_HOME or ./.navi.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare training runs or versions by what they recorded; nothing is flown (`navi compare` flies).

    Shown are the settings that differ, final figures with their curves, cost, and paired 95 % intervals on courses that
    both have flown.
    """
    from navi_pipeline.lib.reports.compared_runs import compared_runs, write_comparison

    found = compared_runs(names, home)
    if page is not None:
        write_comparison(page, found)
    if as_json:
        print_json(found)
        return
    for title, label, rows in (
        ("settings that differ", "setting", found["settings"]),
        ("cost", "label", found["cost"]),
    ):
        cells = [[row[label], *map(_setting, row["values"])] for row in rows]
        print_table(title, (label.replace("label", "cost"), *names), cells, words=1)
    width, lines = max(6, 40 // len(names) - 8), {name: curve["lines"] for name, curve in found["curves"].items()}
    cells = [[row["meaning"], *_figures(row, lines[row["metric"]], width)] for row in found["figures"]]
    print_table("last values, with the curves on one scale", ("metric", *names), cells, words=1)
    for row in found["intervals"]:
        print_text(f"{row['course_name'] or row['course']}: {row['sentence']}")
    if not found["intervals"]:
        typer.echo("no course was flown by the baseline and another one")
        print_next(f"navi compare {' '.join(as_argument(name) for name in names[:2])}")
    elif page is None:
        print_next(f"navi runs compare {' '.join(as_argument(name) for name in names)} --page comparison.html")
    if page is not None:
        typer.echo(f"page: {page}")


def _setting(value: Any) -> str:  # noqa: ANN401 (any setting)
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
    if isinstance(value, list) and value:
        text = ", ".join(map(str, value))
        return text if len(text) <= _LISTED else f"{len(value)} values"
    text = "–" if value is None or value == [] else cell(value)
    return text if len(text) <= _LISTED else f"{text[:_LISTED]}…"


def _figures(row: dict[str, Any], lines: Sequence[dict[str, Any]], width: int) -> list[str]:
    """Format the last values of a metric, each with the sparkline of its curve on the scale of all."""
    points = [value for line in lines for value in line["values"]]
    return [
        "–" if value is None else f"{value:,.4g} {sparkline(line['values'], min(points), max(points), width)}"
        for value, line in zip(row["values"], lines, strict=True)
    ]
