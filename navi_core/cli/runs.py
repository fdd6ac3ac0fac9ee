"""`navi runs`: folders of training runs, and comparisons of them."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from navi_core.cli import completion
from navi_core.cli.models import Json
from navi_core.terminal import print_facts, print_json, print_next, print_table, print_text

app = typer.Typer(name="runs", help="Training runs: list, show, compare, remove.", no_args_is_help=True)
Root = Annotated[Path | None, typer.Option("--runs", help="Folder of the runs; by default runs/ of the Navi home.")]


@app.command("list")
def folders(runs: Root = None, as_json: Json = False) -> None:
    """List the training run folders, the largest first."""
    from navi_core.record.run_directory import run_folders

    found = run_folders(_root(runs))
    if as_json:
        print_json([asdict(folder) for folder in found])
        return
    if not found:
        print_text(f"No runs in {_root(runs)}; `navi train ppo --preset quick` begins one.")
        return
    rows = [
        (
            folder.name,
            f"{folder.size / 1e6:,.1f}",
            f"{folder.replays / 1e6:,.1f}",
            _time(folder.changed),
            "in use" if folder.in_use else "",
        )
        for folder in found
    ]
    total = sum(folder.size for folder in found) / 1e6
    print_table(
        "runs", ("run", "MB", "replays", "last written, UTC", "state"), rows, numbers=(1, 2),
        caption=f"{total:,.1f} MB in all; registered versions have copies of their own, and rows stay in the warehouse",
    )  # fmt: skip


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A run, as `navi runs list` calls it.", autocompletion=completion.runs)],
    runs: Root = None,
    as_json: Json = False,
) -> None:
    """Show a training run: when it began, its learner, length and seed, checkpoints, size, and the next commands."""
    import json

    from navi_core.errors import as_argument
    from navi_core.record.run_directory import find_run_folder

    folder, path = find_run_folder(_root(runs), name), _root(runs) / name
    config = json.loads((path / "config.json").read_text()).get("config", {})
    kept = sorted(file.name for file in (path / "checkpoints").glob("*.pt"))
    facts = {
        "began": folder.created_at or "unknown",
        "last written": _time(folder.changed),
        "state": "in use" if folder.in_use else "at rest",
        **{key: str(config[key]) for key in ("algorithm", "task", "seed") if config.get(key) is not None},
        "decisions": f"{config['total_steps']:,}" if config.get("total_steps") else "until stopped",
        "checkpoints": ", ".join(kept) or "none",
        "size": f"{folder.size / 1e6:,.1f} MB",
        "folder": str(path),
    }
    if as_json:
        print_json(asdict(folder) | {"path": str(path), "checkpoints": kept, "config": config})
        return
    print_facts(name, facts)
    print_next(f"navi settings --changed --config {as_argument(path / 'config.json')}")


@app.command()
def remove(
    names: Annotated[
        list[str],
        typer.Argument(help="Runs, named as in `navi runs list`.", show_default=False, autocompletion=completion.runs),
    ],
    runs: Root = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
) -> None:
    """Remove training run folders: their checkpoints, replays, logs and TensorBoard files.

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


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
