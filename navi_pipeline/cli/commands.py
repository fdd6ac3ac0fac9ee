"""Registration of the pipeline's CLI commands; `navi` loads it through the entry point group `navi.commands`."""

from pathlib import Path
from typing import Annotated

import typer

from navi_pipeline.cli import experiments, flights, study
from navi_pipeline.cli import warehouse as cli_warehouse


def register(app: typer.Typer) -> None:
    """Register the pipeline's commands with the Typer app; heavy modules are imported when a command runs."""
    app.command("demo")(demo)
    app.command("materialize")(materialize)
    app.command("query")(query)
    cli_warehouse.register(app)
    experiments.register(app)
    study.register(app)
    flights.register(app)


def demo(
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of scenes, training and evaluation.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Run the demo, from scenes to a champion: training, evaluation against two scripted pilots, promotion.

    Scenes are generated; every mesh under $NAVI_SCENES is added if that is set. Unchanged results are reused.
    """
    from navi_pipeline.cli.graph import run_demo

    run_demo(seed=seed, as_json=as_json)


def materialize(
    profile: Annotated[
        str, typer.Option(help="Training profile, a preset: demo, quick, rooms, rooms_standard, scans, standard.")
    ] = "quick",
    size: Annotated[str, typer.Option(help="Size of the sweeps: quick or full.")] = "quick",
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the training runs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Materialize every asset of the graph, and print each duration and Dagster's overhead.

    Unchanged results are reused.
    """
    from navi_pipeline.cli.graph import run_graph

    run_graph(profile=profile, size=size, seed=seed, as_json=as_json)


def query(
    sql: Annotated[str | None, typer.Argument(help="DuckDB SQL, a saved query, or a view or table.")] = None,
    values: Annotated[
        list[str] | None, typer.Argument(help="Parameters of a saved query: key=value, or values in its order.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of rows.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the database anew from outbox/done first.")] = False,
    home: Annotated[Path | None, typer.Option(help="Navi home; by default $NAVI_HOME or ./.navi.")] = None,
    history: Annotated[
        Path | None, typer.Option(help="Folder of navi warehouse publish: ask about several homes.")
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
        home=home,
        history=history,
        course=course,
    )
