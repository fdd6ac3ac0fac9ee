"""`navi bc`: clone the teacher of recorded demonstrations, and register the version."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.cli.training.flags import (
    Assign,
    ConfigFile,
    Partition,
    Preset,
    Register,
    RunRoot,
    partition_or_preset,
)
from navi_core.terminal import print_facts, print_json, progress_bar

if TYPE_CHECKING:
    from navi_core.config import TrainConfig
    from navi_core.demos import Dataset


app = typer.Typer()


@app.command()
def bc(
    demos: Annotated[list[Path], typer.Option("--demos", help="Dataset folder; may be repeated.", metavar="DIR")],
    preset: Preset = None,
    config: ConfigFile = None,
    assign: Assign = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and split.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the demonstrations.")] = None,
    encoder_backend: Annotated[str | None, typer.Option(help="Encoder; see policy.encoder.")] = None,
    temporal_core: Annotated[str | None, typer.Option(help="Temporal core; see policy.core.")] = None,
    init: Annotated[
        str | None,
        typer.Option(
            "--from", "--init", help="Go on from an alias, a version or a checkpoint; by default new weights."
        ),
    ] = None,
    run_root: RunRoot = None,
    asset: Annotated[str, typer.Option(help="What the run is for; part of its key.")] = "bc",
    partition: Partition = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not resume an earlier run of the same command.")] = False,
    register: Register = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Clone demonstrations (behaviour cloning), resuming where the same command stopped.

    Observation size and range are those of the data. The result is a checkpoint that `navi evaluate` flies and
    `navi train ppo --from` learns on from.
    """
    from navi_core.cli.training.train import log_on_stderr

    with log_on_stderr():
        data = _read(demos)
        resolved = _resolve(
            data,
            preset=preset,
            file=config,
            assign=assign or (),
            flags={"seed": seed, "epochs": epochs, "encoder": encoder_backend, "core": temporal_core},
        )
        record = run_cloning(
            resolved,
            data,
            run_root=run_root,
            asset=asset,
            partition=partition_or_preset(partition, preset),
            fresh=fresh,
            init=init,
            register=register,
        )
    _show(record, as_json)


# More than 60 lines: its arguments and the keys of its record.
def run_cloning(
    config: TrainConfig,
    data: Dataset,
    *,
    run_root: Path | None = None,
    asset: str = "bc",
    partition: str = "default",
    fresh: bool = False,
    init: str | None = None,
    register: bool = True,
) -> dict[str, Any]:
    """Clone one dataset, from demonstrations to a registered version.

    Args:
        config: Full configuration, `algorithm` "bc".
        data: The demonstrations.
        run_root: Folder of runs; by default `runs/` of the Navi home.
        asset: What the run is for.
        partition: Which one of it.
        fresh: Move an earlier run of the same key aside and start anew.
        init: Weights of a new run: an alias, a version, a checkpoint file; None or `none` for new weights.
        register: Enter the result into the registry; otherwise its version is None.

    Returns:
        Plain data: run_id, checkpoint, version, latest, initial, steps, epochs, reason, resumed_from, metrics, …

    Raises:
        NaviError: As `navi_core.learn.clone`, the run directory and the registry do.
    """
    from navi_core.cli.training.versions import initial_weights, parent_versions
    from navi_core.learn import clone, console_progress
    from navi_core.models import Registry, record_registry
    from navi_core.record import RunDirectory, navi_home

    registry = Registry(navi_home() / "models")
    root = run_root if run_root is not None else navi_home() / "runs"
    initial = initial_weights(registry, init)
    with RunDirectory.open(root, asset=asset, partition=partition, config=config, fresh=fresh) as run:
        with console_progress(f"{asset}/{partition}") as progress:
            result = clone(config, run, data, progress=progress, initial=initial)
        numbers: dict[str, float | None] = {
            k: result.metrics[k] for k in ("nll", "best_validation_nll", "best_epoch") if k in result.metrics
        }
        version = None
        if register:
            version = registry.register(
                result.checkpoint,
                parents=parent_versions(registry, result.initial),
                metrics={"steps": float(result.steps), **numbers},
                notes=f"{result.run_id}, ended by {result.reason}",
                tags=("bc",),
            )
            record_registry(registry)
    return {
        "run_id": result.run_id,
        "checkpoint": str(result.checkpoint),
        "version": version,
        "latest": version is not None and registry.aliases().get("latest") == version,
        "initial": result.initial,
        "steps": result.steps,
        "epochs": result.updates,
        "demonstrations": data.content_hash,
        "decisions": len(data),
        "episodes": len(data.episodes),
        "scenes": len({episode.scene for episode in data.episodes}),
        "wall_time_hours": result.wall_time_hours,
        "reason": result.reason,
        "resumed_from": result.resumed_from,
        "metrics": result.metrics,
    }


def _read(folders: list[Path]) -> Dataset:
    from navi_core.demos import load_dataset, read_index

    total = sum(len(read_index(folder)["files"]) for folder in folders)
    done = itertools.count(1)
    with progress_bar("reading", counted=True) as progress:
        return load_dataset(folders, lambda path: progress(str(path), next(done), total))


def _resolve(
    data: Dataset, *, preset: str | None, file: Path | None, assign: Sequence[str], flags: dict[str, Any]
) -> TrainConfig:
    from navi_core.presets import resolve_config

    bins = {"azimuth_bins": data.azimuth_bins, "elevation_bins": data.elevation_bins}
    values: dict[str, Any] = {
        "algorithm": "bc",
        "bc": {"data": data.content_hash},
        "env": {**bins, "max_distance": data.max_distance},
        "policy": dict(bins),
    }
    for name, section, key in (
        ("seed", values, "seed"),
        ("epochs", values["bc"], "epochs"),
        ("encoder", values["policy"], "encoder"),
        ("core", values["policy"], "core"),
    ):
        if flags[name] is not None:
            section[key] = flags[name]
    return resolve_config(preset=preset, file=file, flags=values, assignments=assign)


def _show(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(record)
        return
    metrics = record["metrics"]
    resumed = f" (resumed from {record['resumed_from']:,})" if record["resumed_from"] is not None else ""
    best = f"{metrics['best_validation_nll']:.4f} (epoch {metrics['best_epoch']:.0f})" if metrics else "none yet"
    version = f"{record['version']}{', now latest' if record['latest'] else ''}"
    facts = {
        "version": version if record["version"] else "none: it was not to be registered",
        "demonstrations": f"{record['decisions']:,} decisions, {record['episodes']} episodes, "
        f"{record['scenes']} scenes",
        "epochs": f"{record['epochs']}{resumed}",
        "ended by": record["reason"],
        "NLL": f"{metrics['nll']:.4f}" if metrics else "none yet",
        "held-out NLL": best,
        "training time": f"{60 * record['wall_time_hours']:.1f} min",
        "checkpoint": record["checkpoint"],
    }
    print_facts(record["run_id"], facts)
