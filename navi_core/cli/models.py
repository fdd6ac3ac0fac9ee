"""`navi models`: what the registry holds, where a version comes from, and taking an alias back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from navi_core.models import ModelVersion, Registry

__all__ = ["lineage", "register", "rollback", "show", "versions"]

Folder = Annotated[Path | None, typer.Option("--models", help="The registry; by default models/ of the Navi home.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def register(app: typer.Typer) -> None:
    """Add `models` to the `navi` command."""
    group = typer.Typer(help="Registered models: versions, aliases, lineage.", no_args_is_help=True)
    group.command("list")(versions)
    group.command("show")(show)
    group.command("lineage")(lineage)
    group.command("rollback")(rollback)
    app.add_typer(group, name="models")


def versions(models: Folder = None, as_json: Json = False) -> None:
    """List all versions, oldest first."""
    entries = _registry(models).list()
    if as_json:
        _print_json([entry.as_dict() for entry in entries])
    elif entries:
        _print_table(entries)
    else:
        typer.echo("No models are registered yet; `navi train ppo` registers one when it ends.")


def show(
    name: Annotated[str, typer.Argument(help="A version or an alias, e.g. v003 or champion.")],
    models: Folder = None,
    as_json: Json = False,
) -> None:
    """Show everything that is known about a version."""
    entry = _registry(models).resolve(name)
    if as_json:
        _print_json(entry.as_dict())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=entry.version, show_header=False)
    for key, value in entry.as_dict().items():
        if isinstance(value, dict):
            value = "\n".join(f"{k} = {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        table.add_row(key, "–" if value in (None, "") else str(value))
    # A pipe has no width; the table keeps its columns readable there too.
    Console(width=None if sys.stdout.isatty() else 140, markup=False).print(table)


def lineage(
    name: Annotated[str, typer.Argument(help="A version or an alias.")],
    models: Folder = None,
    as_json: Json = False,
) -> None:
    """Show what a version was trained from, back to the first."""
    entries = _registry(models).lineage(name)
    if as_json:
        _print_json([entry.as_dict() for entry in entries])
        return
    from rich.console import Console
    from rich.tree import Tree

    by_name = {entry.version: entry for entry in entries}

    def grow(parent: Tree, entry: ModelVersion) -> None:
        for version in entry.parents:
            grow(parent.add(_line(by_name[version])), by_name[version])

    tree = Tree(_line(entries[0]))
    grow(tree, entries[0])
    Console(markup=False).print(tree)


def rollback(
    alias: Annotated[str, typer.Argument(help="The alias to take back, e.g. champion.")] = "champion",
    models: Folder = None,
    as_json: Json = False,
) -> None:
    """Give an alias back to the version that held it before."""
    registry = _registry(models)
    entry = registry.rollback(alias)
    if as_json:
        _print_json({"alias": alias, "version": entry.version, "history": registry.history(alias)})
    else:
        typer.echo(f"{alias} → {entry.version} again")


def _registry(folder: Path | None) -> Registry:
    from navi_core.models import Registry
    from navi_core.record import navi_home

    return Registry(folder if folder is not None else navi_home() / "models")


def _line(entry: ModelVersion) -> str:
    aliases = f" ({', '.join(entry.aliases)})" if entry.aliases else ""
    return f"{entry.version}{aliases}: {entry.training_source}, {entry.step_id:,} steps, run {entry.run_id}"


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=1))


def _print_table(entries: list[ModelVersion]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Models")
    for heading in ("version", "aliases", "source", "encoder + core", "parents"):
        table.add_column(heading)
    for heading in ("steps", "reward_ema"):
        table.add_column(heading, justify="right")
    table.add_column("registered")
    for entry in entries:
        table.add_row(
            entry.version,
            ", ".join(entry.aliases),
            entry.training_source,
            f"{entry.encoder_backend} + {entry.temporal_core}",
            ", ".join(entry.parents),
            f"{entry.step_id:,}",
            "–" if entry.reward_ema is None else f"{entry.reward_ema:.4f}",
            entry.created_at[:16].replace("T", " "),
        )
    # A pipe has no width; the table keeps its columns readable there too.
    Console(width=None if sys.stdout.isatty() else 140, markup=False).print(table)
