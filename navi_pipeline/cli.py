"""The pipeline's commands, found by `navi` through the entry point group `navi.commands`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `demo` and `query` to the `navi` command; nothing heavy is imported before one of them runs."""
    app.command("demo")(demo)
    app.command("query")(query)


def demo(
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of scenes, training and evaluation.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Run the whole graph: scenes, training, evaluation against two pilots, promotion.

    Scenes are generated; every mesh under $NAVI_SCENES is added when that is set. What has not changed
    since the last run is skipped.
    """
    from navi_pipeline.demo import run_demo

    run_demo(seed=seed, as_json=as_json)


def query(
    sql: Annotated[str | None, typer.Argument(help="DuckDB SQL, or the name of a saved query.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array of rows.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the database anew from outbox/done first.")] = False,
    home: Annotated[Path | None, typer.Option(help="Navi home; by default $NAVI_HOME or ./.navi.")] = None,
) -> None:
    """Fold new rows in and ask the warehouse: navi query "select * from leaderboard".

    Without SQL, lists the views, the tables and the saved queries.
    """
    from navi_pipeline.query import run_query

    run_query(sql, as_json=as_json, rebuild=rebuild, home=home)
