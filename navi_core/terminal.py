"""Terminal output: tables and JSON on standard output, progress bars of long commands on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def console() -> Console:
    """Return the Rich console of standard output; 160 columns wide in a pipe, so that tables stay readable."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False)


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    words: int | None = None,
    caption: str | None = None,
    dense: bool = False,
) -> None:
    """Print a table of rows under column headings.

    Args:
        title: Its title.
        headings: Of the columns.
        rows: Cells of each row.
        words: Columns from the left that hold words; the others hold numbers, right-aligned and never folded. None:
            all hold words.
        caption: What stands below it.
        dense: Without frames, for many columns.
    """
    from rich.box import HEAVY_HEAD, SIMPLE
    from rich.table import Table

    table = Table(
        title=title, caption=caption, box=SIMPLE if dense else HEAVY_HEAD, padding=0 if dense else (0, 1),
        collapse_padding=dense,
    )  # fmt: skip
    for place, heading in enumerate(headings):
        number = words is not None and place >= words
        table.add_column(
            heading,
            justify="right" if number else "left",
            no_wrap=number,
            overflow="ellipsis" if number else "fold",
            min_width=12 if heading == "name" else None,
        )
    for row in rows:
        table.add_row(*row)
    console().print(table)


def print_records(title: str, records: Sequence[Mapping[str, Any]], hidden: Sequence[str] = ()) -> None:
    """Print records (dictionaries) as a table: one column per key of any record, except `hidden` ones."""
    names = [name for name in dict.fromkeys(name for record in records for name in record) if name not in hidden]
    headings = [name.replace("_", " ") for name in names]
    print_table(title, headings, ([cell(record.get(name)) for name in names] for record in records))


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """Print key–value pairs of one object, one per line."""
    from rich.table import Table

    table = Table(title=title, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    console().print(table)


def cell(value: object) -> str:
    """Format a value as a human-readable table cell; unprintable characters are escaped."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
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
