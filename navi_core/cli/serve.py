"""`navi environment` and `navi serve`: start the environment server and the policy server of the wire protocol."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.cli import completion
from navi_core.cli.models import open_registry
from navi_core.errors import ConfigError
from navi_core.terminal import print_facts, print_json

if TYPE_CHECKING:
    from navi_core.models import Registry
    from navi_core.service.server import Server

Scenes = Annotated[
    list[str] | None,
    typer.Option(
        "--scene",
        help="A .gmdag or mesh file, a folder of meshes, or family:seeds; may be repeated.",
        metavar="S",
        autocompletion=completion.scenes,
    ),
]
Resolution = Annotated[int, typer.Option(help="Compile resolution of meshes and generated scenes.")]
Models = Annotated[Path | None, typer.Option("--models", help="The registry; by default models/ of the Navi home.")]
Http = Annotated[str | None, typer.Option(help="host:port of the health and metrics pages; 0 takes any free port.")]
Mode = Annotated[str, typer.Option(help="step: fly when asked; stream: fly at the decision rate.")]
Json = Annotated[bool, typer.Option("--json", help="Print where the server listens as one JSON object.")]


app = typer.Typer()


# More than 60 lines: flags and their help.
@app.command()
def environment(
    scene: Scenes = None,
    like: Annotated[
        str | None, typer.Option(help="A checkpoint, version or alias whose observation and dynamics are used.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="explore or point_goal; by default what --like was trained for, else explore.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="Azimuth and elevation bins.", metavar="AZxEL")] = None,
    sessions: Annotated[int, typer.Option(min=1, max=4096, help="Drones.")] = 1,
    first_env_id: Annotated[int, typer.Option(min=0, help="Number of the first drone.")] = 0,
    mode: Mode = "step",
    pub: Annotated[str, typer.Option(help="Endpoint that publishes observations.")] = "tcp://127.0.0.1:5559",
    rep: Annotated[str, typer.Option(help="Endpoint that answers step requests.")] = "tcp://127.0.0.1:5560",
    sub: Annotated[list[str] | None, typer.Option(help="Actors whose actions are flown (stream).")] = None,
    http: Http = None,
    seed: Annotated[int, typer.Option(help="Seed of spawns and sensor faults.")] = 0,
    threads: Annotated[int, typer.Option(min=1, max=64, help="Threads of the ray kernels.")] = 1,
    resolution: Resolution = 512,
    models: Models = None,
    as_json: Json = False,
) -> None:
    """Start an environment server: simulates drones in scenes, steps them on request, publishes observations.

    Without --scene one generated apartment is flown. docs/reference/wire.md has the messages.
    """
    from navi_core.bench.report import sizes
    from navi_core.config import EnvConfig, EnvironmentConfig, parse_config
    from navi_core.record.home import load_scenes
    from navi_core.service.environment.server import EnvironmentServer
    from navi_core.service.policies.served_model import training_of
    from navi_core.world import Field

    env, vocabulary = EnvConfig(), None
    if like is not None:
        env, vocabulary = training_of(like, models)
    changes: dict[str, Any] = {}
    if task is not None and task != env.task:
        changes = {"task": task, "reward": env.reward.model_dump() | {"preset": task, "weights": {}}}
    if size is not None:
        ((azimuth, elevation),) = sizes([size])
        changes |= {"azimuth_bins": azimuth, "elevation_bins": elevation}
    env = parse_config(EnvConfig, env.model_dump() | changes)
    settings: dict[str, Any] = {
        "mode": mode,
        "publish": pub,
        "answer": rep,
        "sessions": sessions,
        "http": http,
        "first_env_id": first_env_id,
        "seed": seed,
        **({"actions": tuple(sub)} if sub else {}),
    }
    config = parse_config(EnvironmentConfig, settings)
    field = Field(load_scenes(scene or ["apartment:0"], resolution), threads=threads, vocabulary=vocabulary)
    server = EnvironmentServer(field, env, config)
    _run(
        server,
        {
            "observations": server.publisher.endpoint,
            "step requests": server.answer_endpoint or "none (mode stream)",
            "drones": f"{first_env_id} to {first_env_id + sessions - 1}",
            "pages": server.url or "none",
        },
        as_json,
    )


# More than 60 lines: flags and their help.
@app.command()
def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A .pt checkpoint, a .onnx or .pt2 program, a version or alias of the registry; by default champion, "
            "or latest where nothing was promoted."
        ),
    ] = None,
    sub: Annotated[list[str] | None, typer.Option(help="Endpoints of environments to answer; may be repeated.")] = None,
    pub: Annotated[str, typer.Option(help="Endpoint that publishes actions and telemetry.")] = "tcp://127.0.0.1:5557",
    mode: Mode = "step",
    step_endpoint: Annotated[
        str, typer.Option(help="Endpoint of the environment's step requests.")
    ] = "tcp://127.0.0.1:5560",
    runtime: Annotated[str, typer.Option(help="eager, onnx or aoti: how a checkpoint is computed.")] = "eager",
    device: Annotated[str, typer.Option(help="cpu or cuda: where a policy is computed by torch.")] = "cpu",
    max_sessions: Annotated[int, typer.Option(min=1, max=4096, help="Most drones at once.")] = 256,
    groups: Annotated[int, typer.Option(min=1, max=16, help="Parts of the drones that take turns.")] = 1,
    follow: Annotated[
        str | None, typer.Option(help="Alias whose moves are followed; by default MODEL where it is an alias.")
    ] = None,
    goal: Annotated[
        str | None,
        typer.Option(
            help="Goal of all drones (m), for a point-goal policy; by default the environment's.",
            metavar="X,Y,Z",
        ),
    ] = None,
    recovery: Annotated[
        bool | None,
        typer.Option(
            "--recovery/--no-recovery", help="Free drones that are stuck; by default as the policy's settings."
        ),
    ] = None,
    done_after: Annotated[
        int | None,
        typer.Option(help="Decisions without a way to a frontier after which a drone hovers; 0: never.", min=0),
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw actions instead of flying the mean.")] = False,
    gate: Annotated[
        bool, typer.Option("--gate", help="Simulate each motion first; no colliding motion is flown.")
    ] = False,
    learn: Annotated[bool, typer.Option("--learn", help="Learn from the flown decisions; draws actions.")] = False,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, gate.threshold=0 or training.batch_size=64.")
    ] = None,
    scene: Scenes = None,
    resolution: Resolution = 512,
    http: Http = None,
    seed: Annotated[int, typer.Option(help="Seed of sampled actions.")] = 0,
    threads: Annotated[int, typer.Option(min=1, max=64, help="Threads of one decision.")] = 1,
    models: Models = None,
    as_json: Json = False,
) -> None:
    """Start a policy server: batched inference for many drones, each with its own recurrent state, over the wire.

    Where MODEL is an alias and it moves, the new version takes over without losing a session. --gate needs
    --scene, the scenes that the drones are in; a shadow evaluation flies there, too.
    """
    import torch

    from navi_core.config import ActorConfig, ContinuousTrainingConfig, parse_config
    from navi_core.presets import parse_sections
    from navi_core.service.actor.build import running_actor

    torch.set_num_threads(threads)
    registry = open_registry(models)
    model = model or _default_model(registry)
    if follow is None and model in registry.aliases():
        follow = model
    given = parse_sections(assign, ("gate", "training"), "gate.threshold=0 or training.batch_size=64")
    if "gate" in given and not gate:
        raise ConfigError("--set gate.… without a gate; add --gate --scene FILE")
    if "training" in given and not learn:
        raise ConfigError("--set training.… without learning; add --learn")
    settings: dict[str, Any] = {
        "mode": mode,
        "publish": pub,
        "step_endpoint": step_endpoint,
        "runtime": runtime,
        "device": device,
        "max_sessions": max_sessions,
        "groups": groups,
        "follow": follow,
        "http": http,
        "goal": None if goal is None else _position(goal),
        "recovery": recovery,
        "done_after": done_after,
        "sample": sample or learn,
        "seed": seed,
        "threads": threads,
        "gate": given.get("gate", {}) if gate else None,
        **({"subscribe": tuple(sub)} if sub else {}),
    }
    config = parse_config(ActorConfig, settings)
    training = parse_config(ContinuousTrainingConfig, given.get("training", {})) if learn else None
    with running_actor(model, config, registry, scenes=scene or (), resolution=resolution, training=training) as server:
        facts = {
            "model": f"{server.model.name} ({server.model.path})",
            "actions and telemetry": server.publisher.endpoint,
            "observations from": ", ".join(config.subscribe),
            "steps": config.step_endpoint if config.mode == "step" else "none (mode stream)",
            "follows": config.follow or "nothing",
            "gate": "off" if config.gate is None else "on",
            "learning": "on" if training is not None and training.enabled else "off",
            "pages": server.url or "none",
        }
        _run(server, facts, as_json)


def _default_model(registry: Registry) -> str:
    """Return "champion"; where nothing was promoted yet, "latest" with a note."""
    aliases = registry.aliases()
    if "champion" in aliases or "latest" not in aliases:
        return "champion"
    typer.echo("no champion: latest serves; next: navi models promote latest", err=True)
    return "latest"


def _position(text: str) -> tuple[float, ...]:
    """Parse `X,Y,Z` into a position of three floats [m]."""
    try:
        x, y, z = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--goal {text!r} is no position; write X,Y,Z in metres, for instance 3.5,1.2,-4") from None
    return x, y, z


def _run(server: Server, facts: Mapping[str, str], as_json: bool) -> None:
    """Print the server's endpoints, serve until a signal, report the shutdown."""
    from navi_core.learn.run.process import StopFlag
    from navi_core.service.timed_lock import settle

    if as_json:
        print_json(dict(facts))
    else:
        print_facts(server.name, facts)
    settle()
    with StopFlag() as stopped:
        server.run(stopped)
    typer.echo(f"{server.name} stopped by {stopped.signal_name or 'request'}", err=True)
