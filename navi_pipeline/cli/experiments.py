"""CLI commands `navi study sweep`, `navi study ablate`, `navi pipeline nightly` and `navi pipeline schedules`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.errors import ConfigError, RunError
from navi_core.terminal import print_json, print_next, print_records, print_status, print_text
from navi_pipeline.cli.graph import demo, materialize, ui
from navi_pipeline.cli.launch import FailedRunError, Target, as_run_config, launch
from navi_pipeline.cli.study import group as study

if TYPE_CHECKING:
    from navi_pipeline.lib.experiments.perform import Experiment, ExperimentResult
    from navi_pipeline.settings import NightlyConfig


group = typer.Typer(
    name="pipeline", help="The asset graph: demo, materialize, nightly jobs, schedules, UI.", no_args_is_help=True
)
group.command()(demo)
group.command()(materialize)
group.command()(ui)


@study.command()
def sweep(
    name: Annotated[str | None, typer.Argument(help="Sweep; without it the sweeps are listed.")] = None,
    profile: Annotated[str, typer.Option(help="quick (2,000 decisions or 10 s a cell) or full.")] = "quick",
    preset: Annotated[str | None, typer.Option(help="Settings that do not vary: demo, quick, standard.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Repeats of each cell.")] = None,
    steps: Annotated[int | None, typer.Option(help="Decisions of a cell.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Training time of a cell (s).")] = None,
    timeout: Annotated[float | None, typer.Option(help="Wall time after which a cell is killed (s).")] = None,
    memory_limit: Annotated[float | None, typer.Option(help="Address space of a cell (GiB).")] = None,
    threads: Annotated[int | None, typer.Option(help="Torch threads of a cell; 0 measures the best number.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure every cell anew.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Run a parameter sweep: measure each combination in its own process, and print the result.

    Out of memory, crash and timeout are outcomes of a cell. Finished cells are reused, so an interrupted sweep resumes.
    """
    from navi_core.config import parse_config
    from navi_pipeline.lib.experiments.perform import sweep_experiment
    from navi_pipeline.lib.experiments.sweeps import SWEEPS, find_sweep
    from navi_pipeline.settings import SweepConfig

    if name is None:
        if as_json:
            print_json({sweep.name: sweep.question for sweep in SWEEPS.values()})
        else:
            print_records("sweeps", [{"sweep": sweep.name, "question": sweep.question} for sweep in SWEEPS.values()])
        return
    given = {"profile": profile, "preset": preset, "seeds": seeds, "steps": steps, "seconds": seconds,
             "timeout": timeout, "memory_limit": memory_limit, "threads": threads}  # fmt: skip
    config = parse_config(SweepConfig, {key: value for key, value in given.items() if value is not None})
    find_sweep(name)
    options = config.model_dump(exclude={"profile"}, exclude_none=True) | {"again": again}
    target = Target("benchmark_job", name, options, config.profile, (name,))
    result = run_experiment(target, lambda: sweep_experiment(name, config), again=again)
    if as_json:
        print_json({"sweep": name, "profile": config.profile} | result.document | {"reused": result.reused})
    else:
        print_experiment(f"{name}, {config.profile}", result)


