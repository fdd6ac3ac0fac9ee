"""`navi evaluate` and `navi models promote`: evaluate a policy without training it; promote a version to champion."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.bench.report import Column, figure
from navi_core.cli import completion
from navi_core.cli.models import app as models_app
from navi_core.cli.models import open_registry
from navi_core.errors import ConfigError, EvaluationError, RecordError, RegistryError, as_argument, did_you_mean
from navi_core.terminal import print_json, print_next, print_table, print_text, progress_bar

if TYPE_CHECKING:
    from navi_core.config import EvalConfig
    from navi_core.evaluate import Comparison, Decision, EvalResult, SeedComparison
    from navi_core.models import ModelVersion
    from navi_core.scenes import Scene

HELD_OUT = ("apartment:100-111",)
"""Default evaluation scenes, held out: the default training corpus ends before them."""

Scenes = Annotated[
    list[str] | None,
    typer.Option(
        "--scene",
        help="A .gmdag or mesh file, a folder of meshes, family:seeds as in apartment:100-103, or rooms-v1:validation; "
        "may be repeated.",
        metavar="S",
        autocompletion=completion.scenes,
    ),
]
Protocol = Annotated[
    str,
    typer.Option(
        help="quick: 3 starts × 200 decisions; full: 10 × 1000 and C_surf. --starts and --steps override it.",
        autocompletion=lambda: ["quick", "full"],
    ),
]
Task = Annotated[str, typer.Option(help="explore, or point_goal: fly to a frozen goal and stop there (success, SPL).")]
Starts = Annotated[int | None, typer.Option(help="Frozen starts per scene; by default the protocol's.")]
Steps = Annotated[int | None, typer.Option(help="Decisions per episode; by default the protocol's.")]
Seed = Annotated[int, typer.Option(help="Seed of the starts and of sampled actions.")]
Sampled = Annotated[bool, typer.Option("--sampled", help="Sample actions instead of flying the mean.")]
Recovers = Annotated[
    bool | None,
    typer.Option("--recovery/--no-recovery", help="Free policies that are stuck; by default as the policy's settings."),
]
Noisy = Annotated[bool, typer.Option("--noisy", help="Fly with the noisy sensor; metrics use the true scene.")]
Drift = Annotated[
    str, typer.Option(help="Drift of the odometry flown by: none; low: 0.5 % and 0.03 °/s; high: 2 % and 0.1 °/s.")
]
Sensor = Annotated[
    str | None,
    typer.Option(
        help="Sensor profile: sphere, lidar, camera, two_cameras or four_cameras; by default the ideal sphere."
    ),
]
HeightLimit = Annotated[
    float | None,
    typer.Option("--height-limit", help="Height over a scene's lowest surface that nobody flies above (m).", min=0.1),
]
DoneAfter = Annotated[
    int | None,
    typer.Option(help="Decisions without a way to a frontier after which a flight hovers; 0: never.", min=0),
]
Delayed = Annotated[bool, typer.Option("--delayed", help="Fly by observations that are one decision old.")]
Resolution = Annotated[int, typer.Option(help="Compile resolution of meshes and generated scenes.")]
Models = Annotated[Path | None, typer.Option("--models", help="The registry; by default models/ of the Navi home.")]
Maps = Annotated[Path | None, typer.Option("--maps", help="Also draw the paths flown, one PNG per scene, here.")]
Rrd = Annotated[
    Path | None,
    typer.Option("--rrd", help="Also write the median and the worst episode for the Rerun viewer here.", metavar="DIR"),
]
NoRecord = Annotated[bool, typer.Option("--no-record", help="Write no rows for the warehouse.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]

_DRAWN_CELL, _DRAWN_CLEARANCE = 0.2, 0.2
"""Cell size and clearance of the floor grid that is drawn on maps [m]."""

_NAMED = 4
"""Most scene names listed in a table's caption; the others are counted."""
_STUCK = 60.0
"""Collision rate (per minute) from which a policy is reported as likely stuck at walls."""
_COVERAGE: dict[str, Column] = {
    "AUC": figure("c_vis_auc", ".1f"),
    "interval": lambda row: _interval(row, "c_vis_auc"),
    "C_vis": figure("c_vis_final", ".1f"),
    "C_visit": figure("c_visit", ".1f"),
    "collisions": figure("collisions_per_minute", ".2f"),
    "clean": lambda row: f"{100 * row['collision_free_rate']:.0f} %",
    "path": figure("path_length", ".1f"),
}
_COVERAGE_UNITS = (
    "coverage in %, AUC with its 95 % interval; collisions per minute; clean: share of flights without one; path in m"
)
_SEEN: dict[str, Column] = {
    "C_seen AUC": figure("c_seen_auc", ".1f"),
    "interval": lambda row: _interval(row, "c_seen_auc"),
    "C_seen": figure("c_seen_final", ".1f"),
    "C_vis AUC": figure("c_vis_auc", ".1f"),
    **{name: _COVERAGE[name] for name in ("collisions", "clean", "path")},
}
"""Columns of a limited sensor: C_seen counts only the floor that it measured."""
_GOALS: dict[str, Column] = {
    "success": figure("success", ".1f", 100.0),
    "SPL": figure("spl", ".3f"),
    "SoftSPL": figure("soft_spl", ".3f"),
    "left": figure("goal_distance", ".2f"),
    "collisions": figure("collisions_per_minute", ".2f"),
    "path": figure("path_length", ".1f"),
}
_GOAL_UNITS = "success in %, SPL of 1; way left to the goal in m, collisions per minute, path in m"


