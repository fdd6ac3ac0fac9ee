"""`navi bench encoder`, `core` and `serve`: the policy's parts, as ratios to a named peer in one run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

__all__ = ["core", "encoder", "register", "serve"]

Threads = Annotated[int, typer.Option(min=1, help="Torch threads.")]
Repeats = Annotated[int, typer.Option(min=1, help="Turns that each takes; the median counts.")]
Json = Annotated[bool, typer.Option("--json", help="Print the rows as one JSON object.")]


def register(group: typer.Typer) -> None:
    """Add the policy's benchmarks to the group `bench`."""
    group.command("encoder")(encoder)
    group.command("core")(core)
    group.command("serve")(serve)


def encoder(
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--encoder",
            help="materialised, rayvit, rayvit+area, spherical_cnn, spherical_cnn+separable or ring_cnn; "
            "may be repeated, the first is the peer.",
        ),
    ] = None,
    size: Annotated[list[str] | None, typer.Option(help="Azimuth x elevation bins; may be repeated.")] = None,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Observations of a call.")] = 32,
    threads: Threads = 1,
    repeats: Repeats = 7,
    as_json: Json = False,
) -> None:
    """Time forward and backward of the encoders, count their operations and what they keep for the backward."""
    from navi_core.bench import encoder as bench

    cases = bench.encoder_cases(
        tuple(variant) if variant else tuple(bench.ENCODER_VARIANTS), _sizes(size or ["256x48"]), batch
    )
    rows = [row.as_dict() for row in bench.run_encoder(cases, threads=threads, repeats=repeats)]
    columns = {
        "encoder": "encoder",
        "size": "size",
        "parameters": "parameters",
        "mmacs": "M MAC",
        "forward_ms": "forward [ms]",
        "both_ms": "fwd+bwd [ms]",
        "saved_mb": "saved [MB]",
        "speedup": f"× {cases[0].variant}",
    }
    _report(f"encoders, batch {batch}, {_threads(threads)}, CPU time", columns, rows, as_json)


def core(
    name: Annotated[
        list[str] | None,
        typer.Option("--core", help="gru, mamba2, mambapy or mamba-ssm (CUDA only); may be repeated."),
    ] = None,
    shape: Annotated[list[str] | None, typer.Option(help="Rows x steps; may be repeated.")] = None,
    layers: Annotated[int, typer.Option(min=1, max=4, help="Layers of each core.")] = 1,
    threads: Threads = 1,
    repeats: Repeats = 15,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Time forward and backward of the temporal cores with state and resets, against the framework's GRU."""
    from navi_core.bench import core as bench

    cases = bench.core_cases(tuple(name) if name else None, _sizes(shape or ["64x8", "8x256"]), layers)
    rows = [row.as_dict() for row in bench.run_core(cases, threads=threads, repeats=repeats, device=device)]
    columns = {
        "core": "core",
        "shape": "rows x steps",
        "layers": "layers",
        "parameters": "parameters",
        "state_floats": "state",
        "step_ms": "step [ms]",
        "both_ms": "fwd+bwd [ms]",
        "times_peer": "× torch-gru time",
    }
    _report(f"temporal cores, {_threads(threads)}, {device}", columns, rows, as_json)


def serve(
    runtime: Annotated[
        list[str] | None, typer.Option(help="onnx or aoti (compiles for a minute); may be repeated.")
    ] = None,
    size: Annotated[list[str] | None, typer.Option(help="Azimuth x elevation bins; may be repeated.")] = None,
    encoder_backend: Annotated[str, typer.Option(help="rayvit, spherical_cnn or ring_cnn.")] = "rayvit",
    temporal_core: Annotated[str, typer.Option(help="mamba2, gru or mambapy.")] = "mamba2",
    rows: Annotated[int, typer.Option(min=1, max=4096, help="Observations of a call.")] = 1,
    threads: Threads = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Decisions of each.")] = 300,
    as_json: Json = False,
) -> None:
    """Time one decision with recurrent state: the policy itself, ONNX Runtime and AOTInductor."""
    from navi_core.bench import serve as bench
    from navi_core.config import PolicyConfig, parse_config

    configs = [
        parse_config(
            PolicyConfig,
            {"encoder": encoder_backend, "core": temporal_core, "azimuth_bins": azimuth, "elevation_bins": elevation},
        )
        for azimuth, elevation in _sizes(size or ["256x48"])
    ]
    cases = bench.serve_cases(configs, tuple(runtime) if runtime else None, rows)
    measured = [row.as_dict() for row in bench.run_serve(cases, threads=threads, repeats=repeats)]
    columns = {
        "runtime": "runtime",
        "policy": "policy",
        "size": "size",
        "p50_ms": "p50 [ms]",
        "p95_ms": "p95 [ms]",
        "cpu_ms": "CPU p50 [ms]",
        "ratio": "× eager CPU",
        "strays": "strays",
        "build_seconds": "build [s]",
    }
    _report(f"one decision of {rows} row{'s' if rows > 1 else ''}, {_threads(threads)}", columns, measured, as_json)


def _sizes(texts: Sequence[str]) -> list[tuple[int, int]]:
    from navi_core.errors import ConfigError

    sizes = []
    for text in texts:
        first, cross, second = text.partition("x")
        if not cross or not first.isdecimal() or not second.isdecimal() or not 0 < int(first) * int(second) <= 2**24:
            raise ConfigError(f"{text!r} is not of the form AxB, for example 256x48")
        sizes.append((int(first), int(second)))
    return sizes


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _report(title: str, columns: dict[str, str], rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    from navi_core.record import hardware_profile

    profile = hardware_profile()
    if as_json:
        payload = {"rows": list(rows), "hardware": profile["hardware"], "versions": profile["versions"]}
        typer.echo(json.dumps(payload, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{title}, {profile['hardware']}")
    for key, heading in columns.items():
        table.add_column(heading, no_wrap=True, justify="left" if isinstance(rows[0][key], str) else "right")
    for row in rows:
        table.add_row(*(_cell(row[key]) for key in columns))
    # A pipe has no width; the table keeps its columns readable there too.
    Console(width=None if sys.stdout.isatty() else 140, markup=False).print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.1e}" if 0 < abs(value) < 0.005 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
