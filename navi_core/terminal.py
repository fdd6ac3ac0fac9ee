"""Terminal output: tables and JSON on standard output, progress bars of long commands on standard error."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import typer

from navi_core.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def print_json(data: object) -> None:
    """Print data as one JSON document on standard output."""
    typer.echo(json.dumps(data, indent=1))


def print_status(line: str) -> None:
    """Print a status line on standard error."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def print_next(command: str) -> None:
    """Print the next command on standard error, so that the result on standard output stays as it is."""
    print_status(f"next: {command}")


def console(width: int | None = None) -> Console:
    """Return the Rich console of standard output; 160 columns wide in a pipe, so that tables stay readable."""
    from rich.console import Console

    return Console(width=width or (None if sys.stdout.isatty() else 160), markup=False, highlight=False)


def print_table(
    title: str | None,
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    words: int | None = None,
    numbers: Collection[int] = (),
    caption: str | None = None,
    dense: bool = False,
    edge: bool = True,
    width: int | None = None,
) -> None:
    """Print a table that fits the terminal: texts are folded, then middle columns are left out and named below.

    Args:
        title: Its title.
        headings: Of the columns; broken at spaces and underscores alone.
        rows: Cells of each row.
        words: Columns from the left that hold words; the others hold numbers, right-aligned and never folded. None:
            `numbers` names these.
        numbers: Columns of numbers by index.
        caption: What stands below it.
        dense: Without frames, for many columns.
        edge: Draw the frame around it.
        width: Columns of the terminal; by default those of `console`.
    """
    from rich.box import HEAVY_HEAD, SIMPLE
    from rich.table import Table

    cells = [list(row) for row in rows]
    right = set(range(words, len(headings)) if words is not None else numbers)
    out = console(width)
    kept, widths = _fitted(headings, cells, right, out.width - 1, 1 if dense else 3)
    left_out = [name for place, name in enumerate(headings) if place not in kept]
    if left_out:
        note = f"… stands for {len(left_out)} columns ({', '.join(left_out)}): a wider terminal or --json shows them"
        caption = f"{caption}\n{note}" if caption else note
    table = Table(
        title=title, box=SIMPLE if dense else HEAVY_HEAD, padding=0 if dense else (0, 1), collapse_padding=dense,
        show_edge=edge,
    )  # fmt: skip
    middle = len(kept) // 2 if left_out else -1
    for number, (place, least) in enumerate(zip(kept, widths, strict=True)):
        if number == middle:
            table.add_column("…", width=1)
        table.add_column(
            "\n".join(_broken(headings[place], least)), justify="right" if place in right else "left", width=least,
            overflow="fold",
        )  # fmt: skip
    for row in cells:
        shown = [row[place] for place in kept]
        table.add_row(*(shown if middle < 0 else [*shown[:middle], "…", *shown[middle:]]))
    out.print(table)
    if caption:
        # Below the table and as wide as the terminal: a narrow table would break it into many lines.
        out.print(caption, style="dim")


_FOLDED = 18
"""Width down to which a column of texts is folded before columns are left out [characters]."""


def _fitted(
    headings: Sequence[str], cells: Sequence[Sequence[str | Text]], right: Collection[int], room: int, spacing: int
) -> tuple[list[int], list[int]]:
    """Choose the columns of a table that fit, and their widths.

    Args:
        headings: Of all columns.
        cells: Of all rows.
        right: Columns of numbers, which are not folded.
        room: Width of the table [characters].
        spacing: Characters between two columns.

    Returns:
        Indices of the columns that are shown, at least the first and the last, and the width of each [characters].
    """
    from rich.cells import cell_len

    columns = range(len(headings))
    wide = [max((cell_len(line) for row in cells for line in str(row[n]).split("\n")), default=0) for n in columns]
    parts = [max(map(cell_len, _broken(name, 1)), default=1) for name in headings]
    least = [max(part, size if n in right else min(size, _FOLDED)) for n, (part, size) in enumerate(zip(parts, wide))]
    kept = list(columns)
    while len(kept) > 2 and sum(least[n] + spacing for n in kept) + (1 + spacing) * (len(kept) < len(headings)) > room:
        del kept[len(kept) // 2]
    room -= spacing * len(kept) + (1 + spacing) * (len(kept) < len(headings))
    # A heading is broken over two lines where its cells are shorter.
    widths = [max(least[n], wide[n], min(cell_len(headings[n]), 10)) for n in kept]
    floors = [least[n] for n in kept]
    while sum(widths) > room and max(widths) > 4:
        spare = [width - floor if sum(floors) <= room else width for width, floor in zip(widths, floors, strict=True)]
        widths[spare.index(max(spare))] -= 1
    return kept, widths


def _broken(heading: str, width: int) -> list[str]:
    """Break a heading into lines of a width, at spaces and behind underscores alone."""
    lines = [""]
    for part in re.findall(r"[^ _]*[ _]?", heading):
        if lines[-1] and len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def print_records(title: str, records: Sequence[Mapping[str, Any]], hidden: Sequence[str] = ()) -> None:
    """Print records (dictionaries) as a table: one column per key of any record, except `hidden` ones."""
    names = [name for name in dict.fromkeys(name for record in records for name in record) if name not in hidden]
    headings = [name.replace("_", " ") for name in names]
    values = {name: [record.get(name) for record in records] for name in names}
    numbers = [
        place
        for place, name in enumerate(names)
        if all(isinstance(value, int | float | None) and not isinstance(value, bool) for value in values[name])
    ]
    rows = ([cell(record.get(name)) for name in names] for record in records)
    print_table(title, headings, rows, numbers=numbers)


def print_text(line: str) -> None:
    """Print a sentence on standard output, broken between words on a terminal."""
    console().print(printable(line, "\n"), soft_wrap=not sys.stdout.isatty())


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """Print key–value pairs of one object, one per line."""
    from rich.table import Table

    table = Table(title=title, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    console().print(table)


def sparkline(values: Sequence[float], low: float, high: float, width: int) -> str:
    """Draw a curve as at most `width` block characters, each the mean of a part; `low` and `high` are its scale."""
    count = min(width, len(values))
    parts = [values[len(values) * k // count : len(values) * (k + 1) // count] for k in range(count)]
    means = (sum(part) / len(part) for part in parts)
    return "".join("▁▂▃▄▅▆▇█"[min(int(8 * (mean - low) / ((high - low) or 1.0)), 7)] for mean in means)


def cell(value: object) -> str:
    """Format a value as a human-readable table cell; unprintable characters are escaped."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return " × ".join(f"{v:g}" for v in value)
    return printable(str(value))


class Update(Protocol):
    """Protocol of a progress callback: label, work done, total work."""

    def __call__(self, label: str, done: float, total: float = 1.0) -> None:
        """Update the progress bar."""


@contextmanager
def progress_bar(title: str, *, quiet: bool = False, counted: bool = False) -> Iterator[Update]:
    """Context manager that shows a progress bar and yields its update callback.

    Args:
        title: What stands before the bar.
        quiet: Show nothing; without a terminal nothing is shown either.
        counted: Show how many of how many are done, not a percentage.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(title), BarColumn(), MofNCompleteColumn() if counted else TaskProgressColumn(),
        TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    disable = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True, markup=False), transient=True, disable=disable) as bar:
        task = bar.add_task("", total=None)

        def update(label: str, done: float, total: float = 1.0) -> None:
            bar.update(task, description=printable(label)[-80:], completed=done, total=total)

        yield update
