"""`navi bench encoder`, `core` and `serve`: the policy's parts, as ratios to a named peer in one run."""

from __future__ import annotations

from typing import Annotated

import typer

from navi_core.cli.bench.report import Json, Repeats, Sizes, Threads, figure, report, sizes

__all__ = ["core", "encoder", "register", "serve"]


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
            help="materialised, rayvit, rayvit+area, spherical_cnn, spherical_cnn+separable, ring_cnn or your own; "
            "may be repeated, the first is the peer.",
        ),
    ] = None,
    size: Sizes = None,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Observations of a call.")] = 32,
    threads: Threads = 1,
    repeats: Repeats = 7,
    as_json: Json = False,
) -> None:
    """Time forward and backward of the encoders, count their operations and what they keep for the backward."""
    from navi_core.bench import encoder as bench

    cases = bench.encoder_cases(
        tuple(variant) if variant else tuple(bench.ENCODER_VARIANTS), sizes(size or ["256x48"]), batch
    )
    rows = [row.as_dict() for row in bench.run_encoder(cases, threads=threads, repeats=repeats)]
    columns = {
        "encoder": figure("encoder"),
        "size": figure("size"),
        "parameters": figure("parameters"),
        "M MAC": figure("mmacs"),
        "forward [ms]": figure("forward_ms"),
        "fwd+bwd [ms]": figure("both_ms"),
        "saved [MB]": figure("saved_mb"),
        f"× {cases[0].variant}": figure("speedup"),
    }
    report(f"encoders, batch {batch}, CPU time", rows, columns, as_json, threads=threads, words=2)


def core(
    name: Annotated[
        list[str] | None,
        typer.Option("--core", help="gru, mamba2, mambapy, mamba-ssm (CUDA only) or one of your own; may be repeated."),
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

    cases = bench.core_cases(tuple(name) if name else None, sizes(shape or ["64x8", "8x256"], "--shape"), layers)
    rows = [row.as_dict() for row in bench.run_core(cases, threads=threads, repeats=repeats, device=device)]
    columns = {
        "core": figure("core"),
        "rows x steps": figure("shape"),
        "layers": figure("layers"),
        "parameters": figure("parameters"),
        "state": figure("state_floats"),
        "step [ms]": figure("step_ms"),
        "fwd+bwd [ms]": figure("both_ms"),
        "× torch-gru time": figure("times_peer"),
    }
    report(f"temporal cores, {device}", rows, columns, as_json, threads=threads, words=2)


def serve(
    runtime: Annotated[
        list[str] | None, typer.Option(help="onnx or aoti (compiles for a minute); may be repeated.")
    ] = None,
    size: Sizes = None,
    encoder_backend: Annotated[str, typer.Option(help="rayvit, spherical_cnn, ring_cnn or your own.")] = "rayvit",
    temporal_core: Annotated[str, typer.Option(help="mamba2, gru, mambapy or one of your own.")] = "mamba2",
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
        for azimuth, elevation in sizes(size or ["256x48"])
    ]
    cases = bench.serve_cases(configs, tuple(runtime) if runtime else None, rows)
    measured = [row.as_dict() for row in bench.run_serve(cases, threads=threads, repeats=repeats)]
    columns = {
        "runtime": figure("runtime"),
        "policy": figure("policy"),
        "size": figure("size"),
        "p50 [ms]": figure("p50_ms"),
        "p95 [ms]": figure("p95_ms"),
        "CPU p50 [ms]": figure("cpu_ms"),
        "× eager CPU": figure("ratio"),
        "strays": figure("strays"),
        "build [s]": figure("build_seconds"),
    }
    title = f"one decision of {rows} row{'s' if rows > 1 else ''}"
    report(title, measured, columns, as_json, threads=threads, words=3)
