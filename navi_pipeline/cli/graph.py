"""CLI commands `navi pipeline demo`, `materialize` and `ui`: run the asset graph, report Dagster's overhead, show it.

Orchestration is the total time minus the functions of assets and checks: loading the graph, starting runs, Dagster's
events and its database. On a busy machine, use the share of CPU time.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from navi_core.errors import EvaluationError, UnavailableError
from navi_core.record import navi_home
from navi_core.terminal import console, print_records, print_status, print_table

if TYPE_CHECKING:
    from navi_pipeline.jobs import Flow

PROFILE = "demo"
"""Training profile (preset) of the demo."""


def demo(
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of scenes, training and evaluation.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Run the demo, from scenes to a champion: training, evaluation against scripted pilots, promotion.

    Scenes are generated; every mesh under $NAVI_SCENES is added if that is set. Unchanged results are reused.
    """
    from navi_pipeline.lib.orchestration import now

    began = now()
    with _opened_flow(PROFILE, "quick", seed) as flow:
        from navi_pipeline.defs.corpus import DEFAULT_SCENES
        from navi_pipeline.lib.evaluation.scoring import PILOTS, read_verdict

        # Always those of its table, whatever was planned here.
        flow.materialize_scenes(DEFAULT_SCENES)
        failed = flow.materialize_policy()
        # They have flown beside the policy; the others would take a third of a minute more.
        flow.materialize_summary(PILOTS)

    verdict = read_verdict(PROFILE)
    seconds = (now() - began).wall
    promotion = None if failed else {n: v for n, v in flow.metadata["promoted_model"].items() if n != "versions"}
    if as_json:
        document = {
            "seed": seed,
            "seconds": round(seconds, 1),
            "stages": flow.stages,
            **{name: verdict[name] for name in ("test", "external", "policy")},
            "promotion": promotion,
            "failed_gates": failed,
        }
        print(json.dumps(document, default=str))  # noqa: T201
    else:
        _print_result(verdict, promotion, seconds)
    _require_passed(failed)


