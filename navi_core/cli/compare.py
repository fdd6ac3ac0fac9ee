"""`navi compare` and `navi bench baselines`: paired comparisons of evaluated policies, and of the scripted pilots."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from navi_core.cli import completion
from navi_core.cli.evaluate import (
    HELD_OUT,
    Delayed,
    Drift,
    HeightLimit,
    Json,
    Maps,
    Models,
    Noisy,
    NoRecord,
    Protocol,
    Resolution,
    Sampled,
    Scenes,
    Seed,
    Starts,
    Steps,
    Task,
    draw_maps,
    eval_config,
    find_subject,
    fly_subject,
    print_results,
    print_sentences,
    run_name,
)
from navi_core.errors import ConfigError
from navi_core.terminal import print_json, progress_bar

if TYPE_CHECKING:
    from navi_core.evaluate import Comparison, SeedComparison
    from navi_core.scenes import Scene

_BETWEEN = "vs"
"""Command-line separator between the two sides of a comparison."""


app = typer.Typer()


# More than 60 lines: flags and their help.
@app.command()
def compare(
    subjects: Annotated[
        list[str],
        typer.Argument(
            help="A B, or A… vs B… with one checkpoint per training seed. A pilot, a checkpoint, the folder of a "
            "run, a version, an alias, or a file that `navi evaluate --out` wrote.",
            metavar="A… [vs] B…",
            autocompletion=completion.subjects,
        ),
    ],
    metric: Annotated[list[str] | None, typer.Option(help="Metric; may be repeated.")] = None,
    scene: Scenes = None,
    protocol: Protocol = "quick",
    starts: Starts = None,
    steps: Steps = None,
    seed: Seed = 0,
    sampled: Sampled = False,
    noisy: Noisy = False,
    delayed: Delayed = False,
    drift: Drift = "none",
    height_limit: HeightLimit = None,
    task: Task = "explore",
    resolution: Resolution = 512,
    models: Models = None,
    maps: Maps = None,
    no_record: NoRecord = False,
    as_json: Json = False,
) -> None:
    """Compare two policies A and B on the same start poses, with confidence intervals.

    Two subjects are compared by the paired interval over scenes and starts. Several checkpoints a side, one per
    training seed, are compared by the two-way interval over seeds and scenes; "better" needs five seeds.
    """
    from navi_core.evaluate import EvalResult, compare_seeds, record_comparison, record_evaluation
    from navi_core.evaluate import compare as compare_results
    from navi_core.record.home import load_scenes

    sides = two_sides(subjects)
    config = eval_config(
        protocol, starts, steps, seed, sampled, noisy, task, None, delayed, drift, height_limit=height_limit
    )
    scenes: list[Scene] = []

    def flown(name: str) -> EvalResult:
        nonlocal scenes
        if name.endswith(".json"):
            result = EvalResult.load(name)
        else:
            found = find_subject(name, models)
            scenes = scenes or load_scenes(scene or HELD_OUT, resolution)
            result = fly_subject(found, scenes, config, name if len(subjects) > 2 else run_name(name, found))
        if not no_record:
            # At once: of ten checkpoints nine may be done when something ends the command.
            record_evaluation(result)
        return result

    results = [[flown(name) for name in side] for side in sides]
    everybody = [result for side in results for result in side]
    if maps is not None:
        draw_maps(maps, [result for result in everybody if result.trajectories], scenes)
    verdicts: list[Comparison] | list[SeedComparison]
    goals = everybody[0].summary.get("task") == "point_goal"
    headline = ("success", "spl") if goals else (everybody[0].config.coverage_metric,)
    metrics = metric or [*headline, "collisions_per_minute"]
    if len(everybody) == 2:
        verdicts = [compare_results(results[0][0], results[1][0], name) for name in metrics]
    else:
        named = (_pattern(sides[0]), _pattern(sides[1]))
        verdicts = [compare_seeds(results[0], results[1], name, names=named) for name in metrics]
    if not no_record:
        for verdict in verdicts:
            record_comparison(verdict, *results)
    if as_json:
        print_json({"comparisons": [verdict.to_row() for verdict in verdicts]})
    else:
        print_results(everybody)
        print_sentences(verdicts)
        if len(everybody) == 2 and any(result.summary.get("weights_hash") for result in everybody):
            typer.echo(
                f"One checkpoint is one training. Ways of training need one per seed: navi compare A… {_BETWEEN} B…"
            )


def two_sides(subjects: list[str]) -> tuple[list[str], list[str]]:
    """Split the subjects of a comparison into two sides: those before and after `vs`, or two subjects alone.

    Raises:
        ConfigError: The two sides are ambiguous, or one is empty.
    """
    if _BETWEEN not in subjects:
        if len(subjects) == 1:
            raise ConfigError(f"{subjects[0]} alone has nobody beside it: navi compare {subjects[0]} forward-plus")
        if len(subjects) != 2:
            raise ConfigError(
                f"{len(subjects)} subjects have no sides; put {_BETWEEN} between them: navi compare A A {_BETWEEN} B B"
            )
        return subjects[:1], subjects[1:]
    where = subjects.index(_BETWEEN)
    sides = subjects[:where], subjects[where + 1 :]
    if not all(sides) or _BETWEEN in sides[1]:
        raise ConfigError(f"{_BETWEEN} stands once, with subjects before and after it")
    return sides


def _pattern(names: list[str]) -> str:
    """Shorten several names to one glob-like pattern: common prefix, `*`, common suffix."""
    if len(names) == 1:
        return Path(names[0]).stem
    start = os.path.commonprefix(names)  # noqa: RUF071 (letters, not folders)
    end = os.path.commonprefix([name[len(start) :][::-1] for name in names])[::-1]  # noqa: RUF071
    return f"{start}*{end}"


def baselines(
    pilot: Annotated[list[str] | None, typer.Option(help="A pilot; may be repeated. By default all baselines.")] = None,
    scene: Scenes = None,
    protocol: Protocol = "quick",
    starts: Starts = None,
    steps: Steps = None,
    seed: Seed = 0,
    noisy: Noisy = False,
    height_limit: HeightLimit = None,
    resolution: Resolution = 512,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results, a file per pilot; by default in the Navi home.")
    ] = None,
    no_record: NoRecord = False,
    as_json: Json = False,
) -> None:
    """Evaluate the scripted baselines (pilots) on the validation scenes; compare each with the next one below it.

    The same command continues a stopped evaluation. `navi compare RUN OUT/frontier.json`
    compares a policy with the kept results.
    """
    from navi_core.bench.evaluation import neighbours
    from navi_core.cli.evaluate import eval_config, find_subject, print_results, print_sentences
    from navi_core.config import BASELINES, config_hash
    from navi_core.evaluate import evaluate_in_pieces, record_comparison, record_evaluation
    from navi_core.record import navi_home
    from navi_core.record.home import scene_loaders

    config = eval_config(protocol, starts, steps, seed, False, noisy, height_limit=height_limit)
    loaders = scene_loaders(scene or ("rooms-v1:validation",), resolution)
    folder = out or navi_home() / "baselines" / f"{protocol}-{config_hash(config)}"
    subjects = [find_subject(name, None) for name in pilot or BASELINES]
    with progress_bar("baselines") as progress:
        results = evaluate_in_pieces(subjects, loaders, config, folder, progress=progress)
    for result in results:
        result.save(folder / f"{result.subject}.json")
    verdicts = neighbours(results)
    if not no_record:
        by_name = {result.subject: result for result in results}
        for result in results:
            record_evaluation(result)
        for verdict in verdicts:
            record_comparison(verdict, [by_name[verdict.a]], [by_name[verdict.b]])
    if as_json:
        comparisons = [verdict.to_row() for verdict in verdicts]
        print_json({"folder": str(folder), "summaries": [r.summary for r in results], "comparisons": comparisons})
        return
    print_results(sorted(results, key=lambda result: float(result.summary[result.config.coverage_metric])))
    print_sentences(verdicts)
    typer.echo(f"kept in {folder}")
