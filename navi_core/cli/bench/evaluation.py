"""`navi bench baselines` and `navi bench evaluation`: the scripted pilots in their order; how fast evaluations fly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from navi_core.cli.bench.report import Json, Repeats, Scenes, figure, report, sizes
from navi_core.cli.evaluate import Noisy, NoRecord, Protocol, Resolution, Seed, Starts, Steps
from navi_core.terminal.progress import progress_bar
from navi_core.terminal.table import print_json

if TYPE_CHECKING:
    from navi_core.evaluate import EvalResult

__all__ = ["baselines", "evaluation"]


def baselines(
    pilot: Annotated[list[str] | None, typer.Option(help="A pilot; may be repeated. By default all baselines.")] = None,
    scene: Scenes = None,
    protocol: Protocol = "quick",
    starts: Starts = None,
    steps: Steps = None,
    seed: Seed = 0,
    noisy: Noisy = False,
    resolution: Resolution = 512,
    out: Annotated[
        Path | None, typer.Option(help="Where results are kept, a file per pilot; by default in the Navi home.")
    ] = None,
    no_record: NoRecord = False,
    as_json: Json = False,
) -> None:
    """Fly the scripted baselines on the validation scenes, and say whether each is better than the one below it.

    Flown a few scenes at a time; given again, it goes on where it was stopped. `navi compare RUN OUT/frontier.json`
    compares a policy with what was kept.
    """
    from navi_core.bench.evaluation import neighbours
    from navi_core.cli.evaluate import eval_config, find_subject, print_results, say, scene_loaders
    from navi_core.config import BASELINES, config_hash
    from navi_core.evaluate import evaluate_in_pieces, record_comparison, record_evaluation
    from navi_core.record import navi_home

    config = eval_config(protocol, starts, steps, seed, False, noisy)
    loaders = scene_loaders(scene or ("rooms-v1:validation",), resolution)
    folder = out or navi_home() / "baselines" / f"{protocol}-{config_hash(config)}"
    subjects = [find_subject(name, None) for name in pilot or BASELINES]
    with progress_bar("baselines") as progress:
        results: list[EvalResult] = evaluate_in_pieces(subjects, loaders, config, folder, progress=progress)
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
    print_results(sorted(results, key=lambda result: float(result.summary["c_vis_auc"])))
    say(verdicts)
    typer.echo(f"kept in {folder}")


def evaluation(
    subject: Annotated[
        list[str] | None, typer.Option(help="A pilot, or encoder+core such as rayvit+mamba2; may be repeated.")
    ] = None,
    scene: Scenes = None,
    size: Annotated[str, typer.Option(help="Azimuth and elevation bins.", metavar="AZxEL")] = "256x48",
    steps: Annotated[int, typer.Option(min=1, help="Decisions of an episode.")] = 50,
    repeats: Repeats = 3,
    as_json: Json = False,
) -> None:
    """Time evaluations: seconds flown, summed over 16 drones, in each second of one core and of the clock."""
    from navi_core.bench.evaluation import time_evaluation
    from navi_core.cli.evaluate import load_scenes

    ((azimuth, elevation),) = sizes([size])
    scenes = load_scenes(scene or ["rooms-v1:validation"], 512)[:2]
    names = subject or ["forward-plus", "frontier", "rayvit+mamba2", "ring_cnn+gru"]
    with progress_bar("evaluation") as progress:
        rows = time_evaluation(
            scenes, names, azimuth=azimuth, elevation=elevation, steps=steps, repeats=repeats,
            progress=lambda done, total: progress("", done, total),
        )  # fmt: skip
    columns = {
        "subject": figure("subject"),
        "size": figure("size"),
        "drones": figure("drones"),
        "s per CPU s": figure("per_cpu_second", ".1f"),
        "s per s": figure("per_wall_second", ".1f"),
    }
    caption = "simulated seconds, summed over drones, in each of one core and of the clock"
    report("evaluation", [row.as_dict() for row in rows], columns, as_json, threads=1, words=2, caption=caption)
