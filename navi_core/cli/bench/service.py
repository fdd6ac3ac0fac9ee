"""`navi bench gate`, `gated-flight`, `service` and `soak`: the figures of the service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from navi_core.cli.bench.report import Json, Scenes, Threads, figure, report, sizes
from navi_core.cli.sections import parse_sections

__all__ = ["gate", "gated_flight", "register", "service", "soak"]

Size = Annotated[str, typer.Option(help="Azimuth and elevation bins.", metavar="AZxEL")]


def register(group: typer.Typer) -> None:
    """Add the service's benchmarks to the group `bench`."""
    group.command("gate")(gate)
    group.command("gated-flight")(gated_flight)
    group.command("service")(service)
    group.command("soak")(soak)


def gate(
    scene: Scenes = None,
    size: Size = "256x48",
    sessions: Annotated[int, typer.Option(min=1, max=4096, help="Drones judged in one batch.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Batches that are timed.")] = 50,
    decisions: Annotated[int, typer.Option(min=1, help="Decisions of the flights that are judged.")] = 50,
    threads: Threads = 1,
    seed: Annotated[int, typer.Option(help="Seed of starts and motions.")] = 0,
    as_json: Json = False,
) -> None:
    """Time the gate, and count which of a random policy's collisions it prevents and what it holds back in vain."""
    from navi_core.bench.gate import run_gate
    from navi_core.cli.evaluate import load_scenes

    ((azimuth, elevation),) = sizes([size])
    row = run_gate(
        load_scenes(scene or ["apartment:0", "maze:0"], 512),
        sessions=sessions,
        azimuth_bins=azimuth,
        elevation_bins=elevation,
        threads=threads,
        repeats=repeats,
        decisions=decisions,
        seed=seed,
    )
    columns = {
        "sessions": figure("sessions"),
        "substeps": figure("substeps"),
        "CPU p50 [ms]": figure("cpu_ms"),
        "p50 [ms]": figure("wall_ms"),
        "fastest [ms]": figure("fastest_ms"),
        "with slower ones [ms]": figure("slower_ms"),
        "motions": figure("motions"),
        "colliding": figure("colliding", ".3f"),
        "prevented": figure("prevented", ".3f"),
        "false WAIT": figure("false_wait", ".3f"),
        "collisions": figure("collisions_without"),
        "behind the gate": figure("collisions_behind"),
    }
    report("gate", [row.as_dict()], columns, as_json, threads=threads)


def gated_flight(
    model: Annotated[str, typer.Argument(help="A checkpoint, version or alias of the registry.")] = "champion",
    scene: Scenes = None,
    starts: Annotated[int, typer.Option(min=1, help="Starts in each scene.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Decisions of each flight.")] = 200,
    as_json: Json = False,
) -> None:
    """Fly a policy without the gate, behind it hovering for every WAIT, and behind it as it is served."""
    from navi_core.bench.gated_flight import run_gated_flight
    from navi_core.cli.evaluate import load_scenes
    from navi_core.service.policies.served_model import checkpoint_file, training_of
    from navi_core.terminal.progress import progress_bar

    env, vocabulary = training_of(model)
    file, _ = checkpoint_file(model)
    with progress_bar("flights") as progress:
        rows = run_gated_flight(
            file,
            env,
            vocabulary,
            load_scenes(scene or ["apartment:9000-9007"], 512),
            starts=starts,
            steps=steps,
            progress=progress,
        )
    columns = {
        "flown": figure("flown"),
        "metric": figure("metric"),
        "score": figure("score"),
        "difference": figure("difference"),
        "low": figure("low"),
        "high": figure("high"),
        "collisions/min": figure("collisions_per_minute"),
        "WAIT": figure("wait", ".3f"),
        "slower": figure("slower", ".3f"),
        "stands": figure("stands", ".3f"),
        "longest [s]": figure("longest", ".1f"),
    }
    report(f"{model} and the gate", [row.as_dict() for row in rows], columns, as_json, threads=1, words=2)


