"""`navi materialize`: every asset of the graph in order, and what Dagster itself cost."""

import json
import os
from collections.abc import Mapping
from typing import Any

from navi_core.errors import EvaluationError
from navi_core.record import navi_home
from navi_core.terminal import print_records, print_status
from navi_pipeline.flow import Flow
from navi_pipeline.lib.orchestration import (
    WORK,
    Work,
    dagster_home,
    now,
    open_instance,
    what_is_missing,
)
from navi_pipeline.lib.records import BenchmarkLog
from navi_pipeline.lib.warehouse.warehouse import Warehouse


def run_graph(*, profile: str = "quick", size: str = "quick", seed: int = 0, as_json: bool = False) -> None:
    """Materialize every asset; print how long each took, and record the share of the time that was orchestration.

    Orchestration is what the time holds besides the functions of assets and checks: loading the graph, starting
    runs, Dagster's events and its database. On a busy machine the share of processor time is the one to trust.

    Args:
        profile: Training profile.
        size: Size of the sweeps.
        seed: Seed of the training runs.
        as_json: Print one JSON object on standard output and nothing else there.

    Raises:
        RunError: An asset failed.
        EvaluationError: The policy did not pass the gates before the promotion.
    """
    began = now()
    # Loading the graph belongs to what orchestration costs.
    from navi_pipeline.definitions import defs

    os.environ["DAGSTER_HOME"] = str(home := dagster_home())
    WORK.clear()
    with open_instance() as instance:
        flow = Flow(
            instance, defs().resolve_job_def, profile=profile, size=size, seed=seed, report=print_status, echo=True
        )
        print_status(f"Navi home {navi_home()}, Dagster home {home}, profile {profile}, seed {seed}")
        for line in what_is_missing(home):
            print_status(line)
        failed = flow.materialize_everything()
    total, work = now() - began, dict(WORK)
    rest = total - sum(work.values(), Work())
    rows = _asset_rows(work, flow.metadata)
    shares = {"orchestration_share": rest.wall / total.wall, "orchestration_cpu_share": rest.cpu / total.cpu}
    _record(profile, size, seed, total, shares, work)
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
        _print_times(total, rest, shares)
    if failed:
        raise EvaluationError(f"the policy did not pass: {'; '.join(failed)}")


def _asset_rows(work: dict[str, Work], metadata: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "asset": name,
            "seconds": round(spent.wall, 1),
            "CPU seconds": round(spent.cpu, 1),
            "reused": metadata[name].get("reused"),
        }
        for name, spent in work.items()
        if name in metadata
    ]


def _print_times(total: Work, rest: Work, shares: dict[str, float]) -> None:
    print(f"{total.wall:.0f} s on the wall, {total.cpu:.0f} s of processors")  # noqa: T201
    print(  # noqa: T201
        f"orchestration: {rest.wall:.1f} s on the wall ({shares['orchestration_share']:.1%}), "
        f"{rest.cpu:.1f} s of processors ({shares['orchestration_cpu_share']:.1%})"
    )


def _record(profile: str, size: str, seed: int, total: Work, shares: dict[str, float], work: dict[str, Work]) -> None:
    values = {"wall_seconds": (total.wall, "s"), "cpu_seconds": (total.cpu, "s")}
    values |= {name: (share, "share") for name, share in shares.items()}
    values |= {f"work/{name}": (spent.wall, "s") for name, spent in work.items()}
    with BenchmarkLog("orchestration") as log:
        log.cell(profile, values, seed=seed, parameters={"profile": profile, "size": size})
    Warehouse().ingest()
