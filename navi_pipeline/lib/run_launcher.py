"""Dagster run launcher that detects lost run workers; Dagster's default launcher reports them as running for ever.

The code server reports a killed worker as long as it lives. If the code server dies too (with the machine, for
example), or a command such as `navi materialize` is killed, nothing reports the run. It would keep its place in queue
and pool, and two such runs would block all later ones.
"""

import json
import os
import platform
import signal
import time
from pathlib import Path

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError, DagsterUserCodeUnreachableError
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, WorkerStatus
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.storage.tags import GRPC_INFO_TAG

from navi_core.errors import RunError
from navi_pipeline.lib.orchestration import PROCESS_TAG, process_mark


class WatchedRunLauncher(DefaultRunLauncher):
    """Run launcher with health checks for runs of this machine, and termination of those that have a process.

    It is configured in `dagster.yaml`.
    """

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run and tag it with this machine's name: other machines share the home but cannot see its process.

        The tag replaces the process mark that a run copies when it is re-executed from a command's run.
        """
        self._instance.add_run_tags(context.dagster_run.run_id, {PROCESS_TAG: platform.node()})
        super().launch_run(context)

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Return True: run monitoring checks the health of run workers."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Check that the run's process is alive; a run of another machine is reported as running."""
        pid = self._process(run)
        if pid is None or _at_work(run, pid):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"its process {pid} is gone")

    def terminate(self, run_id: str) -> bool:
        """Terminate a run; one that a command executes in process is sent SIGINT, for it has no code server.

        Raises:
            RunError: Its process is another user's.
        """
        run = self._instance.get_run_by_id(run_id)
        pid = None if run is None or run.is_finished else self._process(run)
        if run is None or pid is None or not _at_work(run, pid):
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        if GRPC_INFO_TAG not in run.tags and _another_users(pid):
            raise RunError(f"process {pid}, which works on run {run_id}, is another user's, who can end it")
        # What whole_graph is just making ends with it, and is no failure of those assets.
        for other in self._instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
            if GRPC_INFO_TAG not in other.tags and other.run_id != run_id and self._process(other) == pid:
                self._instance.report_run_canceling(other)
        if GRPC_INFO_TAG in run.tags:
            try:
                if super().terminate(run_id):  # type: ignore[no-untyped-call]
                    return True
            except (DagsterUserCodeUnreachableError, DagsterUserCodeProcessError):
                if not self._is_worker(run, pid):
                    raise
            # The code server was killed, and its worker goes on: it gets the signal that the server would have sent.
            if not self._is_worker(run, pid):
                return False
        else:
            self._instance.report_run_canceling(run)
        os.kill(pid, signal.SIGINT)
        return True

    def _process(self, run: dg.DagsterRun) -> int | None:
        launched = json.loads(run.tags.get(GRPC_INFO_TAG, "{}"))
        here = run.tags.get(PROCESS_TAG, "").partition(" ")[0] == platform.node()
        # A code server with a port may be anywhere, whoever has launched the run.
        if "port" in launched or not here:
            return None
        event = self._start(run)
        return None if event is None or event.dagster_event is None else event.dagster_event.pid

    def _start(self, run: dg.DagsterRun) -> dg.EventLogEntry | None:
        begun = self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_START)
        return begun[-1] if begun else None

    def _is_worker(self, run: dg.DagsterRun, pid: int) -> bool:
        """Return whether the process began before the run's start event, and so is the run's worker."""
        start = self._start(run)
        if start is None or not Path("/proc/self").exists():
            return False
        begun = int(process_mark(pid).rpartition(" ")[2]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - begun) < start.timestamp


def _at_work(run: dg.DagsterRun, pid: int) -> bool:
    """Return whether the run's process is still alive, and not another program with the same process id."""
    try:
        if GRPC_INFO_TAG not in run.tags:
            return process_mark(pid) == run.tags[PROCESS_TAG]
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except PermissionError:
        return True
    except OSError:
        # No such process, or one that has ended and is not waited for yet; or /proc shows everybody his own alone.
        return not Path("/proc/self").exists() or _another_users(pid)


def _another_users(pid: int) -> bool:
    """Return whether the process exists and belongs to another user, who alone may signal it."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return False