app = typer.Typer()


def _interval(row: Mapping[str, Any], metric: str) -> str:
    low, high = (row.get(f"{metric}_{bound}") for bound in ("low", "high"))
    return "–" if low is None else f"{low:.1f}–{high:.1f}"


@app.command()
def evaluate(
    subject: Annotated[
        str,
        typer.Argument(
            help="A pilot, a checkpoint file, a run's folder, a version or an alias.",
            autocompletion=completion.subjects,
        ),
    ],
    scene: Scenes = None,
    protocol: Protocol = "quick",
    starts: Starts = None,
    steps: Steps = None,
    seed: Seed = 0,
    sampled: Sampled = False,
    recovery: Recovers = None,
    noisy: Noisy = False,
    delayed: Delayed = False,
    drift: Drift = "none",
    sensor: Sensor = None,
    height_limit: HeightLimit = None,
    done_after: DoneAfter = None,
    task: Task = "explore",
    resolution: Resolution = 512,
    out: Annotated[Path | None, typer.Option(help="Also write rows and summary to this JSON file.")] = None,
    models: Models = None,
    no_record: NoRecord = False,
    maps: Maps = None,
    rrd: Rrd = None,
    as_json: Json = False,
) -> None:
    """Evaluate a policy or pilot over frozen start poses, without learning; measure coverage and collisions."""
    from navi_core.evaluate import record_evaluation, write_traces
    from navi_core.record.home import load_scenes
    from navi_core.record.rerun import require_rerun

    if rrd is not None:
        require_rerun()
    config = eval_config(
        protocol, starts, steps, seed, sampled, noisy, task, recovery, delayed, drift, sensor, height_limit,
        done_after,
    )  # fmt: skip
    flown = find_subject(subject, models)
    scenes = load_scenes(scene or HELD_OUT, resolution)
    result = fly_subject(flown, scenes, config, run_name(subject, flown))
    with ExitStack() as last:
        # Where rows or a file cannot be written, an hour's flight goes into the other and is shown all the same.
        if as_json:
            last.callback(print_json, {"summary": result.summary, "episodes": result.episodes})
        else:
            last.callback(print_results, [result])
        if out is not None:
            last.callback(result.save, out)
        if not no_record:
            record_evaluation(result)
        if maps is not None:
            draw_maps(maps, [result], scenes)
        if rrd is not None:
            for path in write_traces(rrd, result, scenes):
                typer.echo(f"rerun {path} shows it", err=True)
    if not as_json:
        # A pilot is no challenger, and of a version the question is whether it is better than what there is.
        other = "champion" if isinstance(flown, str) else "forward-plus"
        print_next(f"navi compare {as_argument(subject)} {other}")
    hits, freed = (result.summary[name] for name in ("collisions_per_minute", "recovery_steps"))
    if not isinstance(flown, str) and recovery is None and hits >= _STUCK and not freed:
        typer.echo("it pushes against walls; --recovery frees drones that are stuck, here and in navi serve", err=True)


