"""`navi export`: a trained policy for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from navi_core.terminal import print_json

_SUFFIXES = {"onnx": ".onnx", "aoti": ".pt2", "safetensors": ".safetensors"}


def register(app: typer.Typer) -> None:
    """Add `export` to the `navi` command."""
    app.command("export")(export)


def export(
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint file, a registered version or an alias.")],
    kind: Annotated[
        str,
        typer.Option(
            "--format", help="onnx, aoti (compiled for this machine) or safetensors (weights alone).", metavar="F"
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
    """Write a policy as an ONNX program, a compiled AOTInductor package, or plain weights.

    Programs take obs, aux, reset, state_0… and give action, value, latent, new_state_0… (docs/guides/EXPORT.md). Each
    flies 200 decisions beside the policy, resets included; one that strays by more than 1e-5 is deleted and the command
    fails.
    """
    from navi_core.errors import ConfigError
    from navi_core.models import Registry, export_checkpoint, export_safetensors, load_policy
    from navi_core.policy import parameter_counts, policy_macs
    from navi_core.record import navi_home

    if kind not in _SUFFIXES:
        raise ConfigError(f"--format {kind}; allowed: {', '.join(_SUFFIXES)}")
    source = Path(checkpoint)
    if not (source.suffix == ".pt" or source.is_file()):
        source = Registry(models if models is not None else navi_home() / "models").resolve(checkpoint).path
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
