"""`navi materialize`: every asset of the graph in order, and what Dagster itself cost."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from navi_core.errors import EvaluationError
from navi_core.record import navi_home
from navi_pipeline.lib.benchmark_log import BenchmarkLog
from navi_pipeline.lib.clock import reset_work, work_by_name
from navi_pipeline.lib.dagster_instance import dagster_home, open_instance
from navi_pipeline.lib.flow import Flow
from navi_pipeline.lib.warehouse import Warehouse

__all__ = ["run_graph"]


def run_graph(*, profile: str = "quick", size: str = "quick", seed: int = 0, as_json: bool = False) -> None:
    """Materialize every asset; print how long each took, and record the share of the time that was orchestration.

    Orchestration is what the wall time holds besides the functions of assets and checks: loading the graph,
    starting runs, Dagster's events and its database.

    Args:
        profile: Training profile.
        size: Size of the sweeps.
        seed: Seed of the training runs.
        as_json: Print one JSON object on standard output and nothing else there.

    Raises:
        RunError: An asset failed.
        EvaluationError: The policy did not pass the gates before the promotion.
    """
    began = time.monotonic()
    os.environ["DAGSTER_HOME"] = str(dagster_home())
    reset_work()
    with open_instance() as instance:
        flow = Flow(instance, profile=profile, size=size, seed=seed, say=_say, echo=True)
        _say(f"Navi home {navi_home()}, Dagster home {os.environ['DAGSTER_HOME']}, profile {profile}, seed {seed}")
        failed = flow.materialize_everything()
    seconds = time.monotonic() - began
    work = work_by_name()
    share = 1.0 - sum(work.values()) / seconds
    _record(profile, size, seed, seconds, share, work)
    rows = [
        {"asset": name, "seconds": round(work[name], 1), "reused": flow.metadata[name].get("reused")}
        for name in work
        if name in flow.metadata
    ]
    checks = sum(value for name, value in work.items() if name not in flow.metadata)
    document: dict[str, Any] = {
        "profile": profile,
        "seconds": round(seconds, 1),
        "orchestration_seconds": round(share * seconds, 1),
        "orchestration_share": round(share, 4),
        "checks_seconds": round(checks, 1),
        "assets": rows,
        "failed_gates": failed,
    }
    if as_json:
        print(json.dumps(document))  # noqa: T201
    else:
        from navi_core.cli.table import print_records

        print_records(f"profile {profile}: {len(rows)} assets in {seconds:.0f} s", rows)
        print(f"orchestration: {share * seconds:.1f} s, {share:.1%} of the wall time; checks {checks:.1f} s")  # noqa: T201
    if failed:
        raise EvaluationError(f"the policy did not pass: {'; '.join(failed)}")


def _record(profile: str, size: str, seed: int, seconds: float, share: float, work: dict[str, float]) -> None:
    values = {"wall_seconds": (seconds, "s"), "orchestration_share": (share, "share")}
    values |= {f"work/{name}": (value, "s") for name, value in work.items()}
    with BenchmarkLog("orchestration") as log:
        log.cell(profile, values, seed=seed, parameters={"profile": profile, "size": size})
    Warehouse().ingest()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201