# More than 60 lines: flags and their help.
@models_app.command()
def promote(
    version: Annotated[
        str,
        typer.Argument(
            help="The challenger: a version, or an alias such as latest.", autocompletion=completion.versions
        ),
    ],
    scene: Scenes = None,
    alias: Annotated[str, typer.Option(help="Alias that the winner gets.")] = "champion",
    protocol: Protocol = "quick",
    starts: Starts = None,
    steps: Steps = None,
    seed: Seed = 0,
    sampled: Sampled = False,
    noisy: Noisy = False,
    resolution: Resolution = 512,
    models: Models = None,
    no_record: NoRecord = False,
    as_json: Json = False,
) -> None:
    """Promote a version to champion if it is shown to be better and no more dangerous; exit code 1 if it is refused.

    The winner is evaluated once more from other starts, and has to win there, too. A moved alias of the Navi home's
    registry is recorded even with --no-record.
    """
    from navi_core.evaluate import promote as promote_version
    from navi_core.evaluate import record_decision, record_evaluation
    from navi_core.models import record_registry
    from navi_core.record.home import load_scenes

    registry = open_registry(models)
    registry.resolve(version)
    registry.check_alias(alias)
    scenes = load_scenes(scene or HELD_OUT, resolution)

    def record(decided: Decision, flown: list[tuple[EvalResult, EvalResult]]) -> None:
        try:
            for result in (result for pair in flown for result in pair):
                record_evaluation(result)
            record_decision(decided, flown[-1][0])
        except RecordError as error:
            show(replace(decided, promoted=False, reason=f"Refused: {error}"), flown)
            raise

    def show(decided: Decision, flown: list[tuple[EvalResult, EvalResult]]) -> None:
        if as_json:
            print_json(decided.to_row())
        else:
            for pair in flown:
                print_results(list(pair))
            print_sentences([decided.coverage, decided.collisions])
            print_text(decided.reason)

    try:
        decision, flights = promote_version(
            version,
            registry,
            scenes,
            eval_config(protocol, starts, steps, seed, sampled, noisy),
            alias=alias,
            record=None if no_record else record,
        )
    except EvaluationError:
        record_registry(registry)  # a champion already: perhaps one whose row could not be written
        raise
    if decision.promoted:
        record_registry(registry)
    show(decision, flights)
    if not decision.promoted:
        raise typer.Exit(1)


def draw_maps(folder: Path, results: list[EvalResult], scenes: list[Scene]) -> None:
    """Write one top-down map (PNG) per scene with the flight paths of all evaluated subjects.

    Raises:
        ConfigError: No subject was flown now.
    """
    from navi_core.evaluate import top_down_map
    from navi_core.scenes.naming import own_stem
    from navi_core.world import Field, FloorMap

    if not results:
        raise ConfigError("--maps needs a subject that is flown now; files of --out keep no paths")
    folder.mkdir(parents=True, exist_ok=True)
    field = Field(scenes)
    for index, scene in enumerate(scenes):
        paths = {_scored(result, scene.name): result.trajectories_of(scene.name) for result in results}
        floor = FloorMap(field, index, _DRAWN_CELL, _DRAWN_CLEARANCE)
        (folder / f"{own_stem(scene.name)}.png").write_bytes(top_down_map(field, index, paths, floor))


def _scored(result: EvalResult, scene: str) -> str:
    """Return a subject's name with its coverage and collisions in a scene, for the legend of a map."""
    rows = [row for row in result.episodes if row["scene"] == scene]
    seen = sum(float(row["c_vis_final"]) for row in rows) / len(rows)
    collisions = sum(int(row["collisions"]) for row in rows)
    return f"{result.summary['subject']}: {seen:.0f} % seen, {collisions} collisions"


def eval_config(
    protocol: str,
    starts: int | None,
    steps: int | None,
    seed: int,
    sampled: bool,
    noisy: bool,
    task: str = "explore",
    recovery: bool | None = None,
    delayed: bool = False,
    drift: str = "none",
    profile: str | None = None,
    height_limit: float | None = None,
    done_after: int | None = None,
) -> EvalConfig:
    """Build the evaluation configuration from a command's options: a named protocol and the settings that override it.

    Raises:
        ConfigError: An unknown protocol or drift, or a setting out of range.
    """
    from navi_core.config import DRIFTS, NOISY_SENSOR, PROTOCOLS, EvalConfig, SensorConfig, parse_config

    if protocol not in PROTOCOLS:
        hint = did_you_mean(protocol, PROTOCOLS)
        raise ConfigError(f"no protocol {protocol!r}; {hint}allowed: {', '.join(PROTOCOLS)}")
    if drift not in DRIFTS:
        raise ConfigError(f"no drift {drift!r}; allowed: {', '.join(DRIFTS)}")
    settings: dict[str, Any] = PROTOCOLS[protocol] | {"seed": seed, "deterministic": not sampled, "task": task}
    given = {"starts": starts, "max_steps": steps, "recovery": recovery, "done_after": done_after}
    settings |= {name: value for name, value in given.items() if value is not None}
    sensor = (NOISY_SENSOR if noisy else SensorConfig()).model_dump() | {"delayed": delayed}
    sensor["profiles"] = [] if profile is None else [profile.replace("-", "_")]
    settings |= {"sensor": sensor, "odometry": DRIFTS[drift].model_dump(), "dynamics": {"height_limit": height_limit}}
    return parse_config(EvalConfig, settings)


