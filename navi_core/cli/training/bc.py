"""`navi train bc`: behaviour cloning of recorded demonstrations, and registration of the resulting version."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.cli import completion
from navi_core.cli.models import open_registry
from navi_core.cli.training.flags import (
    Assign,
    ConfigFile,
    Partition,
    Preset,
    Register,
    RunRoot,
    Strict,
    partition_or_preset,
    without_none,
)
from navi_core.cli.training.inputs import enter_version, initial_weights
from navi_core.cli.training.train import app, log_on_stderr, resumed, show_record
from navi_core.terminal import progress_bar

if TYPE_CHECKING:
    from navi_core.config import TrainConfig
    from navi_core.demos import Dataset


@app.command()
def bc(
    demos: Annotated[
        list[Path] | None,
        typer.Option(
            "--demos",
            help="Dataset folder; may be repeated. By default recordings/ of the Navi home ($NAVI_DEMOS), else its "
            "newest dataset below demos/.",
            metavar="DIR",
        ),
    ] = None,
    preset: Preset = None,
    config: ConfigFile = None,
    assign: Assign = None,
    strict: Strict = False,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and split.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the demonstrations.")] = None,
    encoder_backend: Annotated[str | None, typer.Option(help="Encoder; see policy.encoder.")] = None,
    temporal_core: Annotated[str | None, typer.Option(help="Temporal core; see policy.core.")] = None,
    init: Annotated[
        str | None,
        typer.Option(
            "--from",
            "--init",
            "--checkpoint",
            help="Alias, version or checkpoint to start from; by default new weights.",
            autocompletion=completion.versions,
        ),
    ] = None,
    run_root: RunRoot = None,
    asset: Annotated[str, typer.Option(help="Asset of the run; part of its key.")] = "bc",
    partition: Partition = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not resume an earlier run of the same command.")] = False,
    register: Register = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Train a policy by behaviour cloning of demonstrations, resuming where the same command stopped.

    Observation size and range are those of the data. The result is a checkpoint that `navi evaluate` flies and
    `navi train ppo --from` learns on from.
    """
    from navi_core.demos import home_dataset
    from navi_core.presets import resolve_config

    with log_on_stderr():
        folders = demos or [home_dataset()]
        if not demos:
            typer.echo(f"demonstrations: {folders[0]}", err=True)
        data = _read(folders)
        bins = {"azimuth_bins": data.azimuth_bins, "elevation_bins": data.elevation_bins}
        values = without_none({"seed": seed}) | {
            "algorithm": "bc",
            "bc": {"data": data.content_hash} | without_none({"epochs": epochs}),
            "env": {**bins, "max_distance": data.max_distance},
            "policy": bins | without_none({"encoder": encoder_backend, "core": temporal_core}),
        }
        resolved = resolve_config(
            preset=preset, file=config, flags=values, assignments=assign or (), command="bc", strict=strict
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
    show_record(record, as_json, _facts)


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
    """Run behaviour cloning on one dataset and register the resulting version.

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
    from navi_core.learn import EventBus, clone, console_progress
    from navi_core.record import RunDirectory, navi_home

    registry = open_registry(None)
    root = run_root if run_root is not None else navi_home() / "runs"
    initial = initial_weights(registry, init)
    with RunDirectory.open(root, asset=asset, partition=partition, config=config, fresh=fresh) as run:
        with console_progress(events := EventBus(), f"{asset}/{partition}"):
            result = clone(config, run, data, events=events, initial=initial)
        version, latest = enter_version(registry, result, "bc") if register else (None, False)
    return {
        "run_id": result.run_id,
        "checkpoint": str(result.checkpoint),
        "version": version,
        "latest": latest,
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


def _facts(record: dict[str, Any]) -> dict[str, str]:
    """Build the human-readable summary of a finished behaviour cloning run."""
    metrics = record["metrics"]
    best = f"{metrics['best_validation_nll']:.4f} (epoch {metrics['best_epoch']:.0f})" if metrics else "none yet"
    return {
        "demonstrations": f"{record['decisions']:,} decisions, {record['episodes']} episodes, "
        f"{record['scenes']} scene{'s' * (record['scenes'] != 1)}",
        "epochs": f"{record['epochs']}{resumed(record)}",
        "ended by": record["reason"],
        "NLL": f"{metrics['nll']:.4f}" if metrics else "none yet",
        "held-out NLL": best,
    }
