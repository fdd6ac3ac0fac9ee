"""`navi models`: the registry's versions, their lineage, and moving an alias back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from navi_core.terminal import console, print_facts, print_json, print_table

if TYPE_CHECKING:
    from navi_core.models import ModelVersion, Registry

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
        print_json([entry.as_dict() for entry in entries])
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
        print_json(entry.as_dict())
        return
    facts = {}
    for key, value in entry.as_dict().items():
        if isinstance(value, dict):
            value = "\n".join(f"{k} = {v}" for k, v in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        facts[key] = "–" if value in (None, "") else str(value)
    print_facts(entry.version, facts)


def lineage(
    name: Annotated[str, typer.Argument(help="A version or an alias.")],
    models: Folder = None,
    as_json: Json = False,
) -> None:
    """Show the lineage of a version, back to the first."""
    entries = _registry(models).lineage(name)
    if as_json:
        print_json([entry.as_dict() for entry in entries])
        return
    from rich.tree import Tree

    by_name = {entry.version: entry for entry in entries}

    def grow(parent: Tree, entry: ModelVersion) -> None:
        for version in entry.parents:
            grow(parent.add(_line(by_name[version])), by_name[version])

    tree = Tree(_line(entries[0]))
    grow(tree, entries[0])
    console().print(tree)


def rollback(
    alias: Annotated[str, typer.Argument(help="The alias to take back, e.g. champion.")] = "champion",
    models: Folder = None,
    as_json: Json = False,
) -> None:
    """Give an alias back to the version that held it before."""
    from navi_core.models import record_registry

    registry = _registry(models)
    entry = registry.rollback(alias)
    record_registry(registry)
    if as_json:
        print_json({"alias": alias, "version": entry.version, "history": registry.history(alias)})
    else:
        typer.echo(f"{alias} → {entry.version} again")


def _registry(folder: Path | None) -> Registry:
    from navi_core.models import Registry
    from navi_core.record import navi_home

    return Registry(folder if folder is not None else navi_home() / "models")


def _line(entry: ModelVersion) -> str:
    aliases = f" ({', '.join(entry.aliases)})" if entry.aliases else ""
    return f"{entry.version}{aliases}: {entry.training_source}, {entry.step_id:,} steps, run {entry.run_id}"


def _print_table(entries: list[ModelVersion]) -> None:
    headings = ("version", "aliases", "source", "encoder + core", "parents", "registered", "steps", "reward_ema")
    rows = (
        (
            entry.version,
            ", ".join(entry.aliases),
            entry.training_source,
            f"{entry.encoder_backend} + {entry.temporal_core}",
            ", ".join(entry.parents),
            entry.created_at[:16].replace("T", " "),
            f"{entry.step_id:,}",
            "–" if entry.reward_ema is None else f"{entry.reward_ema:.4f}",
        )
        for entry in entries
    )
    print_table("Models", headings, rows, words=6)