def materialize(
    profile: Annotated[
        str, typer.Option(help="Profile, a preset: demo, generalist, quick, rooms, rooms_standard, scans, standard.")
    ] = "quick",
    size: Annotated[str, typer.Option(help="Size of the sweeps: quick or full.")] = "quick",
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the training runs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Materialize every asset of the graph, and print each duration and Dagster's overhead.

    Unchanged results are reused.
    """
    from navi_pipeline.lib.orchestration import WORK, Work, now
    from navi_pipeline.lib.records import BenchmarkLog
    from navi_pipeline.lib.warehouse.warehouse import Warehouse

    began = now()
    # Loading the graph belongs to what orchestration costs.
    with _opened_flow(profile, size, seed) as flow:
        failed = flow.materialize_everything()
    total = now() - began
    rest = total - sum(WORK.values(), Work())
    rows = [
        {
            "asset": name,
            "seconds": round(spent.wall, 1),
            "CPU seconds": round(spent.cpu, 1),
            "reused": flow.metadata[name].get("reused"),
        }
        for name, spent in WORK.items()
        if name in flow.metadata
    ]
    shares = {"orchestration_share": rest.wall / total.wall, "orchestration_cpu_share": rest.cpu / total.cpu}
    values = {
        "wall_seconds": (total.wall, "s"),
        "cpu_seconds": (total.cpu, "s"),
        **{name: (share, "share") for name, share in shares.items()},
        **{f"work/{name}": (spent.wall, "s") for name, spent in WORK.items()},
    }
    with BenchmarkLog("orchestration") as log:
        log.cell(profile, values, seed=seed, parameters={"profile": profile, "size": size})
    Warehouse().ingest()
    document: dict[str, Any] = {
        "profile": profile,
        "seconds": round(total.wall, 1),
        "cpu_seconds": round(total.cpu, 1),
        "orchestration_seconds": round(rest.wall, 1),
        "orchestration_cpu_seconds": round(rest.cpu, 1),
        **{name: round(share, 4) for name, share in shares.items()},
        "assets": rows,
        "failed_gates": failed,
    }
    if as_json:
        print(json.dumps(document))  # noqa: T201
    else:
        print_records(f"profile {profile}: {len(rows)} assets", rows)
        print(  # noqa: T201
            f"{total.wall:.0f} s on the wall, {total.cpu:.0f} s of processors\n"
            f"orchestration: {rest.wall:.1f} s on the wall ({shares['orchestration_share']:.1%}), "
            f"{rest.cpu:.1f} s of processors ({shares['orchestration_cpu_share']:.1%})"
        )
    _require_passed(failed)


def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 3000,
) -> None:
    """Serve the Dagster UI and its daemon: the asset graph, runs, checks and schedules; ends with Ctrl-C."""
    from navi_pipeline.lib.orchestration import dagster_home, open_instance
    from navi_pipeline.lib.records import PACKAGE

    # Those of the folder where it was called, before it is left.
    os.environ["NAVI_HOME"] = str(navi_home())
    with open_instance(dagster_home()):
        pass  # reports a storage that fails, where Dagster prints a traceback
    dg = Path(sys.executable).with_name("dg")
    if not dg.is_file():
        raise UnavailableError(f"{dg} is not there; next: pip install dagster-dg-cli")
    # dg finds the definitions by a file: pyproject.toml of a checkout, dg.toml of an installation.
    os.chdir(PACKAGE.parent if (PACKAGE.parent / "pyproject.toml").is_file() else PACKAGE)
    console().print(
        f"the Dagster UI: http://127.0.0.1:{port} (about 20 s to start; Ctrl-C ends it); home {navi_home()}",
        soft_wrap=True,
    )
    sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it, and dg ends its servers by it
    os.execv(dg, ["dg", "dev", "-h", "127.0.0.1", "-p", str(port)])


@contextmanager
def _opened_flow(profile: str, size: str, seed: int) -> Iterator[Flow]:
    """Load the asset graph and open the Dagster instance; progress and missing files are printed to standard error."""
    from navi_pipeline.definitions import defs
    from navi_pipeline.jobs import Flow, FlowSettings
    from navi_pipeline.lib.orchestration import dagster_home, open_instance, what_is_missing

    with open_instance(home := dagster_home()) as instance:
        settings = FlowSettings(profile=profile, size=size, seed=seed)
        flow = Flow(instance, defs().resolve_job_def, settings, report=print_status, echo=True)
        print_status(f"Navi home {navi_home()}, Dagster home {home}, profile {profile}, seed {seed}")
        for line in what_is_missing(home):
            print_status(line)
        try:
            yield flow
        except KeyboardInterrupt:
            print_status("interrupted; the same command continues")
            raise


def _require_passed(failed: list[str]) -> None:
    if failed:
        raise EvaluationError(f"the policy did not pass: {'; '.join(failed)}")


def _print_result(verdict: dict[str, Any], promotion: dict[str, Any] | None, seconds: float) -> None:
    out = console()
    for split, title in (("test", "held-out scenes, never trained on"), ("external", "scenes of $NAVI_SCENES")):
        part = verdict[split]
        if part is None:
            continue
        rows = [list(map(str, row.values())) for row in part["table"]]
        title = f"{title}: {part['scenes']}, episodes each: {part['episodes']}"
        print_table(title, list(part["table"][0]), rows, words=1)
        for pilot in part["comparisons"].values():
            out.print(pilot["c_vis_auc"]["sentence"], soft_wrap=True)
        for name, inputs in part["inputs"].items():
            out.print(f"inputs of {name}: {inputs}", soft_wrap=True)
    if promotion is not None:
        out.print(f"\nchampion: {promotion['champion']}. {promotion['reason']}", soft_wrap=True)
    out.print(f"\n{seconds:.0f} s. Where to look next:")
    # As it can be typed here: the environment is rarely activated after a first `make demo`.
    navi = "navi" if shutil.which("navi") else str(Path(sys.executable).with_name("navi"))
    if Path(navi).is_relative_to(Path.cwd()):
        navi = str(Path(navi).relative_to(Path.cwd()))
    for command, what in (
        (f"{navi} ui", "the graph, its checks, maps with the paths flown, reward curves"),
        (f"{navi} query ranking", "who explores best"),
        (f'{navi} query "select * from model_lineage"', "what the champion descends from"),
        (f"{navi} query latest_curve", "how the training went"),
        (f"NAVI_SCENES=/folder/of/meshes {navi} demo", "the same on your own scenes"),
    ):
        out.print(f"  {command:<54} {what}")
