"""Published figures: declared with their command, measured into the warehouse, exported, and verified again."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from navi_core.errors import ConfigError, RecordError, RunError, as_argument, did_you_mean
from navi_core.record.measurement import row_context
from navi_pipeline.lib.records import BenchmarkLog, shipped_folder, write_text
from navi_pipeline.lib.warehouse.reader import records
from navi_pipeline.lib.warehouse.warehouse import Warehouse

BENCHMARK = "published"
COLUMNS = ("figure", "value", "low", "high", "n", "unit", "command", "revision", "machine", "date", "origin")
"""Columns of the exported file. Origin: `measured` by `navi results measure`, or `noted` in the notes of the run."""
_LATEST = """
-- The newest run of each table, whole: rows that its command no longer gives are not published.
select cell as figure, value, unit, 'measured' as origin, revision, hardware as machine, recorded_at::date as date,
    json_extract(parameters, '$.low')::double as low, json_extract(parameters, '$.high')::double as high,
    json_extract(parameters, '$.n')::bigint as n, json_extract_string(parameters, '$.command') as command
from benchmarks where benchmark = 'published'
qualify run_id = first_value(run_id) over (partition by split_part(cell, '/', 1) order by recorded_at desc)
order by cell
"""


class Column(BaseModel):
    """Column of a published table: which key of a row of the output it shows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = Field(description="Path of the value in a row, by dots.")
    title: str
    unit: str
    low: str | None = Field(None, description="Key of the lower end of the 95 % interval.")
    high: str | None = None
    n: str | int | None = Field(None, description="Sample size, or its key.")
    scale: float = Field(1.0, description="Factor between the output and the unit.")
    tolerance: float = Field(0.1, ge=0, lt=1, description="Share by which the lesser value may lie below the other.")
    most: float | None = Field(None, description="Bound below which a value holds, for an error that varies.")


class Table(BaseModel):
    """Declaration of a published table: the command whose JSON output holds its rows; labels and columns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    title: str
    page: str = Field("engine", description="Page of the results that shows it.")
    text: str = Field(description="A paragraph: what is measured, beside which peer.")
    command: str = Field(description="Arguments of `navi`; the command prints JSON.")
    before: tuple[str, ...] = Field((), description="Arguments of the commands that make what it measures, if any.")
    minutes: float = Field(gt=0, description="Time of the command on two cores (min).")
    rows: str = Field("rows", description="Path of the list of rows in the output, by dots.")
    label: tuple[str, ...] = Field(description="Keys that name a row together.")
    order: tuple[str, ...] = Field((), description="Order of the rows; others follow.")
    columns: tuple[Column, ...] = Field(min_length=1, max_length=5)
    chart: str | None = Field(None, description="Key of the column that is drawn, here and on the first page.")
    curves: str | None = Field(None, description="Name of the sizes, where rows are points `curve, size` of curves.")


class Measured(BaseModel):
    """Value of a figure with its interval and sample size."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None

    def holds(self, published: Measured, column: Column) -> bool:
        """Check whether a published value still holds: by its interval, by the column's bound, or by its tolerance."""
        if published.low is not None and published.high is not None:
            low, high = (self.value if end is None else end for end in (self.low, self.high))
            return low <= published.high and published.low <= high
        if column.most is not None:
            return self.value <= column.most
        least, most = sorted((abs(self.value), abs(published.value)))
        return self.value * published.value >= 0 and least >= (1 - column.tolerance) * most


def declared_tables(file: Path | None = None) -> dict[str, Table]:
    """Load the declarations, by table.

    Args:
        file: YAML list; by default docs/results/figures.yaml of the checkout.

    Raises:
        ConfigError: The file is missing or broken, or an id is used twice.
    """
    import yaml

    file = file or _folder() / "figures.yaml"
    try:
        tables = [Table.model_validate(one) for one in yaml.safe_load(file.read_text("utf-8"))]
    except (OSError, TypeError, ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} is no list of tables: {error}") from error
    found = {table.id: table for table in tables}
    if len(found) < len(tables):
        raise ConfigError(f"{file} declares a table twice")
    return found


def _folder() -> Path:
    folder = shipped_folder("sql").parent / "docs" / "results"
    if not folder.is_dir():
        raise ConfigError("published figures belong to a checkout, and this is an installation; clone Navi first")
    return folder


def figures_of(table: Table, document: Any) -> dict[str, Measured]:  # noqa: ANN401 - any JSON
    """Return the figures of a table in the output of its command, by `table/row/column`.

    Raises:
        RunError: The output lacks the rows or a key.
    """
    found = {}
    try:
        for row in _at(document, table.rows):
            label = ", ".join(str(row[key]) for key in table.label)
            for column in table.columns:
                number = _at(row, column.key)
                if number is None or number != number:
                    continue  # a peer without this measurement: null or NaN
                ends = (None if key is None else row[key] * column.scale for key in (column.low, column.high))
                n = row[column.n] if isinstance(column.n, str) else column.n
                value = Measured(value=number * column.scale, low=next(ends), high=next(ends), n=n)
                found[f"{table.id}/{label}/{column.key}"] = value
    except (KeyError, TypeError) as error:
        raise RunError(f"the output of navi {table.command} has no {error} for table {table.id}") from error
    return found


def _at(document: Any, path: str) -> Any:  # noqa: ANN401 - any JSON
    return reduce(lambda part, step: part[step], path.split("."), document)


