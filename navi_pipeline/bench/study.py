"""Fault-injection test of a study: kill it at random with its workers; every trial must be recorded exactly once."""

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from navi_core.errors import RunError
from navi_pipeline.definitions import defs
from navi_pipeline.defs.experiments import trial
from navi_pipeline.lib.orchestration import dagster_home, open_instance
from navi_pipeline.lib.run_launcher import run_job
from navi_pipeline.lib.studies.catalogue import find_study
from navi_pipeline.lib.studies.results import audit_faults, trial_row
from navi_pipeline.lib.studies.trial_queue import TrialQueue
from navi_pipeline.lib.warehouse.warehouse import Warehouse

_NAME = "quick"
_PATIENCE = 180.0
"""Grace period for the study's process to end its trainers [s]."""


# Above 60 lines: the kills share one loop with the process that they end and start again.
def kill_and_resume(
    home: Path, *, trials: int, workers: int, kills: int, seed: int, on_line: Callable[[str], None]
) -> dict[str, Any]:
    """Materialize the asset `study` under injected SIGKILLs, then audit trials, rows and partitions.

    Each kill hits the study's process, with its workers; their trainers get SIGTERM and may end later.

    Args:
        home: An empty folder, for Navi's home and Dagster's.
        trials: Number of trials of the study.
        workers: Number of worker processes.
        kills: Number of injected kills.
        seed: Seed of the moments.
        on_line: Called with a line for each kill.

    Returns:
        trials, kills, attempts, rows (of the warehouse), partitions, faults (a list), wall_seconds.

    Raises:
        RunError: The study did not end.
    """
    began = time.monotonic()
    (home / "dagster").mkdir(parents=True)
    shutil.copy(dagster_home() / "dagster.yaml", home / "dagster")
    os.environ |= {"NAVI_HOME": str(home / "navi"), "DAGSTER_HOME": str(home / "dagster")}
    config = find_study(_NAME, overrides={"trials": trials, "workers": workers})
    moments = sorted(random.Random(seed).sample(range(1, trials), kills))
    command = [sys.executable, "-m", "navi_pipeline.bench.study", str(trials), str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done = 0
    try:
        with TrialQueue(config) as queue:
            while True:
                ended = process.poll()
                if ended is not None and done >= kills:
                    if ended:
                        raise RunError(f"the study's process ended with exit code {ended}")
                    break
                if done < kills and trials - queue.left() >= moments[done]:
                    process.kill()
                    process.wait()
                    done += 1
                    on_line(f"killed the study with {trials - queue.left()} of {trials} trials done")
                    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(0.2)
            rows = [trial_row(queue, trial) for trial in queue.trials()]
    finally:
        _end(process)
    with open_instance() as instance:
        partitions = instance.get_materialized_partitions(trial.key)
    stored, stored_faults = _stored(trials)
    return {
        "trials": trials,
        "kills": done,
        "attempts": sum(row["attempt"] for row in rows),
        "rows": stored,
        "partitions": len(partitions),
        "faults": audit_faults(config, rows, partitions) + stored_faults,
        "wall_seconds": round(time.monotonic() - began, 1),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _stored(trials: int) -> tuple[int, list[str]]:
    """Return the number of finished trials in the warehouse, and a fault for each count that is not `trials`."""
    stored = Warehouse().query("select count(*) as n from trials where state in ('complete', 'pruned')")
    metrics = Warehouse().query("select count(distinct run_id) as n from metrics where name = 'reward_ema'")
    counts = {"finished trials": int(stored["n"][0]), "runs with metrics": int(metrics["n"][0])}
    faults = [f"{n} {name} in the warehouse instead of {trials}" for name, n in counts.items() if n != trials]
    return counts["finished trials"], faults


def _materialize(trials: int, workers: int) -> int:
    """Materialize the small study's asset in this process and return the exit code."""
    with open_instance() as instance:
        instance.add_dynamic_partitions("studies", [_NAME])
        settings = {"study": {"config": {"trials": trials, "workers": workers}}}
        made = run_job(instance, defs().resolve_job_def("study_job"), partition=_NAME, ops=settings)
    return 0 if made.success else 1


if __name__ == "__main__":
    sys.exit(_materialize(int(sys.argv[1]), int(sys.argv[2])))
