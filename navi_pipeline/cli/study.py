"""CLI commands `navi study`: run, show and resume a hyperparameter search, export or prove its best trial."""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.cli.bench import app as benchmarks
from navi_core.errors import RunError, as_argument
from navi_core.terminal import print_facts, print_json, print_next, print_records, print_status, progress_bar
from navi_pipeline.cli.launch import Target, as_run_config, launch

if TYPE_CHECKING:
    from navi_pipeline.lib.studies.perform import StudyResult
    from navi_pipeline.settings import StudyConfig

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Trials = Annotated[int | None, typer.Option(min=1, help="Total number of trials.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Trials at once.")]


group = typer.Typer(
    name="study", help="Searches over settings, sweeps and ablations: run, list, show.", no_args_is_help=True
)


@group.command()
def run(
    name: Annotated[str, typer.Argument(help="quick, ppo, grpo, dqn, ppo_speed, or the name of a file's study.")],
    config: Annotated[Path | None, typer.Option(help="YAML or JSON file of settings (StudyConfig).")] = None,
    trials: Trials = None,
    workers: Workers = None,
    assign: Annotated[list[str] | None, typer.Option("--set", help="A setting of the study, a.b=c.")] = None,
    as_json: Json = False,
) -> None:
    """Run a study (hyperparameter search), or resume it.

    Every trial trains in a child process with its own run directory. The same command again takes up what was killed,
    from its last checkpoint. Ctrl-C lets the trainers write a checkpoint.
    """
    from navi_core.presets import merge, parse_assignments
    from navi_pipeline.lib.studies.catalogue import find_study

    overrides = merge(_given(trials=trials, workers=workers), parse_assignments(assign or ()))
    _perform(find_study(name, file=config, overrides=overrides), as_json)


@group.command("list")
def studies(as_json: Json = False) -> None:
    """List the studies of this home."""
    from navi_pipeline.lib.studies.trial_queue import known_studies, read_study

    known = known_studies()
    if as_json:
        print_json(known)
    elif not known:
        typer.echo("No studies in this home; `navi study run quick` begins one.")
    else:
        print_records("studies", [read_study(one).model_dump(include=_LISTED) for one in known])


@group.command()
def show(
    name: Annotated[str | None, typer.Argument(help="A study of this home; without one they are listed.")] = None,
    as_json: Json = False,
) -> None:
    """Show the state of a study, and write its HTML page."""
    from navi_pipeline.lib.studies.perform import study_result
    from navi_pipeline.lib.studies.trial_queue import TrialQueue, read_study

    if name is None:
        studies(as_json)
        return
    with TrialQueue(read_study(name)) as queue:
        status = "finished" if queue.left() <= 0 else "running" if queue.running() else "stopped"
        _print_result(queue.config, study_result(queue, status, reused=True), as_json)


