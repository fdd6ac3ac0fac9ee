"""Command-line flags shared by the training commands, and the configuration they resolve to."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.cli import completion
from navi_core.errors import ConfigError

if TYPE_CHECKING:
    from navi_core.config import TrainConfig

_FLIGHTS: dict[str, dict[str, Any]] = {
    "explore": {},
    "point_goal": {"policy": {"place_memory": True, "log_std_init": -1.2, "recovery": True}},
}
"""Flight tasks with their overrides of the preset; every other task is a reference task.

With the noise that finds new floor, 0.6 of full speed, flights in training rarely stop at a goal, and it is learned
slowly; on large floors many do not find the way to a goal without a map; and a flight now and then pushes against a
wall to its end."""

Preset = Annotated[
    str | None,
    typer.Option(
        help="Preset: demo, generalist, quick, rooms, rooms_standard, scans, standard, or a .yaml file.",
        autocompletion=completion.presets,
    ),
]
ConfigFile = Annotated[Path | None, typer.Option(help="YAML or JSON file of settings.")]
Assign = Annotated[list[str] | None, typer.Option("--set", help="A setting, a.b=c; may be repeated.")]
RunRoot = Annotated[Path | None, typer.Option(help="Folder of runs; by default runs/ of the Navi home.")]
Partition = Annotated[str | None, typer.Option(help="Partition of the asset; by default the preset's name.")]
Register = Annotated[bool, typer.Option(help="Register the result as a version.")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse settings that this run does not read.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


@dataclass(frozen=True)
class TrainFlags:
    """Dataclass of the flags of a training command; each field's annotation is its typer option."""

    preset: Preset = None
    config: ConfigFile = None
    assign: Assign = None
    strict: Strict = False
    seed: Annotated[int | None, typer.Option(help="Seed of every draw; with it a new run begins with new weights.")] = (
        None
    )
    steps: Annotated[
        int | None,
        typer.Option(
            help="Decisions summed over rows; without it, until stopped. Another number is another run, with as many "
            "decisions of its own: it begins with the weights of latest."
        ),
    ] = None
    actors: Annotated[int | None, typer.Option(help="Environment rows.")] = None
    encoder_backend: Annotated[
        str | None, typer.Option(help="rayvit, spherical_cnn, ring_cnn or user-defined (NAVI_PLUGINS).")
    ] = None
    temporal_core: Annotated[
        str | None, typer.Option(help="mamba2, gru, mingru, mambapy, none or user-defined (NAVI_PLUGINS).")
    ] = None
    scene: Annotated[
        list[str] | None,
        typer.Option(
            help="A .gmdag or mesh file to train in, a folder, or generated scenes (apartment:0-11); may be repeated.",
            autocompletion=completion.scenes,
        ),
    ] = None
    task: Annotated[
        str | None,
        typer.Option(
            help="point_goal: fly to goals, with policy.place_memory, policy.recovery and less noise "
            "(policy.log_std_init) unless --set or a file changes it; or a reference task without scenes: cart_pole, …"
        ),
    ] = None
    noisy: Annotated[bool, typer.Option("--noisy", help="Train with the noisy sensor of the evaluation protocol.")] = (
        False
    )
    run_root: RunRoot = None
    asset: Annotated[str | None, typer.Option(help="Asset of the run; part of its key.")] = None
    partition: Partition = None
    fresh: Annotated[bool, typer.Option("--fresh", help="Neither resume the run nor start from a version.")] = False
    init: Annotated[
        str | None,
        typer.Option(
            "--init",
            "--from",
            "--checkpoint",
            help="Weights of a new run: an alias, a version, a checkpoint, or none. By default latest, "
            "and none for dqn and for a run with --seed, --asset or --task.",
        ),
    ] = None

    def resolve(self, algorithm: str, command: str = "train") -> TrainConfig:
        """Resolve the flags, preset, file and `--set` to the training configuration.

        Args:
            algorithm: Name of the learner.
            command: train or learner.

        Raises:
            ConfigError: A setting is unknown or impossible, or, with `strict`, not read.
        """
        from navi_core.config import NOISY_SENSOR
        from navi_core.presets import merge, resolve_config

        given = {"seed": self.seed, "total_steps": self.steps, "actors": self.actors, "task": self.task}
        network = without_none({"encoder": self.encoder_backend, "core": self.temporal_core})
        flags: dict[str, Any] = {"algorithm": algorithm} | without_none(given)
        defaults: dict[str, Any] = {}
        if (flight := self.task) in _FLIGHTS:
            del flags["task"]
            flags["env"], defaults = {"task": flight, "reward": {"preset": flight}}, _FLIGHTS[flight]
        if self.noisy:
            flags = merge(flags, {"env": {"sensor": NOISY_SENSOR.model_dump()}})
        if network:
            flags = merge(flags, {"policy": network})
        if self.scene:
            flags["corpus"] = {"scenes": self.scene}
        config = resolve_config(
            preset=self.preset, defaults=defaults, file=self.config, flags=flags, assignments=self.assign or (),
            command=command, strict=self.strict,
        )  # fmt: skip
        wanted = config.env.task
        if flight != wanted != "explore" and config.task is None and config.env.reward.preset != wanted:
            typer.echo(
                f"warning: env.task={wanted} alone keeps the reward preset {config.env.reward.preset} and the policy's "
                f"settings; --task {wanted} sets both",
                err=True,
            )
        for flag, used in (("--scene", self.scene), ("--noisy", self.noisy)):
            if used and config.task is not None:
                raise ConfigError(f"{flag} is for flights, and the task {config.task} is none. Leave it out")
        return config

    def place(self, asset: str) -> dict[str, Any]:
        """Return `run_training`'s keyword arguments for run folder and run key; `asset` is the default asset."""
        return {
            "run_root": self.run_root,
            "asset": self.asset or asset,
            "partition": partition_or_preset(self.partition, self.preset),
            "fresh": self.fresh,
        }


def without_none(given: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a dictionary without the entries whose value is None."""
    return {name: value for name, value in given.items() if value is not None}


def expand_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator that expands a command's first parameter, `flags: TrainFlags`, into one option per field."""
    parameters = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    options = [*inspect.signature(TrainFlags, eval_str=True).parameters.values(), *parameters]

    def run(**given: Any) -> None:  # noqa: ANN401 (values by their flags)
        flags = {field.name: given.pop(field.name) for field in fields(TrainFlags)}
        command(TrainFlags(**flags), **given)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in options}
    run.__doc__ = command.__doc__
    return run


def partition_or_preset(partition: str | None, preset: str | None) -> str:
    """Return the partition of a run: the given one, else the name of its preset."""
    return partition or (Path(preset).stem if preset else "default")
