"""`navi bench baselines`: the scripted pilots on the validation scenes."""

from pathlib import Path
from typing import Annotated

import typer

from navi_core.cli.evaluate import Json, Noisy, NoRecord, Protocol, Resolution, Scenes, Seed, Starts, Steps
from navi_core.terminal import print_json, progress_bar


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
    """Fly the scripted baselines on the validation scenes, and compare each with the next one below it.

    The same command continues a stopped evaluation. `navi compare RUN OUT/frontier.json`
    compares a policy with the kept results.
    """
    from navi_core.bench.evaluation import neighbours
    from navi_core.cli.evaluate import eval_config, find_subject, print_results, print_sentences
    from navi_core.config import BASELINES, config_hash
    from navi_core.evaluate import evaluate_in_pieces, record_comparison, record_evaluation
    from navi_core.record import navi_home
    from navi_core.record.home import scene_loaders

    config = eval_config(protocol, starts, steps, seed, False, noisy)
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
    print_results(sorted(results, key=lambda result: float(result.summary["c_vis_auc"])))
    print_sentences(verdicts)
    typer.echo(f"kept in {folder}")