def measure(table: Table) -> dict[str, Measured]:
    """Run the command of a table and return its figures.

    Raises:
        ConfigError: Other commands have to run first.
        RunError: The command fails, or its output lacks a figure.
    """
    if table.before:
        raise ConfigError(f"table {table.id} needs {len(table.before)} commands before its own; its page lists them")
    words = [sys.executable, "-m", "navi_core.cli.main", *shlex.split(table.command)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RunError(f"navi {table.command} ended with exit code {done.returncode}")
    try:
        return figures_of(table, json.loads(done.stdout))
    except ValueError as error:
        raise RunError(f"navi {table.command} printed no JSON: {error}") from error


def publish(names: Sequence[str], report: Callable[[str], None]) -> dict[str, Measured]:
    """Measure tables, by default each that one command gives, and record their figures in the warehouse.

    Raises:
        ConfigError: There is no table of a name.
        RunError: A command fails.
    """
    tables = declared_tables()
    if unknown := [name for name in names if name not in tables]:
        raise ConfigError(f"no table {as_argument(unknown[0])}{did_you_mean(unknown[0], tables)}")
    everything: dict[str, Measured] = {}
    for table in [tables[name] for name in names] or [table for table in tables.values() if not table.before]:
        report(f"{table.id}: navi {table.command} (about {table.minutes:g} min)")
        found = measure(table)
        units = {column.key: column.unit for column in table.columns}
        with BenchmarkLog(BENCHMARK) as log:
            for name, one in found.items():
                facts = one.model_dump(exclude={"value"}) | {"command": f"navi {table.command}"}
                log.cell(name, {"value": (one.value, units[name.rpartition("/")[2]])}, parameters=facts)
        everything |= found
    return everything


def export(home: Path | None = None, file: Path | None = None) -> int:
    """Write the latest measurement of each declared table to the committed file, and return the number of rows.

    Rows of tables that this home has not measured stay as they are.
    """
    warehouse = Warehouse(home)
    warehouse.refresh()
    with warehouse.reader() as read:
        rows = {row["figure"]: row for row in records(read(_LATEST, None))}
    file = file or _folder() / "figures.csv"
    fresh = {name.partition("/")[0] for name in rows}
    kept = {name: row for name, row in _table(file).items() if name.partition("/")[0] not in fresh}
    tables = declared_tables(file.with_name("figures.yaml"))
    declared = {f"{table.id}/{column.key}" for table in tables.values() for column in table.columns}
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    number = 0
    for name, row in sorted((kept | rows).items()):
        if f"{name.partition('/')[0]}/{name.rpartition('/')[2]}" in declared:
            digits = {key: f"{float(row[key]):.5g}" for key in ("value", "low", "high") if row[key] not in (None, "")}
            writer.writerow(row | digits | {"date": str(row["date"])[:10]})
            number += 1
    write_text(file, text.getvalue())
    return number


def _table(file: Path) -> dict[str, dict[str, str]]:
    if not file.exists():
        return {}
    with file.open(encoding="utf-8", newline="") as lines:
        return {row["figure"]: row for row in csv.DictReader(lines)}


def published_figures(file: Path | None = None) -> dict[str, tuple[Measured, dict[str, str]]]:
    """Load the committed figures: id → value and the row."""
    rows = _table(file or _folder() / "figures.csv")
    fields = ("value", "low", "high", "n")
    return {
        name: (Measured.model_validate({key: row[key] or None for key in fields}), row) for name, row in rows.items()
    }


def drawn(names: Sequence[str], sample: int, revision: str) -> list[str]:
    """Draw figures by the hash of a revision: the same revision gives the same sample."""
    seed = int.from_bytes(hashlib.sha256(revision.encode()).digest()[:8], "big")
    return sorted(random.Random(seed).sample(sorted(names), min(sample, len(names))))


def verify(sample: int, report: Callable[[str], None], most_minutes: float | None = None) -> list[dict[str, Any]]:
    """Measure a sample of the published figures again. Figures of origin `noted` are never drawn.

    Args:
        sample: Number of figures.
        report: Receives progress lines.
        most_minutes: Leave out figures whose command takes longer (min).

    Returns:
        A row for each figure: figure, unit, published, low, high, measured, holds.

    Raises:
        RecordError: Nothing is published, or a published figure is not declared.
        RunError: A command fails.
    """
    tables, published = declared_tables(), published_figures()
    try:
        table_of = {name: tables[name.partition("/")[0]] for name in published}
    except KeyError as error:
        raise RecordError(f"table {error} is published, but not declared; run `navi results export`") from None
    names = [
        name
        for name, (_, row) in published.items()
        if row["origin"] == "measured" and (most_minutes is None or table_of[name].minutes <= most_minutes)
    ]
    report(f"{len(names)} of {len(published)} figures can be drawn; the others are noted, or take longer")
    if not names:
        raise RecordError("no figure is published; run `navi results measure`, then `navi results export`")
    chosen = drawn(names, sample, row_context()["revision"] or "")
    found: dict[str, Measured] = {}
    for table in dict.fromkeys(table_of[name] for name in chosen):
        report(f"{table.id}: navi {table.command} (about {table.minutes:g} min)")
        found |= measure(table)
    rows = []
    for name in chosen:
        columns = {column.key: column for column in table_of[name].columns}
        if (key := name.rpartition("/")[2]) not in columns:
            raise RecordError(f"column {key!r} is published, but not declared; run `navi results export`")
        column = columns[key]
        old, new = published[name][0], found.get(name)
        ends = {"published": old.value, "low": old.low, "high": old.high, "measured": new and new.value}
        holds = new is not None and new.holds(old, column)
        rows.append({"figure": name, "unit": column.unit, **ends, "holds": holds})
    return rows