@group.command()
def resume(
    name: Annotated[str, typer.Argument(help="A study of this home.")],
    trials: Trials = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Resume an interrupted study, or extend it by more trials."""
    from navi_pipeline.lib.studies.trial_queue import read_study

    _perform(read_study(name).model_copy(update=_given(trials=trials, workers=workers)), as_json)


@group.command()
def best(
    name: Annotated[str, typer.Argument(help="A study of this home.")],
    preset: Annotated[Path | None, typer.Option(help="Write its settings as a preset here (.yaml).")] = None,
    trial: Annotated[int | None, typer.Option(min=0, help="Number of a trial, instead of the best.")] = None,
    as_json: Json = False,
) -> None:
    """Show the best feasible trial, and export it as a preset: `navi train LEARNER --preset FILE`."""
    from navi_pipeline.lib.studies.results import pick_trial, selection_note, trial_row, trials_compared, write_preset
    from navi_pipeline.lib.studies.trial_queue import TrialQueue, read_study

    with TrialQueue(read_study(name)) as queue:
        picked = pick_trial(queue, trial)
        if preset is not None:
            write_preset(queue, picked, preset)
        row = trial_row(queue, picked) | {"chosen_from": trials_compared(queue)}
    if as_json:
        print_json(row | {"preset": None if preset is None else str(preset)})
        return
    facts = {name: str(value) for name, value in row["params"].items()}
    shown = ("state", "value", "objective_values", "feasible", "run_id", "checkpoint")
    facts |= {name: str(row[name]) for name in shown if row[name] is not None}
    facts["worth"] = selection_note(row["chosen_from"])
    if preset is not None:
        facts["train it"] = f"navi train {queue.config.learner} --preset {as_argument(preset)} --init none"
    print_facts(f"{name}, trial {row['trial']}", facts)


@group.command()
def prove(
    name: Annotated[str, typer.Argument(help="A study of this home.")],
    seeds: Annotated[int, typer.Option(min=2, help="Training seeds of both sides; a verdict needs five.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Trainings at the same time.")] = 1,
    as_json: Json = False,
) -> None:
    """Compare the best settings of a study with its preset on fresh seeds: better, or not shown.

    The interval is paired by seed. Finished trainings are reused, so the command may be stopped and given again.
    """
    from navi_pipeline.cli.experiments import print_experiment, run_experiment
    from navi_pipeline.lib.studies.proof import proof_experiment

    experiment = proof_experiment(name, seeds)  # its errors wait for no GPU
    target = Target("proof_job", "study_proof", {"study": name, "seeds": seeds, "jobs": jobs})
    result = run_experiment(target, lambda: experiment, jobs=jobs)
    if as_json:
        print_json(result.document)
    else:
        print_experiment(f"proof of study {name}", result)


@benchmarks.command("study")
def bench(
    trials: Annotated[int, typer.Option(min=2, help="Trials of the study.")] = 30,
    workers: Annotated[int, typer.Option(min=1, help="Trials at once.")] = 2,
    kills: Annotated[int, typer.Option(min=0, help="Number of kills.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the moments of the kills.")] = 0,
    as_json: Json = False,
) -> None:
    """Test a study's fault tolerance: kill it with its workers, then audit configs, metrics and lineage."""
    from navi_pipeline.bench.study import kill_and_resume

    with tempfile.TemporaryDirectory(prefix="navi-study-") as home:
        found = kill_and_resume(
            Path(home), trials=trials, workers=workers, kills=min(kills, trials - 1), seed=seed, on_line=print_status
        )
    if as_json:
        print_json(found)
    else:
        print_facts("study under kills", {name: str(value) for name, value in found.items()})
    if found["faults"]:
        raise RunError("; ".join(found["faults"]))


def _given(**options: int | None) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


_LISTED = {"name", "learner", "trials", "workers", "sampler"}


def _perform(config: StudyConfig, as_json: bool) -> None:
    from navi_pipeline.lib.studies.perform import perform_study

    done = count(1)
    with progress_bar(f"study {config.name}", quiet=as_json) as progress:

        def advance(row: dict[str, Any]) -> None:
            progress(f"trial {row['trial']} {row['state']}", next(done) / config.trials)

        def report(line: str) -> None:
            # The lines of a worker report trials; those of the trainers are in their runs' logs.
            if line.startswith("study "):
                print_status(line)

        target = Target("study_job", "study", {"settings": as_run_config(config)}, config.name)
        result = launch(target, perform_study, config, on_line=report, on_trial=advance)
    _print_result(config, result, as_json)


def _print_result(config: StudyConfig, result: StudyResult, as_json: bool) -> None:
    from navi_pipeline.lib.studies.results import selection_note

    if as_json:
        print_json(result.row | {"rows": result.trials, "report": str(result.report), "reused": result.reused})
        return
    columns = ["slot", "trial", "state", "value", "reward_ema", "sps", "feasible", "step", "wall_time_seconds"]
    columns += ["reason"] if any(row["reason"] for row in result.trials) else []
    rows = [{name: row[name] for name in columns} | row["params"] for row in result.trials]
    print_records(f"study {config.name}: {result.row['status']}", rows)
    if result.row["best_trial"] is None:
        typer.echo("best: no trial is complete and feasible")
    else:
        worth = selection_note(result.row["completed"] + result.row["pruned"])
        typer.echo(f"best: trial {result.row['best_trial']}, {result.row['best_params']} ({worth})")
    typer.echo(f"report: {result.report}")
    best = result.row["best_trial"] is not None
    print_next(f"navi study best {config.name} --preset best.yaml" if best else f"navi study resume {config.name}")
