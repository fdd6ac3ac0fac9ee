"""A run launcher that sees when the process of a run is gone; Dagster's own has such a run at work for ever.

As long as the code server lives, it reports a worker that was killed. Where it goes too, with the machine for
instance, or where a command like `navi materialize` is killed, nobody does: the run would keep its place in the queue
and in the pool, and after two of them none would begin any more.
"""

from __future__ import annotations

import json
import os
import platform
import signal
from pathlib import Path

import dagster as dg
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.storage.tags import GRPC_INFO_TAG

from navi_pipeline.lib.dagster_instance import PROCESS_TAG, process_mark

__all__ = ["WatchedRunLauncher"]


class WatchedRunLauncher(DefaultRunLauncher):
    """Tells run monitoring which runs of this machine have lost their process, and ends all that have one.

    `dagster.yaml` names it.
    """

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Whether runs are looked at."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Look for the process that a run began in; one that is not of this machine is taken to be at work."""
        pid = self._process(run)
        if pid is None or _at_work(run, pid):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"its process {pid} is gone")

    def terminate(self, run_id: str) -> bool:
        """End a run; one that a command works on itself as Ctrl-C would, for it has no code server to be asked."""
        run = self._instance.get_run_by_id(run_id)
        pid = None if run is None or run.is_finished else self._process(run)
        if run is None or pid is None or not _at_work(run, pid):
            return bool(super().terminate(run_id))
        # What whole_graph is just making ends with it, and is not to be told as a failure of those assets.
        for other in self._instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
            if PROCESS_TAG in other.tags and other.run_id != run_id and self._process(other) == pid:
                self._instance.report_run_canceling(other)
        if GRPC_INFO_TAG in run.tags:
            return bool(super().terminate(run_id))
        self._instance.report_run_canceling(run)
        os.kill(pid, signal.SIGINT)
        return True

    def _process(self, run: dg.DagsterRun) -> int | None:
        launched = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
        # A socket is a file; a code server with a port may be anywhere.
        here = run.tags.get(PROCESS_TAG, "").partition(" ")[0] == platform.node()
        if "socket" not in launched and not here:
            return None
        begun = self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_START)
        event = begun[-1].dagster_event if begun else None
        return None if event is None else event.pid


def _at_work(run: dg.DagsterRun, pid: int) -> bool:
    """Whether the process that began a run is there still: its number may be another program's by now."""
    try:
        if PROCESS_TAG in run.tags:
            return process_mark(pid) == run.tags[PROCESS_TAG]
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except PermissionError:
        return True
    except OSError:
        # No such process, one that has ended and is not waited for yet, or a system without /proc.
        return not Path("/proc/self").exists()
