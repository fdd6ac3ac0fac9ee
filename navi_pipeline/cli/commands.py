"""The pipeline's commands, found by `navi` through the entry point group `navi.commands`."""

from pathlib import Path
from typing import Annotated

import typer

from navi_pipeline.cli import ablate as cli_ablate
from navi_pipeline.cli import nightly as cli_nightly
from navi_pipeline.cli import study as cli_study
from navi_pipeline.cli import warehouse as cli_warehouse


def register(app: typer.Typer) -> None:
    """Add the pipeline's commands to `navi`; nothing heavy is imported before one of them runs."""
    app.command("demo")(demo)
    app.command("materialize")(materialize)
    app.command("query")(query)
    app.command("sweep")(sweep)
    cli_warehouse.register(app)
    cli_nightly.register(app)
    cli_study.register(app)
    cli_ablate.register(app)


def demo(
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of scenes, training and evaluation.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Run the way to a champion: scenes, training, evaluation against two pilots, promotion.

    Scenes are generated; every mesh under $NAVI_SCENES is added when that is set. What has not changed
    since the last run is skipped.
    """
    from navi_pipeline.cli.demo import run_demo

    run_demo(seed=seed, as_json=as_json)


def materialize(
    profile: Annotated[
        str, typer.Option(help="Training profile, a preset: demo, quick, rooms, rooms_standard, scans, standard.")
    ] = "quick",
    size: Annotated[str, typer.Option(help="Size of the sweeps: quick or full.")] = "quick",
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the training runs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Materialize every asset of the graph, and print the time of each and the cost of Dagster itself.

    What has not changed since the last time is reused.
    """
    from navi_pipeline.cli.materialize import run_graph

    run_graph(profile=profile, size=size, seed=seed, as_json=as_json)


def query(
    sql: Annotated[str | None, typer.Argument(help="DuckDB SQL, a saved query, or a view or table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of rows.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the database anew from outbox/done first.")] = False,
    home: Annotated[Path | None, typer.Option(help="Navi home; by default $NAVI_HOME or ./.navi.")] = None,
) -> None:
    """Fold new rows in and ask the warehouse: navi query "select * from leaderboard".

    Without SQL, lists the views, the tables and the saved queries; the name of a view or table explains its columns.
    """
    from navi_pipeline.cli.query import run_query

    run_query(sql, as_json=as_json, as_csv=as_csv, rebuild=rebuild, home=home)


def sweep(
    name: Annotated[str | None, typer.Argument(help="The sweep; without one they are listed.")] = None,
    profile: Annotated[str, typer.Option(help="quick (2,000 decisions or 20 s a cell) or full.")] = "quick",
    preset: Annotated[str | None, typer.Option(help="Settings that do not vary: demo, quick, standard.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Repeats of each cell.")] = None,
    steps: Annotated[int | None, typer.Option(help="Decisions of a cell.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Training time of a cell [s].")] = None,
    timeout: Annotated[float | None, typer.Option(help="Wall time after which a cell is killed [s].")] = None,
    memory_limit: Annotated[float | None, typer.Option(help="Address space of a cell [GiB].")] = None,
    threads: Annotated[int | None, typer.Option(help="Torch threads of a cell; 0 measures what is best.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure every cell anew.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Vary one thing, measure each combination in its own process, and print the result.

    Memory that runs out, a crash and a time-out are outcomes of their cell. Cells that are done are not
    measured again, so a sweep that was interrupted goes on.
    """
    from navi_pipeline.cli.sweep import run_sweep

    settings = {
        "profile": profile,
        "preset": preset,
        "seeds": seeds,
        "steps": steps,
        "seconds": seconds,
        "timeout": timeout,
        "memory_limit": memory_limit,
        "threads": threads,
    }
    run_sweep(name, settings, again=again, as_json=as_json)
