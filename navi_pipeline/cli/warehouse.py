"""CLI commands `navi warehouse status`, `compact`, `publish`, `navi report` and `navi bench warehouse`."""

from pathlib import Path
from typing import Annotated

import typer

from navi_core.bench.report import Option, Progress, Report, figure, known_names, report
from navi_core.cli.bench import app as benchmarks
from navi_core.cli.bench import benchmark_command
from navi_core.errors import as_argument
from navi_core.terminal import print_facts, print_json, print_next

Home = Annotated[Path | None, typer.Option(help="Navi home; by default $NAVI_HOME or ./.navi.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


group = typer.Typer(
    name="warehouse", help="Tables, views and saved queries: list, show; and their upkeep.", no_args_is_help=True
)


def relation_names() -> list[str]:
    """Return the names of saved queries, views and tables, for Tab."""
    from navi_core.record.metric_log import NATURAL_KEYS
    from navi_pipeline.lib.warehouse.database import sql_folder

    files = sorted(file.stem for part in ("queries", "views") for file in sql_folder().glob(f"{part}/*.sql"))
    return [*files, *NATURAL_KEYS]


@group.command()
def status(home: Home = None, as_json: Json = False) -> None:
    """Ingest new rows and print row counts, file sizes, and waiting and refused segments with the reason."""
    from navi_pipeline.lib.warehouse.warehouse import Warehouse

    warehouse = Warehouse(home)
    if reason := warehouse.refresh().not_folded:
        typer.echo(f"nothing is folded in: {reason}", err=True)
    facts = warehouse.status()
    if as_json:
        print_json(facts)
    else:
        shown = {
            **{f"rows of {table}": f"{rows:,}" for table, rows in facts["rows"].items() if rows},
            **{f"{name} [MiB]": f"{size / 2**20:,.1f}" for name, size in facts["bytes"].items()},
            "segments in done/": f"{facts['segments']:,}",
            "last migration": facts["migration"],
            **{f"refused {name}": reason for name, reason in facts["quarantined"].items()},
        }
        print_facts(str(warehouse.folder), shown)


def report_page(
    out: Annotated[Path | None, typer.Option(help="File; by default reports/report.html of the Navi home.")] = None,
    course: Annotated[str | None, typer.Option(help="Course of the rankings; by default that of the champion.")] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Write the warehouse's report as one self-contained HTML page, for offline use too."""
    from navi_pipeline.lib.reports.warehouse_report import run_report

    file = run_report(out=out, course=course, home=home)
    if as_json:
        print_json({"report": str(file), "bytes": file.stat().st_size})
    else:
        typer.echo(str(file))


@group.command("list")
def relations(home: Home = None, as_json: Json = False) -> None:
    """List views, tables and saved queries with their parameters; the same as `navi query` alone."""
    from navi_pipeline.cli.query import run_query

    run_query(None, home=home, as_json=as_json)


@group.command()
def show(
    name: Annotated[str, typer.Argument(help="A view, a table or a saved query.", autocompletion=relation_names)],
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show the meaning and the columns of a view or table, or the SQL and the parameters of a saved query."""
    from navi_pipeline.cli.query import run_query
    from navi_pipeline.lib.warehouse.reader import saved_query

    if (saved := saved_query(name)) is None:
        run_query(name, home=home, as_json=as_json)
    elif as_json:
        print_json({"name": saved.name, "meaning": saved.explanation, "parameters": saved.parameters, "sql": saved.sql})
    else:
        typer.echo(f"{saved.sql.strip()}\n")
        print_next(" ".join([f"navi query {saved.name}", *(f"{parameter}=…" for parameter in saved.parameters)]))


@group.command()
def compact(
    keep_days: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Thin metrics of older runs without a model, and drop older experiences of services (days).",
        ),
    ] = None,
    points: Annotated[int, typer.Option(min=2, help="Steps kept of a thinned run.")] = 500,
    keep_model_days: Annotated[
        float | None, typer.Option(min=0, help="Thin older runs with models, too (days).")
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Compact the warehouse: archive all rows as Parquet files in place of their segments, and shrink the database."""
    from navi_core.models import Registry, record_registry
    from navi_core.record import navi_home
    from navi_pipeline.lib.warehouse.warehouse import Warehouse

    warehouse = Warehouse(home)
    if keep_days is not None or keep_model_days is not None:
        # Runs that a model came from have a term of their own, whoever registered it.
        record_registry(Registry((home or navi_home()) / "models"), home)
    report = warehouse.compact(keep_days=keep_days, points=points, keep_model_days=keep_model_days)
    if as_json:
        print_json(report)
    else:
        facts = {"rows": report["rows"], "segments replaced": report["segments"], "rows thinned": report["thinned"]}
        print_facts(str(warehouse.archive.folder), {name: f"{number:,}" for name, number in facts.items()})


@group.command()
def publish(
    folder: Annotated[Path, typer.Argument(help="Folder of the history, which several homes share.")],
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Write all rows as Parquet by table, host and month to a history that `navi query --history FOLDER` reads."""
    from navi_pipeline.lib.warehouse.warehouse import Warehouse

    facts = Warehouse(home).publish_to(folder)
    if as_json:
        print_json(facts)
    else:
        print_facts(str(folder), {name: f"{n:,}" if isinstance(n, int) else n for name, n in facts.items()})
        typer.echo(f"next: navi query --history {as_argument(folder)} leaderboard")


def bench(
    rows: Annotated[int, Option(min=1, help="Metric rows of the queried warehouse.")] = 10_000_000,
    ingest_rows: Annotated[int, Option(min=1, help="Rows of each ingest.")] = 200_000,
    repeats: Annotated[int, Option(min=1, help="Turns of each; the median counts.")] = 7,
    *,
    progress: Progress,
) -> Report:
    """Benchmark the warehouse: ingest (rows/s), and queries over millions of rows (ms)."""
    from navi_pipeline.bench.warehouse import measure_ingest, measure_questions

    progress("folding in", 0.0, 1.0)
    measured = measure_ingest(ingest_rows, (40, 1000, 10_000), repeats)
    measured += measure_questions(rows, repeats, progress=lambda label: progress(label, 0.5, 1.0))
    columns = {
        "": figure("what"),
        "case": figure("name"),
        "value": figure("value", ",.0f"),
        "by CPU time": figure("cpu_value", ",.0f"),
        "unit": figure("unit"),
        "rows": figure("rows"),
    }
    return report("warehouse", measured, columns, words=2)


benchmarks.command("warehouse", help=bench.__doc__)(benchmark_command(bench))


def curves(
    curve: Annotated[
        list[str] | None,
        Option("drones, scenes, resolution, sequence, warehouse or triangles; may be repeated.", flag="--curve"),
    ] = None,
    charts: Annotated[Path | None, Option("Also draw every curve as an SVG file in this folder.")] = None,
    *,
    progress: Progress,
) -> Report:
    """Measure costs over sizes: drones, scenes, triangles, resolution, sequence length, warehouse rows; exponents."""
    from navi_pipeline.bench.curves import CURVES, machine_limits, measure_curves, write_charts

    names = known_names("curve", curve or CURVES, CURVES)
    found = list(measure_curves(names, lambda label: progress(label, 0.0, 1.0)))
    limits = machine_limits(found)
    lines = [
        f"{row['curve']}: {row['bytes']:,.0f} bytes for one more of {row['size']}; the {row['memory'] / 2**30:.0f} GiB "
        f"here end at about {row['most']:,.0f}"
        for row in limits
        if row["most"]
    ]
    if charts is not None:
        lines += [f"written: {file}" for file in write_charts(found, charts)]
    columns = {
        "curve": figure("curve"),
        "cost": figure("cost"),
        "over": figure("size"),
        "from": figure("first", ",.0f"),
        "to": figure("last", ",.0f"),
        "first": figure("first_cost", ".3g"),
        "last": figure("last_cost", ".3g"),
        "exponent": figure("exponent"),
        "at the end": figure("exponent_end"),
    }
    made = report("cost curves", [each.row() for each in found], columns, words=3)
    assert isinstance(made.document, dict)
    made.document["points"] = [
        {"curve": f"{each.name}: {each.cost}", "size": size, "cost": cost}
        for each in found
        for size, cost in each.points
    ]
    made.document["limits"] = limits
    return Report(made.document, made.tables, lines)


benchmarks.command("curves", help=curves.__doc__)(benchmark_command(curves))
