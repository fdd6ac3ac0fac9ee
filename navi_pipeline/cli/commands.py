"""Registration of the pipeline's CLI commands; `navi` loads it through the entry point group `navi.commands`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from navi_core.cli import pages
from navi_core.cli.settings import add_settings
from navi_pipeline.cli import comparison as comparison  # adds to the engine's group `runs`
from navi_pipeline.cli import experiments, flights, results, study, warehouse
from navi_pipeline.cli import proof as proof  # adds to the engine's group `bench`


def register(app: typer.Typer) -> None:
    """Register the pipeline's commands with the Typer app; heavy modules are imported when a command runs."""
    app.command("query")(query)
    app.command("report")(warehouse.report_page)
    for group in (experiments.group, results.group, results.verify_group, study.group, warehouse.group):
        app.add_typer(group)
    add_settings("nightly", experiments.night_settings)
    flights.register(app)
    pages.comparison = _comparison


def _comparison(names: Sequence[str]) -> str:
    """Render the page that compares runs, for the dashboard."""
    from navi_pipeline.lib.reports.compared_runs import compared_runs, comparison_page

    return comparison_page(compared_runs(names))


def query(
    sql: Annotated[
        str | None,
        typer.Argument(help="DuckDB SQL, a saved query, or a view or table.", autocompletion=warehouse.relation_names),
    ] = None,
    values: Annotated[
        list[str] | None, typer.Argument(help="Parameters of a saved query: key=value, or values in its order.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of rows.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild the database from archive and segments first.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all rows of database and snapshot with archive and segments.")
    ] = False,
    home: Annotated[Path | None, typer.Option(help="Navi home; by default $NAVI_HOME or ./.navi.")] = None,
    history: Annotated[
        Path | None, typer.Option(help="Folder of `navi warehouse publish`: query several homes.")
    ] = None,
    course: Annotated[
        str | None, typer.Option(help="Course of rankings, by name or hash; by default the one of the champion.")
    ] = None,
) -> None:
    """Ingest new rows and query the warehouse: navi query "select * from leaderboard".

    Without SQL, lists views, tables and saved queries with their parameters. The name of a view or table explains
    its columns.
    """
    from navi_pipeline.cli.query import run_query

    run_query(
        sql,
        values or (),
        as_json=as_json,
        as_csv=as_csv,
        rebuild=rebuild,
        verify=verify,
        home=home,
        history=history,
        course=course,
    )