def service(
    scene: Annotated[str, typer.Option(help="Where the drones fly.", metavar="S")] = "apartment:0",
    size: Size = "256x48",
    encoder_backend: Annotated[str, typer.Option(help="rayvit, spherical_cnn, ring_cnn or your own.")] = "rayvit",
    temporal_core: Annotated[str, typer.Option(help="mamba2, gru, mambapy or one of your own.")] = "mamba2",
    runtime: Annotated[str, typer.Option(help="onnx or eager.")] = "onnx",
    device: Annotated[str, typer.Option(help="cpu, or cuda with the runtime eager.")] = "cpu",
    sessions: Annotated[list[int] | None, typer.Option(help="Drones; may be repeated, the first is the peer.")] = None,
    threads: Annotated[list[int] | None, typer.Option(help="Threads of both servers; may be repeated.")] = None,
    learn: Annotated[bool, typer.Option("--learn", help="Also with training behind, computed eagerly.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each case.")] = 6,
    decisions: Annotated[int, typer.Option(min=1, help="Decisions of each turn.")] = 200,
    as_json: Json = False,
) -> None:
    """Time the round trip through ZeroMQ: request, flight, observation, decision; one drone and many."""
    from navi_core.bench.service import run_service, service_cases
    from navi_core.cli.evaluate import load_scenes
    from navi_core.config import PolicyConfig, parse_config

    ((azimuth, elevation),) = sizes([size])
    network = {"encoder": encoder_backend, "core": temporal_core}
    config = parse_config(PolicyConfig, network | {"azimuth_bins": azimuth, "elevation_bins": elevation})
    (place,) = load_scenes([scene], 512)
    cases = service_cases(sessions or [1, 16], threads or [1, 2], learn)
    rows = [
        row.as_dict()
        for row in run_service(cases, place, config, runtime=runtime, device=device, rounds=rounds, decisions=decisions)
    ]
    columns = {
        "drones": figure("sessions"),
        "parts": figure("groups"),
        "threads each": figure("threads"),
        "learns": lambda row: "yes" if row["learns"] else "no",
        "p50 [ms]": figure("p50_ms"),
        "p99 [ms]": figure("p99_ms"),
        "inference [ms]": figure("inference_p50_ms"),
        "per s": figure("rate", ".0f"),
        "CPU [ms]": figure("cpu_ms"),
        "× one": figure("times_one"),
        "× one, CPU": figure("times_one_cpu"),
    }
    if learn:
        columns["buffer lock p50, p99, max, work [ms]"] = _lock
    report(
        f"{runtime} on {device}, {encoder_backend} + {temporal_core}, {size}",
        rows,
        columns,
        as_json,
        threads=max(threads or [1, 2]),
    )