@study.command()
def ablate(
    variants: Annotated[list[str] | None, typer.Argument(help="Variants; by default all of --list.")] = None,
    name: Annotated[str, typer.Option(help="Name of the ablation, in its rows and its page.")] = "ablation",
    preset: Annotated[str, typer.Option(help="Settings that do not vary: a preset or a .yaml file.")] = "demo",
    assign: Annotated[list[str] | None, typer.Option("--set", help="A setting of all variants, a.b=c.")] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="A variant of your own and a setting of it, name:a.b=c; may be repeated.", metavar="V"),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Decisions that a cell trains.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Training seeds of each variant.")] = None,
    train: Annotated[
        list[str] | None, typer.Option(help="Scenes to train in, family:seeds; may be repeated.", metavar="S")
    ] = None,
    scene: Annotated[
        list[str] | None, typer.Option("--scene", help="Unseen scenes to fly in; may be repeated.", metavar="S")
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="Protocol of the evaluation: quick or full.")] = None,
    cells: Annotated[int | None, typer.Option(min=0, help="Cells to measure now; 0 shows what is known.")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Cells at the same time, each on one core.")] = 1,
    listed: Annotated[bool, typer.Option("--list", help="Show the variants and their questions.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run an ablation study: train each variant with several seeds, and compare it with the base on unseen scenes.

    Finished cells are reused, so the command may be stopped and resumed, or split with --cells. The table shows the
    paired difference to the base with its two-way interval over seeds and scenes.
    """
    from navi_pipeline.lib.experiments.variants import VARIANTS

    if listed:
        print_records("variants", [{"variant": v.name, "question": v.question} for v in VARIANTS.values()])
        return
    from navi_core.config import parse_config
    from navi_core.presets import parse_assignments
    from navi_pipeline.lib.experiments.perform import ablation_experiment
    from navi_pipeline.settings import AblationConfig

    given = {"preset": preset, "base": parse_assignments(assign or ()), "variants": _variants(vary or ()),
             "steps": steps, "seeds": seeds, "train": train, "scenes": scene, "protocol": protocol}  # fmt: skip
    config = parse_config(AblationConfig, {key: value for key, value in given.items() if value is not None})
    experiment = ablation_experiment(variants or (), config, name)
    options = {"name": name, "variants": variants or [], "settings": as_run_config(config), "cells": cells,
               "jobs": jobs}  # fmt: skip
    # What is known is shown without a run.
    target = None if cells == 0 else Target("ablation_job", "ablation", options)
    result = run_experiment(target, lambda: experiment, cells=cells, jobs=jobs)
    if as_json:
        print_json(result.document)
        return
    for variant, why in experiment.skipped.items():
        typer.echo(f"{variant} {why}: left out")
    print_experiment(f"ablation {name}", result)


def run_experiment(target: Target | None, make: Callable[[], Experiment], **options: Any) -> ExperimentResult:  # noqa: ANN401 (of perform_experiment)
    """Perform an experiment in a run of its Dagster job, or without a target directly."""
    from navi_pipeline.lib.experiments.perform import perform_experiment

    def perform(on_line: Callable[[str], None]) -> ExperimentResult:
        return perform_experiment(make(), on_line=on_line, **options)

    return perform(print_status) if target is None else launch(target, perform, on_line=print_status)


def print_experiment(title: str, result: ExperimentResult) -> None:
    """Print the table, the verdicts and the page of an experiment."""
    from navi_pipeline.lib.experiments.verdicts import checklist

    print_records(title, result.summary.rows)
    if result.summary.verdicts:
        print_records("promotion checklist", checklist(result.summary.verdicts))
    for sentence in result.summary.sentences:
        print_text(sentence)
    if result.waiting:
        typer.echo(f"{result.waiting} cells wait; the same command goes on with them")
    typer.echo(f"report: {result.report}")
    print_next("the same command" if result.waiting else "navi report")


def _variants(entries: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse `--vary name:a.b=c` entries into the settings of custom variants by name."""
    from navi_core.presets import parse_assignments

    assignments: dict[str, list[str]] = {}
    for entry in entries:
        name, separator, assignment = entry.partition(":")
        if not name or not separator:
            raise ConfigError(f"--vary {entry!r} is not name:a.b=c, for instance unhurried:ppo.learning_rate=1e-4")
        assignments.setdefault(name, []).append(assignment)
    return {name: parse_assignments(own) for name, own in assignments.items()}


def night_settings() -> type[NightlyConfig]:
    """Return the configuration class of nights, for `navi settings --of nightly`."""
    from navi_pipeline.settings import NightlyConfig

    return NightlyConfig


@group.command()
def nightly(
    minutes: Annotated[
        float | None,
        typer.Option(min=0.1, help="Training time (min); up to 60 it is a small night of the profile quick."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML or JSON file of settings (NightlyConfig).")] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", help="A setting, a=b; may be repeated.")] = None,
    validation: Annotated[bool, typer.Option("--validation", help="Train nothing; evaluate the champion.")] = False,
    name: Annotated[str | None, typer.Option(help="Name of the night; the same name continues it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a nightly training job now: preflight, training, resume proof, evaluation, benchmarks, promotion, summary.

    The summary is written to reports/ of the Navi home, as Markdown and HTML. The command fails if a hard gate fails.
    """
    from navi_pipeline.lib.nightly.night import Night, night_name, nightly_config
    from navi_pipeline.lib.nightly.stages import run_night, summary_paths

    settings = nightly_config(minutes=minutes, file=config, assignments=assign or (), train=not validation)
    name = night_name(settings, name)
    kind = "training" if settings.train else "validation"
    values = settings.model_dump(mode="json", exclude={"train"})
    options = {
        "train": settings.train,
        "assignments": [f"{setting}={json.dumps(value)}" for setting, value in values.items()],
    }
    target = Target(f"nightly_{kind}", "night_preflight", options, partition=name)
    # A failed hard gate fails the run; it is reported below, as without one.
    with suppress(FailedRunError):
        launch(target, run_night, settings, name, report=print_status)
    night = Night(settings, name, report=print_status, keep_failed=True)
    markdown, page = summary_paths(name)
    if as_json:
        print_json(
            {
                "night": night.name,
                "verdict": night.verdict,
                "stages": {stage.name: stage.status for stage in night.stages.values()},
                "failed": [gate.name for gate in night.failed],
                "warnings": [gate.name for gate in night.warnings],
                "markdown": str(markdown),
                "html": str(page),
            }
        )
    else:
        print_records(f"night {night.name}: {night.verdict}", night.gate_rows())
        typer.echo(f"summary: {markdown}\n         {page}")
        print_next("navi query checks_history")
    if night.failed:
        raise RunError(f"night {night.name} failed: {'; '.join(gate.name for gate in night.failed)}; see {markdown}")


@group.command()
def schedules(
    switch: Annotated[str | None, typer.Argument(help="on or off; without it nothing changes.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Show the schedules and when each runs next, switch those of the nights on, or switch all off."""
    from navi_pipeline.defs.automation.nights import training_schedule, validation_schedule
    from navi_pipeline.defs.automation.torture import torture_schedule
    from navi_pipeline.lib.orchestration import dagster_home, open_instance
    from navi_pipeline.lib.run_launcher import switch_schedules

    if switch not in (None, "on", "off"):
        raise ConfigError(f"schedules {switch!r}; allowed: on, off")
    on = None if switch is None else switch == "on"
    with open_instance(dagster_home()) as instance:
        rows = switch_schedules(instance, (training_schedule, validation_schedule), on)
        # An hour of kills each night is asked for by its own switch in the UI.
        rows += switch_schedules(instance, (torture_schedule,), None if on else on)
    if as_json:
        print_json(rows)
        return
    print_records("schedules", rows)
    running = any(row["on"] for row in rows)
    typer.echo(
        "next: `navi ui` starts the daemon, which runs them" if running else "next: `navi pipeline schedules on`"
    )
