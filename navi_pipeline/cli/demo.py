"""`navi demo`: the way from scenes to a champion through Dagster, and a table at the end."""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from navi_core.errors import EvaluationError
from navi_core.record import navi_home
from navi_core.terminal import print_status
from navi_pipeline.definitions import defs
from navi_pipeline.defs.corpus import DEFAULT_SCENES
from navi_pipeline.flow import Flow
from navi_pipeline.lib.orchestration import dagster_home, open_instance, what_is_missing

PROFILE = "demo"
"""Training profile of the demo."""


def run_demo(*, seed: int = 0, as_json: bool = False) -> None:
    """Materialize the way from scenes to a champion, and print how the policy compares with two pilots.

    Args:
        seed: Seed of the training run.
        as_json: Print one JSON object on standard output and nothing else there.

    Raises:
        RunError: An asset failed.
        EvaluationError: The policy did not pass the gates before the promotion.
    """
    began = time.monotonic()
    os.environ["DAGSTER_HOME"] = str(home := dagster_home())
    with open_instance() as instance:
        flow = Flow(instance, defs().resolve_job_def, profile=PROFILE, seed=seed, report=print_status, echo=True)
        print_status(f"Navi home {navi_home()}, Dagster home {home}, seed {seed}")
        for line in what_is_missing(home):
            print_status(line)
        # Always those of its table, whatever was planned here.
        flow.materialize_scenes(DEFAULT_SCENES)
        failed = flow.materialize_policy()
    from navi_pipeline.lib.evaluation.scoring import read_verdict

    verdict = read_verdict(PROFILE)
    seconds = time.monotonic() - began
    promotion = None if failed else {n: v for n, v in flow.metadata["promoted_model"].items() if n != "versions"}
    if as_json:
        document = {
            "seed": seed,
            "seconds": round(seconds, 1),
            "stages": flow.stages,
            "test": verdict["test"],
            "external": verdict["external"],
            "policy": verdict["policy"],
            "promotion": promotion,
            "failed_gates": failed,
        }
        print(json.dumps(document, default=str))  # noqa: T201
    else:
        _print_result(verdict, promotion, seconds)
    if failed:
        raise EvaluationError(f"the policy did not pass: {'; '.join(failed)}")


def _print_result(verdict: dict[str, Any], promotion: dict[str, Any] | None, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    for split, title in (("test", "held-out scenes, never trained on"), ("external", "scenes of $NAVI_SCENES")):
        part = verdict[split]
        if part is None:
            continue
        table = Table(title=f"{title}: {part['scenes']}, episodes each: {part['episodes']}", title_justify="left")
        for name in part["table"][0]:
            table.add_column(name, justify="left" if name == "subject" else "right")
        for row in part["table"]:
            table.add_row(*(str(value) for value in row.values()))
        console.print(table)
        for pilot in part["comparisons"].values():
            console.print(pilot["c_vis_auc"]["sentence"], soft_wrap=True)
    if promotion is not None:
        console.print(f"\nchampion: {promotion['champion']}. {promotion['reason']}", soft_wrap=True)
    console.print(f"\n{seconds:.0f} s. Where to look next:")
    # As it can be typed here: the environment is rarely activated after a first `make demo`.
    navi = "navi" if shutil.which("navi") else str(Path(sys.executable).with_name("navi"))
    if Path(navi).is_relative_to(Path.cwd()):
        navi = str(Path(navi).relative_to(Path.cwd()))
    for command, what in (
        ("make ui", "the graph, its checks, maps with the paths flown, reward curves"),
        (f"{navi} query ranking", "who explores best"),
        (f'{navi} query "select * from model_lineage"', "what the champion descends from"),
        (f"{navi} query latest_curve", "how the training went"),
        ("NAVI_SCENES=/folder/of/meshes make demo", "the same on your own scenes"),
    ):
        console.print(f"  {command:<54} {what}", markup=False)
