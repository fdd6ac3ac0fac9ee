"""`navi learner` and `navi actor`: Ape-X, on Ray or in one process."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from navi_core.cli.training.flags import AsJson, Register, TrainFlags, expand_flags
from navi_core.cli.training.train import log_on_stderr, run_training, show_record, training_facts
from navi_core.errors import ConfigError
from navi_core.terminal import print_facts, print_json

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
"""Metric and what it is called."""


app = typer.Typer()


@app.command("learner")
@expand_flags
def learner(
    flags: TrainFlags,
    register: Register = True,
    address: Annotated[
        str | None, typer.Option(help="A running Ray, host:port or auto; without, one starts here.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=0, help="Actors to start; 0 leaves them to `navi actor`. By default the settings'."),
    ] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Actors and shards take turns in this process; needs no Ray.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train by Ape-X: Double DQN with actors, replay shards and learners of their own (settings: distributed, dqn).

    Resumes where the same command stopped. With distributed.learners above 1 it starts itself again under torchrun.
    """
    resolved = flags.resolve("dqn")
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
    address: Annotated[str, typer.Option(help="Ray of the run, host:port; auto finds one on this machine.")] = "auto",
    run: Annotated[str | None, typer.Option(help="Which run, where there are several.")] = None,
    number: Annotated[
        int | None, typer.Option(min=0, help="Place on the ladder of ε; by default that of the shard.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fly for a run of `navi learner` until it ends; the run sets the environment and the weights."""
    from navi_core.scale.launch import fly_for_run

    with log_on_stderr():
        ended, shipped = fly_for_run(address, run, shard, number)
    if as_json:
        print_json({"shard": shard, "ended": ended, "rollouts": shipped})
    else:
        print_facts("actor", {"shard": str(shard), "ended by": ended, "rollouts shipped": f"{shipped:,}"})
