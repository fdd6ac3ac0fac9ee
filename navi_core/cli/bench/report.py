"""What the benchmarks' commands share: their flags, and how they print what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from navi_core.errors import ConfigError, printable
from navi_core.terminal.table import console, print_facts, print_json, print_table

__all__ = [
    "Drones",
    "Json",
    "Repeats",
    "Resolutions",
    "Scenes",
    "Sizes",
    "Threads",
    "figure",
    "machine",
    "report",
    "sizes",
]

Column = Callable[[Mapping[str, Any]], str]

Scenes = Annotated[
    list[str] | None,
    typer.Option(
        "--scene", help="A .gmdag or mesh file, a folder of meshes, or family:seeds; may be repeated.", metavar="S"
    ),
]
Resolutions = Annotated[list[int] | None, typer.Option("--resolution", help="Compile resolution; may be repeated.")]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", help="Azimuth and elevation bins, such as 256x48; may be repeated.", metavar="AZxEL"),
]
Drones = Annotated[list[int] | None, typer.Option("--drones", min=1, help="Drones of a call; may be repeated.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of the kernels and of torch.")]
Repeats = Annotated[int, typer.Option(min=1, help="Turns that each takes; the median counts.")]
Json = Annotated[bool, typer.Option("--json", help="Print the rows as one JSON object.")]


def sizes(texts: Sequence[str], name: str = "--size") -> list[tuple[int, int]]:
    """Return the two numbers of each text such as 256x48.

    Raises:
        ConfigError: A text is of another form.
    """
    pairs = []
    for text in texts:
        first, _, second = text.partition("x")
        if not (first.isdecimal() and second.isdecimal() and len(text) < 20 and 0 < int(first) * int(second) <= 2**24):
            raise ConfigError(f"{name} {text!r} is not of the form AxB; write it as 256x48")
        pairs.append((int(first), int(second)))
    return pairs


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    from navi_core.record import hardware_profile

    profile = hardware_profile()
    return {"hardware": profile["hardware"], "versions": profile["versions"]}


def report(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, Column],
    as_json: bool,
    *,
    threads: int,
    words: int = 0,
    caption: str | None = None,
) -> None:
    """Print what was measured: all of it as JSON, or some columns as a table; a lone row that is too wide, as a list.

    Args:
        title: Of the table; the machine and its threads are added.
        rows: What was measured.
        columns: Heading → what reads the cell from a row; see `figure`.
        as_json: Print JSON.
        threads: Threads of a call.
        words: Columns from the left that hold words.
        caption: What stands below the table.
    """
    about = machine()
    if as_json:
        print_json({"rows": rows, **about})
        return
    number = f"{threads} thread{'s' if threads > 1 else ''}"
    title = f"{title} on {about['hardware']}, {number}"
    cells = [[read(row) for read in columns.values()] for row in rows]
    if len(cells) == 1 and caption is None and _width(columns, cells[0]) > console().width:
        print_facts(title, dict(zip(columns, cells[0])))
    else:
        print_table(title, list(columns), cells, words=words, caption=caption, dense=True)


def _width(headings: Iterable[str], cells: Sequence[str]) -> int:
    """Return how wide a table of one row is."""
    return sum(1 + max(len(heading), len(text)) for heading, text in zip(headings, cells))


def figure(key: str, form: str = "", scale: float = 1.0) -> Column:
    """Return what reads one figure of a row as text: words as they are, a dash where nothing was measured.

    Args:
        key: Its name.
        form: Format of a number; by default whole numbers with separators, others with two digits.
        scale: What it is multiplied by.
    """

    def read(row: Mapping[str, Any]) -> str:
        value = row[key]
        if isinstance(value, str):
            return printable(value)
        if value is None or value != value:
            return "–"
        if not form and isinstance(value, int):
            return f"{value:,}"
        return format(value * scale, form or (".1e" if 0 < abs(value) < 0.005 else ".2f"))

    return read
