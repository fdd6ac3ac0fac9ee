"""`navi models`: model registry, and export to ONNX, AOTInductor and safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from navi_core.cli import completion
from navi_core.errors import ConfigError, did_you_mean
from navi_core.terminal import console, print_facts, print_json, print_table

if TYPE_CHECKING:
    from navi_core.models import ModelVersion, Registry

Folder = Annotated[Path | None, typer.Option("--models", help="The registry; by default models/ of the Navi home.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


app = typer.Typer(
    name="models", help="Registered models: list, show, promote, roll back, export.", no_args_is_help=True
)


@app.command("list")
def versions(models: Folder = None, as_json: Json = False) -> None:
    """List all registered model versions, oldest first."""
    entries = open_registry(models).list()
    if as_json:
        print_json([entry.as_dict() for entry in entries])
    elif entries:
        _print_table(entries)
    else:
        typer.echo("No models are registered yet; `navi train ppo --preset quick` registers one when it ends.")


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="A version or an alias, e.g. v003 or champion.", autocompletion=completion.versions)
    ],
    models: Folder = None,
    as_json: Json = False,
) -> None:
    """Show all metadata of a registered version."""
    entry = open_registry(models).resolve(name)
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


@app.command()
def lineage(
    name: Annotated[str, typer.Argument(help="A version or an alias.", autocompletion=completion.versions)],
    models: Folder = None,
    as_json: Json = False,
) -> None:
    """Show the lineage (parent versions) of a version, back to the first."""
    entries = open_registry(models).lineage(name)
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


@app.command()
def register(
    file: Annotated[Path, typer.Argument(help="A checkpoint file (.pt) of another home, machine or run.")],
    parent: Annotated[
        list[str] | None,
        typer.Option(
            help="A version or alias it was trained from; may be repeated. By default what its own registry or the "
            "file names."
        ),
    ] = None,
    notes: Annotated[str, typer.Option(help="Note, free text.")] = "",
    tag: Annotated[list[str] | None, typer.Option(help="A free label; may be repeated.")] = None,
    models: Folder = None,
    as_json: Json = False,
) -> None:
    """Register a checkpoint file that another home or machine made, with its ancestors where it lies in a registry.

    Weights, hashes and size are checked, and nothing in the file is executed. Registering it again changes nothing.
    """
    from navi_core.models import record_registry, register_file

    registry = open_registry(models)
    versions = register_file(registry, file, parents=parent or (), notes=notes, tags=tag or ())
    record_registry(registry)
    entries = [registry.resolve(version) for version in versions]
    if as_json:
        print_json({"version": versions[0], "registered": [entry.as_dict() for entry in entries]})
        return
    for entry in entries:
        typer.echo(_line(entry))
    typer.echo(f"next: navi evaluate {versions[0]}, or navi models promote {versions[0]}")


@app.command()
def rollback(
    alias: Annotated[str, typer.Argument(help="Alias to roll back, such as champion.")] = "champion",
    models: Folder = None,
    as_json: Json = False,
) -> None:
    """Roll an alias back to the version that held it before."""
    from navi_core.models import record_registry

    registry = open_registry(models)
    entry = registry.rollback(alias)
    record_registry(registry)
    if as_json:
        print_json({"alias": alias, "version": entry.version, "history": registry.history(alias)})
    else:
        typer.echo(f"{alias} → {entry.version} again")


def open_registry(folder: Path | None) -> Registry:
    """Open the model registry in a folder, by default that of the Navi home."""
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


_SUFFIXES = {"onnx": ".onnx", "aoti": ".pt2", "safetensors": ".safetensors"}


@app.command()
def export(
    checkpoint: Annotated[
        str,
        typer.Argument(help="A checkpoint file, a registered version or an alias.", autocompletion=completion.versions),
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            help="onnx, aoti (compiled for this machine) or safetensors (weights alone).",
            metavar="F",
            autocompletion=lambda: list(_SUFFIXES),
        ),
    ] = "onnx",
    out: Annotated[Path | None, typer.Option(help="File to write; by default policy with the format's suffix.")] = None,
    rows: Annotated[int, typer.Option(min=1, max=65536, help="Observations of a call (onnx, aoti).")] = 1,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Threads of the compiled package (aoti).")] = 1,
    models: Annotated[
        Path | None, typer.Option("--models", help="The registry; by default models/ of the Navi home.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Export a policy as an ONNX program, a compiled AOTInductor package, or plain weights (safetensors).

    Programs take obs, aux, reset, state_0… and give action, value, latent, new_state_0… (docs/how-to/export.md). Each
    flies 200 decisions beside the policy, resets included; one that strays by more than 1e-5 is deleted and the command
    fails.
    """
    from navi_core.models import export_checkpoint, export_safetensors, load_policy
    from navi_core.policy import parameter_counts, policy_macs

    if kind not in _SUFFIXES:
        raise ConfigError(f"--format {kind}; {did_you_mean(kind, _SUFFIXES)}allowed: {', '.join(_SUFFIXES)}")
    source = Path(checkpoint)
    if not (source.suffix == ".pt" or source.is_file()):
        source = open_registry(models).resolve(checkpoint).path
    target = out if out is not None else Path(f"policy{_SUFFIXES[kind]}")
    result: dict[str, object] = {"checkpoint": str(source), "format": kind}
    if kind == "safetensors":
        result["path"] = str(export_safetensors(source, target))
    else:
        path, parity = export_checkpoint(source, target, kind=kind, rows=rows, threads=threads)
        result |= {"path": str(path), "rows": rows, "parity": vars(parity)}
    policy, _ = load_policy(source)
    result |= {"bytes": target.stat().st_size, "parameters": parameter_counts(policy), "macs": policy_macs(policy)}
    if as_json:
        print_json(result)
        return
    typer.echo(f"{result['path']}: {target.stat().st_size:,} bytes")
    if "parity" in result:
        typer.echo(
            f"parity over {parity.steps} decisions with {parity.resets} resets: action {parity.action:.1e}, "
            f"value {parity.value:.1e}, latent {parity.latent:.1e}, state {parity.state:.1e}"
        )
    counts, macs = parameter_counts(policy), policy_macs(policy)
    for part in counts:
        typer.echo(f"  {part:8} {counts[part]:>10,} parameters {macs[part] / 1e6:>9.2f} M multiply-accumulates")
