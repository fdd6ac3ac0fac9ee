"""Declaration and result types of a benchmark: options, columns, tables, JSON document."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from navi_core.errors import ConfigError, did_you_mean, printable

Row = dict[str, Any]
"""Measured values of one case by key, JSON-serialisable."""
Column = Callable[[Mapping[str, Any]], str]
"""Column of a table: function that formats a row's value as text, see `figure`."""
Progress = Callable[[str, float, float], None]
"""Progress callback, called as progress(label, done, total)."""
Log = Callable[[str], None]
"""Log callback, called with a line for standard error."""


@dataclass(frozen=True)
class Option:
    """Command-line option of a benchmark, as the metadata of an annotated parameter.

    Attributes:
        help: Help text.
        flag: Its flag; by default the parameter's name.
        metavar: Placeholder of its value.
        min: Lower bound.
        max: Upper bound.
        argument: Whether it is positional.
    """

    help: str
    flag: str | None = None
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    argument: bool = False


Scenes = Annotated[
    list[str] | None,
    Option("A .gmdag or mesh file, a folder of meshes, or family:seeds; may be repeated.", "--scene", "S"),
]
Resolutions = Annotated[list[int] | None, Option("Compile resolution; may be repeated.", "--resolution")]
Sizes = Annotated[
    list[str] | None, Option("Azimuth and elevation bins, such as 256x48; may be repeated.", "--size", "AZxEL")
]
Size = Annotated[str, Option("Azimuth and elevation bins.", metavar="AZxEL")]
Drones = Annotated[list[int] | None, Option("Drones per call; may be repeated.", "--drones", min=1)]
Threads = Annotated[int, Option("Threads of the kernels and of torch.", min=1)]
Repeats = Annotated[int, Option("Timed turns of each; the median counts.", min=1)]
Seeds = Annotated[int, Option("Number of seeds that learn.", min=1)]
FirstSeed = Annotated[int, Option("First seed.", min=0)]
Assignments = Annotated[list[str] | None, Option("A setting, a.b=c; may be repeated.", "--set")]


@dataclass(frozen=True)
class Table:
    """Table of a report: title, headings, text cells, left-aligned columns and caption."""

    title: str
    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    words: int = 0
    caption: str | None = None


@dataclass(frozen=True)
class Report:
    """Result of a benchmark: JSON document, tables, text lines.

    Attributes:
        document: Object that `--json` prints; the machine is added to it.
        tables: Printed without `--json`.
        lines: Printed after the tables.
        failure: Error with which the command ends after printing; "" for none.
    """

    document: Mapping[str, Any]
    tables: Sequence[Table] = ()
    lines: Sequence[str] = ()
    failure: str = ""


def report(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, Column],
    *,
    threads: int = 1,
    words: int = 0,
    caption: str | None = None,
) -> Report:
    """Build a report with one table of the rows; arguments as of `table`."""
    return Report({"rows": rows}, [table(title, rows, columns, threads=threads, words=words, caption=caption)])


def table(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, Column],
    *,
    threads: int = 1,
    words: int = 0,
    caption: str | None = None,
) -> Table:
    """Build a table of rows.

    Args:
        title: Its title; the machine and its threads are added.
        rows: Measurements.
        columns: Heading → cell reader.
        threads: Threads of a call.
        words: Columns from the left that hold words.
        caption: Text below the table.
    """
    title = f"{title} on {machine()['hardware']}, {threads} thread{'s' if threads > 1 else ''}"
    return Table(title, list(columns), [[read(row) for read in columns.values()] for row in rows], words, caption)


def collect(rows: Iterable[Row], total: int, progress: Progress, label: str = "") -> list[dict[str, Any]]:
    """Collect rows into a list and report progress after each."""
    found: list[dict[str, Any]] = []
    for row in rows:
        found.append(row)
        progress(label, len(found), total)
    return found


def machine() -> dict[str, Any]:
    """Return this machine's hardware description and library versions."""
    from navi_core.record import hardware_profile

    profile = hardware_profile()
    return {"hardware": profile["hardware"], "versions": profile["versions"]}


def known_names(kind: str, names: Iterable[str], known: Collection[str]) -> list[str]:
    """Validate names against the known ones and remove duplicates.

    Raises:
        ConfigError: One is not among those that are known.
    """
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in known:
            raise ConfigError(f"unknown {kind} {name!r}; {did_you_mean(name, known)}allowed: {', '.join(known)}")
    return chosen


def comma_names(text: str) -> list[str]:
    """Parse a comma-separated list of names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def sizes(texts: Sequence[str], name: str = "--size") -> list[tuple[int, int]]:
    """Parse texts such as 256x48 into pairs of numbers.

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


def figure(key: str, form: str = "", scale: float = 1.0) -> Column:
    """Return the column formatter of one key: text unchanged, a dash for missing values.

    Args:
        key: Its key in the row.
        form: Format of a number; by default whole numbers with separators, others with two digits.
        scale: Factor of the number.
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
