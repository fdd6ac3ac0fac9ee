"""`navi train …`, `navi train apex` and `navi train actor`: compile the scenes, train, register the version."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from navi_core.cli.models import open_registry
from navi_core.cli.parsing import StrictCommand
from navi_core.cli.training.flags import AsJson, Register, TrainFlags, expand_flags
from navi_core.cli.training.inputs import (
    AUTO,
    OFF,
    Publish,
    compiled_scenes,
    enter_version,
    fitting_latest,
    initial_weights,
    reward_of,
    watchable,
)
from navi_core.errors import ConfigError, did_you_mean
from navi_core.terminal import print_facts, print_json, print_next

if TYPE_CHECKING:
    from navi_core.config import TrainConfig
    from navi_core.scenes import CompiledScene

_LEARNERS = {
    "ppo": "Train by proximal policy optimisation",
    "grpo": "Train by group-relative policy optimisation, without a critic",
    "dpo": "Train by direct preference optimisation, on pairs of rollouts or of a file (dpo.pairs)",
    "dqn": "Train by double deep Q-learning with prioritised replay",
}


class _Learners(TyperGroup):
    """Command group of the learners; plugins' learners are looked up for listings and unknown names."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 (typer's click is private)
        """Return the command of a learner, built-in or of a plugin.

        Raises:
            ConfigError: No learner has that name.
        """
        if cmd_name not in self.commands:
            self._add_own()
        if cmd_name not in self.commands:
            from navi_core.config.registry import PLUGINS_VARIABLE

            raise ConfigError(
                f"no learner {cmd_name!r} to train by; {did_you_mean(cmd_name, self.commands)}"
                f"allowed: {', '.join(self.commands)}; a user-defined one is allowed where {PLUGINS_VARIABLE} names "
                "the module that registers it"
            )
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 (typer's click is private)
        """Return the names of all learners, those of plugins included."""
        self._add_own()
        return super().list_commands(ctx)

    def _add_own(self) -> None:
        from navi_core.config.registry import LEARNER_NAMES, load_plugins

        load_plugins()
        for name in LEARNER_NAMES.all():
            if name not in LEARNER_NAMES.built_in and name not in self.commands:
                one = typer.Typer(add_completion=False)
                one.command(name, cls=StrictCommand)(
                    learner_command(name, f"Train by {name}, a user-defined learner (learner_options)")
                )
                self.add_command(typer.main.get_command(one), name)


def learner_command(algorithm: str, title: str) -> Callable[..., None]:
    """Build the training command of a learner; all learners take the same flags.

    Args:
        algorithm: Name of the learner.
        title: What it does.
    """

    def command(flags: TrainFlags, publish: Publish = AUTO, register: Register = True, as_json: AsJson = False) -> None:
        resolved = flags.resolve(algorithm)
        if algorithm == "dpo":
            from navi_core.demos import with_pairs_hash

            resolved = with_pairs_hash(resolved)
        # Values of actions cannot be begun with another learner's network, which latest mostly is.
        flies = resolved.task is None and resolved.env.task == "explore"
        takes_latest = flags.asset is None and flies and algorithm != "dqn" and not flags.fresh
        with log_on_stderr():
            init = flags.init or (fitting_latest(resolved, seeded=flags.seed is not None) if takes_latest else "none")
            record = run_training(
                resolved,
                **flags.place("interactive"),
                init=None if flags.fresh else init,
                publish=publish,
                register=register,
            )
        if os.environ.get("RANK", "0") == "0":
            show_record(record, as_json, training_facts)

    command.__doc__ = f"""{title}, resuming where the same command stopped.

    Without arguments: every scene under corpus.root (or the generated families) is compiled or reused,
    and training goes on until it is interrupted. Settings win in this order: defaults, preset, the task's, --config,
    NAVI_* variables, flags, --set. Started by torchrun, several processes share the rows.
    """
    return expand_flags(command)


app = typer.Typer(name="train", cls=_Learners, help="Train a policy; one command per learner.", no_args_is_help=True)
for _algorithm, _title in _LEARNERS.items():
    app.command(_algorithm)(learner_command(_algorithm, _title))


# More than 60 lines: its arguments and the keys of its record.
def run_training(
    config: TrainConfig,
    *,
    run_root: Path | None = None,
    asset: str,
    partition: str,
    fresh: bool = False,
    init: str | None = None,
    publish: str = OFF,
    register: bool = True,
    apex: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train one run, in scenes or on a reference task, and register its last checkpoint as a version.

    Args:
        config: Full configuration.
        run_root: Folder of runs; by default `runs/` of the Navi home.
        asset: What the run is for.
        partition: Which one of it.
        fresh: Move an earlier run of the same key aside and start anew.
        init: Weights of a new run: `latest` (if there is one), another alias, a version, a checkpoint
            file; None or `none` for new weights.
        publish: Where a dashboard may watch: `auto`, `off`, or an endpoint.
        register: Enter the result into the registry.
        apex: Train by Ape-X: `address`, `processes` and `in_process` of `navi_core.scale.launch.launch_apex`.

    Returns:
        Plain data: run_id, checkpoint, version, steps, updates, episodes, reward_ema, reason,
        resumed_from, initial, latest, scenes, task, config_hash, memory_gib (the largest resident memory of this
        process), metrics. What learned a reference task cannot fly: it is not registered, and its version is None.

    Raises:
        NaviError: As `navi_core.learn.train`, `launch_apex`, the scene corpus, the run directory and the registry do.
    """
    import logging
    import resource

    from navi_core.config import config_hash
    from navi_core.learn import EventBus, console_progress, train
    from navi_core.learn.parallel import joined_workers
    from navi_core.record import RunDirectory, navi_home
    from navi_core.scale import check_apex
    from navi_core.scale.launch import launch_apex
    from navi_core.tasks import reference_task
    from navi_core.world import Field

    log = logging.getLogger("navi.train")
    registry = open_registry(None)
    with ExitStack() as stack:
        workers = stack.enter_context(joined_workers())
        # What can be refused is refused before the run's folder is made. Of several processes the first one's choice
        # counts: another version may become latest before they have all looked.
        if apex is not None:
            check_apex(config, workers)
        initial = initial_weights(registry, workers.share(init))
        scenes: list[CompiledScene] = []
        if config.task is None:
            # Several trainers on one machine share its cores already.
            scenes = compiled_scenes(config, jobs=None if workers.size == 1 else 1)
            log.info("%d scenes: %s", len(scenes), ", ".join(item.scene.name for item in scenes))
        run = watch = None
        events = EventBus()
        if workers.first:
            root = run_root if run_root is not None else navi_home() / "runs"
            run = stack.enter_context(
                RunDirectory.open(root, asset=asset, partition=partition, config=config, fresh=fresh)
            )
            stack.enter_context(console_progress(events, f"{asset}/{partition}"))
            captured = config.execution == "graph"
            watch = stack.enter_context(watchable(run.run_id, config.algorithm, publish, events, captured=captured))
        learner: dict[str, Any] = {"events": events, "initial": initial, "workers": workers}
        if apex is not None:
            result = launch_apex(config, run, scenes=scenes, **learner, **apex)
        elif config.task is None:
            field = Field([item.scene for item in scenes], device="cpu", threads=config.threads)
            result = train(config, run, field=field, watch=watch, **learner)
        else:
            first, rows = workers.rows(config.actors)
            options: dict[str, Any] = dict(config.task_options)
            env = reference_task(config.task, rows, config.seed, first_row=first, **options)
            result = train(config, run, env=env, watch=watch, **learner)
        version, latest = None, False
        # A run without an update has the weights that it began with.
        if workers.first and register and config.task is None and result.steps > 0:
            version, latest = enter_version(registry, result, config.algorithm)
        version, latest = workers.share((version, latest))
    return {
        "run_id": result.run_id,
        "checkpoint": str(result.checkpoint),
        "version": version,
        "latest": latest,
        "initial": result.initial,
        "steps": result.steps,
        "updates": result.updates,
        "episodes": result.episodes,
        "reward_ema": reward_of(result),
        "wall_time_hours": result.wall_time_hours,
        "memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "reason": result.reason,
        "resumed_from": result.resumed_from,
        "scenes": [item.scene.name for item in scenes],
        "task": config.task,
        "config_hash": config_hash(config),
        "metrics": result.metrics,
    }


@contextmanager
def log_on_stderr() -> Iterator[None]:
    """Context manager that logs the engine's INFO messages on stderr; stdout carries only the result."""
    import logging

    class Handler(logging.StreamHandler[Any]):
        """Handler that asks for standard error anew: while a bar is shown, Rich stands in for it."""

        stream = property(lambda _: sys.stderr, lambda *_: None)

    log = logging.getLogger("navi")
    level, handler = log.level, Handler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def show_record(record: dict[str, Any], as_json: bool, facts: Callable[[dict[str, Any]], dict[str, str]]) -> None:
    """Print the result of a run as a table of facts or as one JSON object."""
    if as_json:
        print_json(record)
        return
    version = f"{record['version']}{', now latest' if record['latest'] else ''}"
    none = "none: it learned a task and cannot fly" if record.get("task") else "none: it was not to be registered"
    none = none if record["steps"] else "none: it ended before its first update"
    common = {"training time": f"{60 * record['wall_time_hours']:.1f} min", "checkpoint": record["checkpoint"]}
    print_facts(record["run_id"], {"version": version if record["version"] else none, **facts(record), **common})
    print_next(f"navi evaluate {record['version']}" if record["version"] else f"navi runs show {record['run_id']}")


def resumed(record: dict[str, Any]) -> str:
    """Return "(resumed from STEP)" with a leading space; empty for a new run."""
    return f" (resumed from {record['resumed_from']:,})" if record["resumed_from"] is not None else ""


def training_facts(record: dict[str, Any]) -> dict[str, str]:
    """Build the human-readable summary of a finished training."""
    return {
        "steps": f"{record['steps']:,}{resumed(record)}",
        "ended by": record["reason"],
        "reward_ema": "none yet" if record["reward_ema"] is None else f"{record['reward_ema']:+.4f}",
        "episodes": f"{record['episodes']:,}",
        "world": record["task"] or f"{len(record['scenes'])} scene{'s' * (len(record['scenes']) != 1)}",
    }


_RATES = {
    "actor_steps_per_s": "actors [steps/s]",
    "shard_adds_per_s": "shards, added [items/s]",
    "shard_samples_per_s": "shards, drawn [items/s]",
    "learner_updates_per_s": "learner [gradient steps/s]",
    "sync_age_s": "age of the actors' weights [s]",
    "sync_lag_versions": "publications behind",
    "actors_replaced": "actors replaced",
    "shards_replaced": "shards replaced",
    "repeated_shipments": "rollouts sent twice, counted once",
}
"""Display labels of the throughput and fault metrics of a distributed run, with units."""


@app.command("apex")
@expand_flags
def learner(
    flags: TrainFlags,
    register: Register = True,
    address: Annotated[
        str | None, typer.Option(help="A running Ray, host:port or auto; without, one starts here.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=0, help="Actors to start; 0 leaves them to `navi train actor`. By default the settings'."),
    ] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Actors and shards take turns in this process; needs no Ray.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train by Ape-X: distributed Double DQN with actors, replay shards and learners (settings: distributed, dqn).

    Resumes where the same command stopped. With distributed.learners above 1 it starts itself again under torchrun.
    """
    resolved = flags.resolve("dqn", "learner")
    if in_process and (address is not None or processes is not None):
        raise ConfigError("--in-process takes neither --address nor --processes; leave them out")
    learners = resolved.distributed.learners
    if learners > 1 and "WORLD_SIZE" not in os.environ:
        # This command again under torchrun, as several learners.
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={learners}"]
        os.execv(sys.executable, [*launcher, "-m", "navi_core.cli.main", *sys.argv[1:]])
    # Ray reports a dead process on standard output, which belongs to the result.
    with log_on_stderr(), redirect_stdout(sys.stderr):
        record = run_training(
            resolved,
            **flags.place("apex"),
            init=None if flags.fresh else flags.init,
            register=register,
            apex={"address": address, "processes": processes, "in_process": in_process},
        )
    if os.environ.get("RANK", "0") != "0":
        return
    show_record(record, as_json, training_facts)
    if not as_json:
        facts = {
            label: f"{record['metrics'][name]:,.4g}" for name, label in _RATES.items() if name in record["metrics"]
        }
        print_facts("throughput of the last second, and what happened", facts)


@app.command()
def actor(
    shard: Annotated[int, typer.Option(min=0, help="Shard of the replay that its rollouts go to.")],
    address: Annotated[
        str, typer.Option(help="Ray cluster of the run, host:port; auto finds one on this machine.")
    ] = "auto",
    run: Annotated[str | None, typer.Option(help="Run, if there are several.")] = None,
    number: Annotated[
        int | None, typer.Option(min=0, help="Index of the actor's ε; by default that of the shard.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run an external actor for a run of `navi train apex` until it ends; the run sets environment and weights."""
    from navi_core.scale.launch import fly_for_run

    with log_on_stderr():
        ended, shipped = fly_for_run(address, run, shard, number)
    if as_json:
        print_json({"shard": shard, "ended": ended, "rollouts": shipped})
    else:
        print_facts("actor", {"shard": str(shard), "ended by": ended, "rollouts shipped": f"{shipped:,}"})
