"""Benchmark of inference: latency of one decision with recurrent state, for every available runtime.

The peer `eager` is the policy itself under `torch.inference_mode`. The others are exported as by `navi models export`
and must pass the same parity check. A server runs only one of them, so each makes many decisions in a row before the
next one's turn. Alternating calls would evict each other's weights from the caches and cost about a quarter more.
"""

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from navi_core.bench.report import Option, Report, Row, Sizes, Threads, figure, known_names, report, sizes
from navi_core.bench.timing import WALL, median, take_turns
from navi_core.config import PolicyConfig, parse_config
from navi_core.errors import ConfigError, install_command
from navi_core.learn.run.process import torch_threads
from navi_core.models import export_policy, load_exported
from navi_core.models.exported import example_inputs
from navi_core.policy import NavigationPolicy, build_policy

_IN_A_ROW = 25

RUNTIMES = {"eager": "", "onnx": ".onnx", "aoti": ".pt2"}
"""Runtime → file suffix of its exported policy; the first is the peer."""


def runtime_names(names: Sequence[str] | None = None) -> list[str]:
    """Return the inference runtimes to measure, by default the available ones; eager PyTorch is the reference.

    Raises:
        ConfigError: An unknown runtime, or onnx asked for by name where it is not installed.
    """
    chosen = known_names("runtime", ("eager", *(RUNTIMES if names is None else names)), RUNTIMES)
    missing = [name for name in ("onnxruntime", "onnxscript") if importlib.util.find_spec(name) is None]
    if "onnx" in chosen and missing:
        if names is not None:
            raise ConfigError(f"runtime onnx needs {missing[0]}: {install_command('export')}")
        chosen.remove("onnx")
    return chosen


def run_serve(
    configs: Sequence[PolicyConfig], runtimes: Sequence[str], rows: int = 1, *, threads: int = 1, repeats: int = 300
) -> Iterator[Row]:
    """Benchmark every policy with every runtime; the runtimes of one policy take turns.

    Args:
        configs: Policies.
        runtimes: From `runtime_names`.
        rows: Observations B of a call.
        threads: Threads of a call.
        repeats: Decisions of each; quantiles are over them.

    Yields:
        Rows with the keys:
        runtime: Name of the runtime.
        policy: Encoder + core.
        size: Azimuth × elevation bins.
        rows: Observations of a call.
        threads: Threads of a call.
        p50_ms: Median wall time of a decision [ms].
        p95_ms: 95th percentile of it [ms].
        cpu_ms: Median process CPU time of a decision [ms].
        ratio: CPU time over that of `eager` in this run.
        strays: Largest difference to the policy over 200 recurrent decisions.
        build_seconds: Time to export and load [s].

    Raises:
        CheckpointError: An export strays from its policy.
    """
    with torch_threads(threads), tempfile.TemporaryDirectory() as folder:
        for config in configs:
            policy = build_policy(config).eval()
            built = {name: _build(policy, name, rows, Path(folder), threads) for name in runtimes}
            times = take_turns(
                {name: call for name, (call, _, _) in built.items()}, repeats, warmup=20, in_a_row=_IN_A_ROW
            )
            peer = median(times["eager"])
            for name, (_, strays, seconds) in built.items():
                cpu = median(times[name])
                yield {
                    "runtime": name,
                    "policy": f"{config.encoder} + {config.core}",
                    "size": f"{config.azimuth_bins}x{config.elevation_bins}",
                    "rows": rows,
                    "threads": threads,
                    "p50_ms": 1e3 * median(times[name], WALL),
                    "p95_ms": 1e3 * float(np.quantile(times[name][:, WALL], 0.95)),
                    "cpu_ms": 1e3 * cpu,
                    "ratio": cpu / peer,
                    "strays": strays,
                    "build_seconds": seconds,
                }


def _build(
    policy: NavigationPolicy, runtime: str, rows: int, folder: Path, threads: int
) -> tuple[Callable[[], None], float, float]:
    """Build a runtime's recurrent decision function; return it with its parity error and build time [s]."""
    start = time.perf_counter()
    strays = 0.0
    obs, aux, _, *zero = example_inputs(policy, rows)
    going = torch.zeros(rows, dtype=torch.bool)
    state = tuple(zero)
    if runtime == "eager":

        def call() -> None:
            nonlocal state
            with torch.inference_mode():
                state = policy.act(obs, aux, state, going, None).state

    else:
        path = folder / f"policy{RUNTIMES[runtime]}"
        _, parity = export_policy(policy, path, kind=runtime, rows=rows, threads=threads)
        strays = parity.worst
        exported = load_exported(path, threads=threads)

        def call() -> None:
            nonlocal state
            state = exported.act(obs, aux, going, state).state

    return call, strays, time.perf_counter() - start


def serve(
    runtime: Annotated[list[str] | None, Option(help="onnx or aoti (compiles for a minute); may be repeated.")] = None,
    size: Sizes = None,
    encoder_backend: Annotated[str, Option(help="rayvit, spherical_cnn, ring_cnn or user-defined.")] = "rayvit",
    temporal_core: Annotated[str, Option(help="mamba2, gru, mingru, mambapy or user-defined.")] = "mamba2",
    rows: Annotated[int, Option(min=1, max=4096, help="Observations of a call.")] = 1,
    threads: Threads = 1,
    repeats: Annotated[int, Option(min=1, help="Decisions of each.")] = 300,
) -> Report:
    """Benchmark one decision with every inference runtime."""
    network = {"encoder": encoder_backend, "core": temporal_core}
    configs = [
        parse_config(PolicyConfig, network | {"azimuth_bins": azimuth, "elevation_bins": elevation})
        for azimuth, elevation in sizes(size or ["256x48"])
    ]
    measured = list(run_serve(configs, runtime_names(runtime or None), rows, threads=threads, repeats=repeats))
    title = f"one decision of {rows} row{'s' if rows > 1 else ''}"
    return report(
        title,
        measured,
        {
            "runtime": figure("runtime"),
            "policy": figure("policy"),
            "size": figure("size"),
            "p50 [ms]": figure("p50_ms"),
            "p95 [ms]": figure("p95_ms"),
            "CPU p50 [ms]": figure("cpu_ms"),
            "× eager CPU": figure("ratio"),
            "strays": figure("strays"),
            "build [s]": figure("build_seconds"),
        },
        threads=threads,
        words=3,
    )
