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

from navi_pipeline.lib.dagster_instance import HOST_TAG

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
        if pid is None or _is_python(pid):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"its process {pid} is gone")

    def terminate(self, run_id: str) -> bool:
        """End a run; one that a command works on itself as Ctrl-C would, for it has no code server to be asked."""
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished or GRPC_INFO_TAG in run.tags:
            return bool(super().terminate(run_id))
        pid = self._process(run)
        if pid is None or not _is_python(pid):
            return bool(super().terminate(run_id))
        self._instance.report_run_canceling(run)
        os.kill(pid, signal.SIGINT)
        return True

    def _process(self, run: dg.DagsterRun) -> int | None:
        launched = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
        # A socket is a file; a code server with a port may be anywhere.
        if "socket" not in launched and run.tags.get(HOST_TAG) != platform.node():
            return None
        begun = self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_START)
        event = begun[-1].dagster_event if begun else None
        return None if event is None else event.pid


def _is_python(pid: int) -> bool:
    """Whether there is such a process: after a restart of the machine its number may be another program's."""
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except PermissionError:
        return True
    except OSError:
        # No such process, one that has ended and is not waited for yet, or a system without /proc.
        return not Path("/proc/self").exists()
