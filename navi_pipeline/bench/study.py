"""Fault-injection test of a study: kill it at random with its workers; every trial must be recorded exactly once."""

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from navi_core.errors import RunError
from navi_pipeline.defs.experiments import trial
from navi_pipeline.lib.orchestration import dagster_home, open_instance
from navi_pipeline.lib.studies.catalogue import find_study
from navi_pipeline.lib.studies.results import audit_faults, trial_row
from navi_pipeline.lib.studies.trial_queue import TrialQueue
from navi_pipeline.lib.warehouse.warehouse import Warehouse

_NAME = "quick"
_STORED = {
    "finished trials": "select count(*) as n from trials where state in ('complete', 'pruned')",
    "runs with metrics": "select count(distinct run_id) as n from metrics where name = 'reward_ema'",
}
"""Rows of the warehouse, one for each trial, and the query that counts them."""


def kill_and_resume(
    home: Path, *, trials: int, workers: int, kills: int, seed: int, on_line: Callable[[str], None]
) -> dict[str, Any]:
    """Give `navi study run` again and again under injected SIGKILLs, then audit trials, rows and partitions.

    Each kill hits the study's process, with its workers; their trainers get SIGTERM and may end later.

    Args:
        home: An empty folder, for Navi's home and Dagster's.
        trials: Number of trials of the study.
        workers: Number of trials at once.
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
    command = [sys.executable, "-m", "navi_core.cli.main", "study", "run", _NAME, "--json"]
    command += ["--trials", str(trials), "--workers", str(workers)]
    started = partial(subprocess.Popen[bytes], command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with TrialQueue(config) as queue:
        for moment in sorted(random.Random(seed).sample(range(1, trials), kills)):
            with started() as process:
                try:
                    while process.poll() is None and trials - queue.left() < moment:
                        time.sleep(0.2)
                finally:
                    process.kill()
            on_line(f"killed the study with {trials - queue.left()} of {trials} trials done")
        with started() as process:
            if process.wait():
                raise RunError(f"the study's process ended with exit code {process.returncode}")
        rows = [trial_row(queue, trial) for trial in queue.trials()]
    with open_instance(dagster_home()) as instance:
        partitions = instance.get_materialized_partitions(trial.key)
    stored = {name: int(Warehouse().query(sql)["n"][0]) for name, sql in _STORED.items()}
    faults = [f"{n} {name} in the warehouse instead of {trials}" for name, n in stored.items() if n != trials]
    return {
        "trials": trials,
        "kills": kills,
        "attempts": sum(row["attempt"] for row in rows),
        "rows": stored["finished trials"],
        "partitions": len(partitions),
        "faults": audit_faults(config, rows, partitions) + faults,
        "wall_seconds": round(time.monotonic() - began, 1),
    }