def soak(
    scene: Annotated[str, typer.Option(help="Where the drones fly.", metavar="S")] = "apartment:0",
    model: Annotated[str | None, typer.Option(help="Checkpoint, version or alias; by default a drawn policy.")] = None,
    size: Annotated[str, typer.Option(help="Azimuth and elevation bins of a drawn policy.", metavar="AZxEL")] = "64x16",
    decisions: Annotated[int, typer.Option(min=100, help="Summed over drones.")] = 200_000,
    sessions: Annotated[int, typer.Option(min=1, max=4096, help="Drones.")] = 16,
    gate: Annotated[bool, typer.Option("--gate", help="What is flown passes the gate.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of weights, draws and samples.")] = 0,
    assign: Annotated[list[str] | None, typer.Option("--set", help="A setting, training.learning_rate=1e-4.")] = None,
    as_json: Json = False,
) -> None:
    """Learn in flight for long: memory, versions and counts, and how the live reward changes, with an interval.

    With --model and a --scene that it was not trained in this shows how it adapts.
    """
    import torch

    from navi_core.bench.soak import run_soak
    from navi_core.cli.evaluate import load_scenes
    from navi_core.config import (
        ActorConfig,
        ContinuousTrainingConfig,
        EnvConfig,
        GateConfig,
        PolicyConfig,
        parse_config,
    )
    from navi_core.errors import ConfigError
    from navi_core.policy import build_policy
    from navi_core.service.policies.runner import EagerRunner
    from navi_core.service.policies.served_model import ServedModel, load_model, training_of
    from navi_core.terminal.progress import progress_bar

    given = parse_sections(assign, ("training", "gate"), "training.learning_rate=1e-4")
    if "gate" in given and not gate:
        raise ConfigError("gate.* sets the gate, and none is asked for; add --gate")
    judge = parse_config(GateConfig, given.get("gate", {})) if gate else None
    torch.set_num_threads(1)
    ((azimuth, elevation),) = sizes([size])
    (place,) = load_scenes([scene], 512)
    if model is None:
        network = {"encoder": "ring_cnn", "core": "gru", "azimuth_bins": azimuth, "elevation_bins": elevation}
        runner = EagerRunner(build_policy(parse_config(PolicyConfig, network), seed), "drawn")
        served, env, vocabulary = ServedModel(runner.name, runner, None, Path()), EnvConfig(), None
    else:
        served = load_model(model, ActorConfig(sample=True, follow=None))
        env, vocabulary = training_of(str(served.path))
    training = parse_config(ContinuousTrainingConfig, given.get("training", {}))
    with progress_bar("soak", quiet=as_json, counted=True) as progress:
        row = run_soak(
            served, place, decisions=decisions, sessions=sessions, env=env, vocabulary=vocabulary, training=training,
            gate=judge, seed=seed, progress=progress,
        )  # fmt: skip
    columns = {
        "decisions": figure("decisions"),
        "WAIT, slower": lambda told: f"{told['wait']:.1%}, {told['slower']:.1%}" if told["gated"] else "no gate",
        "seconds": figure("seconds", ".0f"),
        "versions": figure("updates"),
        "errors": figure("errors"),
        "counts consistent": lambda told: "yes" if told["consistent"] else "no",
        "memory [MB]": figure("memory_mb", ".0f"),
        "grown in the second half [MB]": figure("growth_mb", ".1f"),
        "trainer's share of a core": figure("trainer_share", ".1%"),
        "lock held, p99 [ms]": figure("lock_p99_ms", ".3f"),
        "lock held, longest [ms]": figure("lock_max_ms", ".3f"),
        "a holder's work, longest [ms]": figure("lock_work_ms", ".3f"),
        "holders beyond 1 ms": figure("lock_long"),
        "an empty loop's work, longest [ms]": figure("idle_work_ms", ".3f"),
        "empty loops beyond 1 ms": figure("idle_long"),
        "buffer [MB]": figure("buffer_mb", ".1f"),
        "recorded [bytes]": figure("recorded_bytes", ".0f"),
        "episodes": figure("episodes"),
        "live reward, first fifth": figure("reward_first", ".4f"),
        "live reward, last fifth": figure("reward_last", ".4f"),
        "gain, 95 %": _gain,
    }
    report(f"soak, {served.name} in {scene}", [row.as_dict()], columns, as_json, threads=1)


def _gain(told: Mapping[str, Any]) -> str:
    """Return what learning gained; a dash where too few episodes ended to say."""
    gain, error = told["gain"], told["gain_error"]
    return f"{gain:+.4f} ± {error:.4f}" if gain == gain and error == error else "–"


def _lock(row: dict[str, Any]) -> str:
    """Return how long the experience buffer is locked, where it learns."""
    parts = (row[f"lock_{name}_ms"] for name in ("p50", "p99", "max", "work"))
    return ", ".join(f"{part:.3f}" for part in parts) if row["learns"] else ""
