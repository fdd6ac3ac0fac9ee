"""CLI commands `navi results list`, `measure`, `export`, and `navi verify results`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from navi_core.errors import RunError
from navi_core.terminal import print_json, print_next, print_records

group = typer.Typer(name="results", help="Published figures: list, measure, export.", no_args_is_help=True)
verify_group = typer.Typer(name="verify", help="Check published figures.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def _report(line: str) -> None:
    typer.echo(line, err=True)


@group.command("list")
def list_tables(as_json: Json = False) -> None:
    """List the declared tables: figures published, time and command."""
    from navi_pipeline.lib.reports.published import declared_tables, published_figures

    published = [name.partition("/")[0] for name in published_figures()]
    rows: list[dict[str, Any]] = [
        {"table": name, "figures": published.count(name), "min": table.minutes, "command": f"navi {table.command}"}
        for name, table in declared_tables().items()
    ]
    print_json(rows) if as_json else print_records("published tables", rows)


@group.command("measure")
def measure_tables(
    tables: Annotated[list[str] | None, typer.Argument(help="Tables; by default all.")] = None,
) -> None:
    """Run the commands of tables and record their figures in the warehouse, table by table."""
    from navi_pipeline.lib.reports.published import publish

    found = publish(tables or (), _report)
    print_records("measured", [{"figure": name, **one.model_dump()} for name, one in found.items()])
    print_next("navi results export")


@group.command("export")
def export_figures(
    home: Annotated[Path | None, typer.Option(help="Navi home; by default $NAVI_HOME or ./.navi.")] = None,
) -> None:
    """Write the latest measurement of each table to docs/results/figures.csv, from which the pages are made."""
    from navi_pipeline.lib.reports.published import export

    typer.echo(f"{export(home)} figures in docs/results/figures.csv")
    print_next("python docs/site/results_pages.py")


def verify_results(
    sample: Annotated[int, typer.Option(min=1, help="Number of figures, drawn by the hash of the commit.")] = 10,
    most_minutes: Annotated[float | None, typer.Option(help="Leave out commands that take longer (min).")] = None,
    as_json: Json = False,
) -> None:
    """Measure a sample of the published figures again; exit code 1 if one does not hold within its interval."""
    from navi_pipeline.lib.reports.published import verify

    rows = verify(sample, _report, most_minutes)
    print_json(rows) if as_json else print_records("published figures", rows)
    if failed := [row["figure"] for row in rows if not row["holds"]]:
        raise RunError(f"{len(failed)} of {len(rows)} figures do not hold: {', '.join(failed)}")


verify_group.command("results")(verify_results)
verify_group.callback()(lambda: None)  # a group of one command would else be that command
