"""The flags of commands that train, and the configuration that they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.errors import ConfigError

if TYPE_CHECKING:
    from navi_core.config import TrainConfig

__all__ = [
    "AsJson",
    "Asset",
    "Assign",
    "ConfigFile",
    "EncoderBackend",
    "Fresh",
    "Init",
    "Noisy",
    "Partition",
    "Preset",
    "Register",
    "Rows",
    "RunRoot",
    "SceneFiles",
    "Seed",
    "Steps",
    "Task",
    "TemporalCore",
    "flagged_config",
    "partition_or_preset",
]

_FLIGHTS: dict[str, dict[str, Any]] = {
    "explore": {},
    "point_goal": {"policy": {"place_memory": True, "log_std_init": -1.2, "recovery": True}},
}
"""Tasks that are flown in scenes, and what they want of any preset; every other task is a reference task.

With the noise that finds new floor, 0.6 of full speed, flights in training rarely stop at a goal, and it is learned
slowly; on large floors many do not find the way to a goal without a map; and a flight now and then pushes against a
wall to its end (docs/RESULTS.md, "Point goals")."""

Preset = Annotated[
    str | None, typer.Option(help="Preset: demo, quick, rooms, rooms_standard, scans, standard, or a .yaml file.")
]
ConfigFile = Annotated[Path | None, typer.Option(help="YAML or JSON file of settings.")]
Assign = Annotated[list[str] | None, typer.Option("--set", help="A setting, a.b=c; may be repeated.")]
Seed = Annotated[int | None, typer.Option(help="Seed of every random draw.")]
Steps = Annotated[
    int | None,
    typer.Option(
        help="Decisions summed over rows; without it, until stopped. Another number is another run, with as many "
        "decisions of its own: it begins with the weights of latest."
    ),
]
Rows = Annotated[int | None, typer.Option(help="Environment rows.")]
EncoderBackend = Annotated[
    str | None, typer.Option(help="rayvit, spherical_cnn, ring_cnn or user-defined (NAVI_PLUGINS).")
]
TemporalCore = Annotated[str | None, typer.Option(help="mamba2, gru, mambapy, none or user-defined (NAVI_PLUGINS).")]
SceneFiles = Annotated[
    list[str] | None,
    typer.Option(
        help="A .gmdag or mesh file to train in, a folder, or generated scenes (apartment:0-11); may be repeated."
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        help="point_goal: fly to goals, with policy.place_memory, policy.recovery and less noise "
        "(policy.log_std_init) unless --set or a file changes it; or a reference task without scenes: cart_pole, …"
    ),
]
Noisy = Annotated[bool, typer.Option("--noisy", help="Train with the noisy sensor of the evaluation protocol.")]
RunRoot = Annotated[Path | None, typer.Option(help="Folder of runs; by default runs/ of the Navi home.")]
Asset = Annotated[str | None, typer.Option(help="What the run is for; part of its key.")]
Partition = Annotated[str | None, typer.Option(help="Which one of it; by default the preset's name.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Neither resume the run nor start from a version.")]
Init = Annotated[
    str | None,
    typer.Option(
        "--init",
        "--from",
        help="Weights of a new run: an alias, a version, a checkpoint, or none. By default latest, "
        "and none for dqn and for a run with --asset or --task.",
    ),
]
Register = Annotated[bool, typer.Option(help="Enter the result into the registry of versions.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def flagged_config(
    algorithm: str,
    preset: str | None,
    file: Path | None,
    assign: list[str] | None,
    scenes: list[str] | None,
    top: dict[str, Any],
    policy: dict[str, Any],
    noisy: bool = False,
) -> TrainConfig:
    """Return the configuration that a command's flags mean.

    Args:
        algorithm: Of the run.
        preset: Name or file.
        file: Of settings.
        assign: Of --set.
        scenes: Files, folders or generated scenes to train in.
        top: Flags by the setting they give; None gives nothing.
        policy: Likewise, of the section policy.
        noisy: Whether the drones' sensor is the noisy one of the protocol.

    Raises:
        ConfigError: A setting is unknown or impossible.
    """
    from navi_core.config import NOISY_SENSOR
    from navi_core.presets import merge, resolve_config

    flags: dict[str, Any] = {"algorithm": algorithm} | {k: v for k, v in top.items() if v is not None}
    defaults: dict[str, Any] = {}
    if (flight := flags.get("task")) in _FLIGHTS:
        del flags["task"]
        flags["env"], defaults = {"task": flight, "reward": {"preset": flight}}, _FLIGHTS[flight]
    if noisy:
        flags = merge(flags, {"env": {"sensor": NOISY_SENSOR.model_dump()}})
    network = {k: v for k, v in policy.items() if v is not None}
    if network:
        flags = merge(flags, {"policy": network})
    if scenes:
        flags["corpus"] = {"scenes": scenes}
    config = resolve_config(preset=preset, defaults=defaults, file=file, flags=flags, assignments=assign or ())
    wanted = config.env.task
    if flight != wanted != "explore" and config.task is None and config.env.reward.preset != wanted:
        typer.echo(
            f"warning: env.task={wanted} alone keeps the reward preset {config.env.reward.preset} and sets nothing of "
            f"what the task wants of a policy; --task {wanted} does both",
            err=True,
        )
    if scenes and config.task is not None:
        raise ConfigError(f"--scene is for flights; the task {config.task} has no scenes. Leave it out")
    if noisy and config.task is not None:
        raise ConfigError(f"--noisy is for flights; the task {config.task} has no such sensor. Leave it out")
    return config


def partition_or_preset(partition: str | None, preset: str | None) -> str:
    """Return the partition of a run: the given one, or the name of its preset."""
    return partition or (Path(preset).stem if preset else "default")