def find_subject(subject: str, models: Path | None) -> str | Path | ModelVersion:
    """Resolve a subject to a pilot's name, a checkpoint path, a registered version, or a run's newest checkpoint.

    Raises:
        EvaluationError: None of them has that name, or the folder holds no checkpoint.
    """
    from navi_core.evaluate import named_subject
    from navi_core.pilots import PILOTS

    registry = open_registry(models)
    try:
        return named_subject(subject, registry)
    except RegistryError as error:
        if os.path.isdir(subject):
            return _newest_checkpoint(Path(subject))
        hint = did_you_mean(subject, [*registry.aliases(), *PILOTS, *(entry.version for entry in registry.list())])
        raise EvaluationError(
            f"{hint}{subject!r} is no pilot ({', '.join(PILOTS)}), no checkpoint file, no run's folder and no "
            f"registered model ({str(error).replace(hint, '')})"
        ) from None


def run_name(subject: str, found: str | Path | ModelVersion) -> str | None:
    """Return the run's name if the subject is a run folder; None for other subjects, which have names."""
    return Path(os.path.abspath(subject)).name if isinstance(found, Path) and os.path.isdir(subject) else None


def _newest_checkpoint(run: Path) -> Path:
    from navi_core.learn.run.checkpoints import checkpoints_in

    folder = run / "checkpoints" if (run / "checkpoints").is_dir() else run
    # A clone's outcome is its best epoch, as in `navi train bc`.
    found = [folder / "best.pt"] if (folder / "best.pt").is_file() else checkpoints_in(folder)
    if not found:
        raise EvaluationError(
            f"{run} holds no checkpoint (checkpoints/step-….pt); name the folder of a run, as .navi/runs/RUN, "
            "or train it first: the command that began it goes on with it"
        )
    return found[-1]


def fly_subject(
    subject: str | Path | ModelVersion, scenes: list[Scene], config: EvalConfig, name: str | None = None
) -> EvalResult:
    """Evaluate a subject with a progress bar; arguments and errors as `navi_core.evaluate.evaluate`."""
    from navi_core.evaluate import evaluate as evaluate_subject

    label = name or str(getattr(subject, "version", subject))
    with progress_bar(label) as progress:
        return evaluate_subject(subject, scenes, config, name=name, progress=partial(progress, ""))


def print_results(results: list[EvalResult]) -> None:
    """Print a table with one row per evaluation (all of one protocol); warn on stderr of scenes seen in training."""
    summary = results[0].summary
    for result in results:
        seen = int(result.summary.get("scenes_trained_on") or 0)
        if seen:
            typer.echo(
                f"{result.subject} was trained on {seen} of {summary['scenes']} scenes: there it shows what it "
                "remembers, elsewhere what it learned",
                err=True,
            )
    count = summary["scenes"]
    title = f"{count} scene{'s' * (count != 1)} × {summary['starts']} starts × {summary['max_steps']} decisions"
    names = results[0].scenes
    where = f"in {', '.join(names[:_NAMED])}" + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    goals = summary.get("task") == "point_goal"
    coverage = _SEEN if results[0].config.sensor.limited else _COVERAGE
    columns, units = (_GOALS, _GOAL_UNITS) if goals else (coverage, _COVERAGE_UNITS)
    cells = [[result.subject, *(read(result.summary) for read in columns.values())] for result in results]
    print_table(title, ("subject", *columns), cells, words=1, caption=f"{where}: {units}")
    for result in results:
        # Files of older versions do not hold them.
        given, initial = (result.summary.get(name) for name in ("inputs", "initial"))
        if given is not None:
            begun = "" if initial is None else f"; training began with {initial}"
            print_text(f"{result.subject}: inputs {given}{begun}")


def print_sentences(comparisons: Sequence[Comparison | SeedComparison]) -> None:
    """Print the verdict sentence of each comparison."""
    for comparison in comparisons:
        print_text(comparison.sentence)
