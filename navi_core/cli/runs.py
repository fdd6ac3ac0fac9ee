"""`navi runs`: disk use of training runs, and their removal."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from navi_core.terminal import print_json, print_table

Root = Annotated[Path | None, typer.Option("--runs", help="Folder of the runs; by default runs/ of the Navi home.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def register(app: typer.Typer) -> None:
    """Add `runs` to the `navi` command."""
    group = typer.Typer(help="Folders of training runs: what they take, and removing them.", no_args_is_help=True)
    group.command("list")(folders)
    group.command("remove")(remove)
    app.add_typer(group, name="runs")


def folders(runs: Root = None, as_json: Json = False) -> None:
    """List the folders of runs, the largest first."""
    from navi_core.record.run_directory import run_folders

    found = run_folders(_root(runs))
    if as_json:
        print_json([asdict(folder) for folder in found])
        return
    if not found:
        typer.echo(f"No runs in {_root(runs)}; `navi train ppo` begins one.")
        return
    rows = [
        (
            folder.name,
            f"{folder.size / 1e6:,.1f}",
            f"{folder.replays / 1e6:,.1f}",
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(folder.changed)),
            "in use" if folder.in_use else "",
        )
        for folder in found
    ]
    total = sum(folder.size for folder in found) / 1e6
    print_table(
        "runs", ("run", "MB", "of it replays", "last written, UTC", ""), rows,
        caption=f"{total:,.1f} MB in all; registered versions have copies of their own, and rows stay in the warehouse",
    )  # fmt: skip


def remove(
    names: Annotated[list[str], typer.Argument(help="Runs, as `navi runs list` calls them.", show_default=False)],
    runs: Root = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove folders of runs: their checkpoints, replays, logs and TensorBoard files.

    Registered versions stay, as do the rows in the warehouse; the same command would train from the beginning.
    """
    from navi_core.record.run_directory import find_run_folder, remove_run_folder

    names = list(dict.fromkeys(names))
    found = [find_run_folder(_root(runs), name) for name in names]
    if not yes:
        listed = ", ".join(f"{run.name} ({run.size / 1e6:,.1f} MB{', in use' if run.in_use else ''})" for run in found)
        typer.confirm(f"Remove {listed}?", abort=True)
    for name in names:
        typer.echo(f"{name}: {remove_run_folder(_root(runs), name) / 1e6:,.1f} MB removed")


def _root(runs: Path | None) -> Path:
    from navi_core.record import navi_home

    return runs if runs is not None else navi_home() / "runs"
