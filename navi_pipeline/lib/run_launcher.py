"""Runs of Dagster jobs: in this process for a command (`run_job`), and a launcher that detects lost run workers.

This is the only file that uses private names of Dagster, each with its reason:

- `RemoteJobOrigin`, `REPOSITORY_LABEL_TAG`: a run belongs to the job of a code location. `execute_in_process` sets
  neither, so the Jobs page and the timeline do not list its runs, and nobody can re-execute them.
- `execute_run`, `InMemoryJob`, `merge_run_tags`: the public `execute_job` can set no origin.
- `InstigatorState` and its parts: a schedule is switched on without starting the code location in a process.
- `DagsterExecutionInterruptedError`, `NoOpComputeLogManager`: a followed run is interrupted by Ctrl-C, and leaves
  standard output and error on the terminal, which Dagster would send through `tail`.
- `DefaultRunLauncher`, `CheckRunHealthResult`, `GRPC_INFO_TAG`: Dagster's default launcher reports a lost run worker as
  running for ever. The code server reports a killed worker as long as it lives. If the code server dies too (with the
  machine, for example), or a command such as `navi pipeline materialize` is killed, nothing reports the run. It would
  keep its place in queue and pool, and two such runs would block all later ones.
- `CanCancelExecutionRequest`: a code server that was started again, a container for instance, knows no earlier run.
"""

import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.errors import (
    DagsterExecutionInterruptedError,
    DagsterUserCodeProcessError,
    DagsterUserCodeUnreachableError,
)
from dagster._core.execution.api import execute_run
from dagster._core.execution.execute_in_process import merge_run_tags
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, WorkerStatus
from dagster._core.launcher.default_run_launcher import DefaultRunLauncher
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    ScheduleInstigatorData,
)
from dagster._core.storage.noop_compute_log_manager import NoOpComputeLogManager
from dagster._core.storage.tags import GRPC_INFO_TAG, MAX_RETRIES_TAG, REPOSITORY_LABEL_TAG
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._grpc.types import CanCancelExecutionRequest
from dagster._utils.schedules import schedule_execution_time_iterator

from navi_core.errors import RunError
from navi_core.machine.devices import usable_devices
from navi_core.machine.file_lock import wait_for_lock
from navi_core.record import row_context
from navi_core.terminal import print_status
from navi_pipeline.lib.orchestration import FLOW_TAG, POOL, PROCESS_TAG
from navi_pipeline.lib.training.supervised import process_mark

_LOCATION = RemoteRepositoryOrigin(
    ManagedGrpcPythonEnvCodeLocationOrigin(
        LoadableTargetOrigin(executable_path=sys.executable, module_name="navi_pipeline.definitions"), "navi"
    ),
    "__repository__",
)
"""Code location of workspace.yaml with its only repository, whose name Dagster chooses."""

_OPEN = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_POLL = 2.0
_SERVER_PATIENCE = 5
"""Time for which a code server may think about a question [s]."""


def run_job(
    instance: dg.DagsterInstance,
    job: dg.JobDefinition,
    *,
    partition: str | None = None,
    assets: Sequence[str] | None = None,
    ops: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    report: Callable[[str], None] = print_status,
    follow: bool = False,
) -> dg.JobExecutionResult:
    """Run a job of the code location in this process, as a run that the UI lists, cancels and re-executes.

    Dagster's own log lines stay in its storage. SIGINT ends the run as canceled. A run whose process was killed is
    marked as failed by a daemon, or by the next command.

    Args:
        instance: Dagster instance that keeps the run.
        job: A job of `navi_pipeline.definitions`, or its implicit asset job.
        partition: Partition key.
        assets: Names of the job's assets to materialize; by default all of them.
        ops: Run config by op: `{"ppo_policy": {"config": {"seed": 1}}}`.
        tags: Further tags of the run.
        report: Called with a line while the run waits for a slot of the pool `gpu`.
        follow: Leave the run's output on the terminal, raise its own error, and add a dynamic partition key.

    Returns:
        Events and success of the run; `require_success` raises its error.

    Raises:
        DagsterInvalidConfigError: An op has no such setting.
        DagsterUnknownPartitionError: The job has no such partition.
        KeyboardInterrupt: A followed run was cancelled.
    """
    if follow:
        instance._compute_log_manager = NoOpComputeLogManager()
        if partition is not None and isinstance(job.partitions_def, dg.DynamicPartitionsDefinition):
            instance.add_dynamic_partitions(str(job.partitions_def.name), [partition])
    config = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}, "ops": dict(ops or {})}
    keys = [dg.AssetKey(name) for name in assets or ()]
    ours = {
        REPOSITORY_LABEL_TAG: _LOCATION.get_label(),
        PROCESS_TAG: process_mark(os.getpid()),
        **_origin_tags(),
        **(tags or {}),
        # The same command goes on with a killed run; a daemon that launched it again would do so beside it.
        MAX_RETRIES_TAG: "0",
    }
    pools = {node.pool for node in job.all_node_defs if isinstance(node, dg.OpDefinition)}
    with _slot(instance, pools, report):
        run = instance.create_run_for_job(
            job_def=job,
            run_config=config,
            tags=merge_run_tags(job, partition, ours, keys, instance, config),
            asset_selection=frozenset(keys) or None,
            remote_job_origin=RemoteJobOrigin(_LOCATION, job.name),
            status=dg.DagsterRunStatus.STARTING,
        )
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        result = execute_run(InMemoryJob(job), run, instance, raise_on_error=follow)
        failures = (event.step_failure_data.error for event in result.get_step_failure_events())
        if any(error and error.cls_name == DagsterExecutionInterruptedError.__name__ for error in failures):
            raise DagsterExecutionInterruptedError
        return result
    except (DagsterExecutionInterruptedError, KeyboardInterrupt):
        # Dagster takes an interrupt that nobody asked for in the UI for a failure.
        ended = instance.get_run_by_id(run.run_id)
        if ended is None or ended.status != dg.DagsterRunStatus.CANCELED:
            instance.report_run_canceled(run)
        raise KeyboardInterrupt from None
    finally:
        # Dagster replaces it by the handler of SIGINT; in another thread neither Dagster nor anybody else can.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)


@contextmanager
def _slot(instance: dg.DagsterInstance, pools: Collection[str | None], report: Callable[[str], None]) -> Iterator[None]:
    """Context manager that ends dead runs and waits for a slot of the pool `gpu`, if that is one of the run's pools.

    The slot is locked until the run that takes it is there.
    """
    reported: set[str] = set()
    while True:
        with wait_for_lock(Path(instance.root_directory) / "gpu.lock"):
            end_dead_runs(instance)
            at_work = instance.get_runs(dg.RunsFilter(statuses=_OPEN))
            # What this process runs already, whole_graph for example, holds the slot for the new run, too.
            holders = [run for run in at_work if POOL in _pools(run) and _pid(instance, run) != os.getpid()]
            if POOL not in pools or len(holders) < max(1, len(usable_devices())):
                yield
                return
        if new := {f"{run.job_name} {run.run_id[:8]}" for run in holders} - reported:
            report(f"waiting for the pool {POOL}, which {', '.join(sorted(new))} holds")
            reported |= new
        time.sleep(_POLL)


def _pools(run: dg.DagsterRun) -> Collection[str]:
    return () if run.run_op_concurrency is None else run.run_op_concurrency.all_pools or ()


def require_success(result: dg.JobExecutionResult) -> None:
    """Raise the first cause of a failed run.

    Raises:
        RunError: The run failed; the message names the step.
    """
    if result.success:
        return
    for event in result.get_step_failure_events():
        if (cause := event.step_failure_data.error) is not None:
            while cause.cause is not None:
                cause = cause.cause
            raise RunError(f"{event.step_key} failed: {cause.message.strip()}")
    raise RunError(f"run {result.run_id} failed; `navi ui` shows why")


def end_dead_runs(instance: dg.DagsterInstance) -> None:
    """Mark this machine's runs whose command was killed as failed, or as canceled where that was asked for."""
    for run in instance.get_runs(dg.RunsFilter(statuses=_OPEN)):
        pid = _process(instance, run)
        # A run that is executed again has the mark of the command before it until it is launched.
        if GRPC_INFO_TAG in run.tags or run.parent_run_id is not None or pid is None or _at_work(run, pid):
            continue
        if run.status == dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run)
        else:
            instance.report_run_failed(run, "its command was killed")


def switch_schedules(
    instance: dg.DagsterInstance, schedules: Sequence[dg.ScheduleDefinition], on: bool | None = None
) -> list[dict[str, Any]]:
    """Switch schedules of the code location on or off; return a table row for each, with its next tick.

    Args:
        instance: Dagster instance whose daemon runs them.
        schedules: Schedules of `navi_pipeline.definitions`.
        on: None leaves them as they are.
    """
    rows = []
    for schedule in schedules:
        cron, zone = str(schedule.cron_schedule), schedule.execution_timezone
        state = InstigatorState(
            RemoteInstigatorOrigin(_LOCATION, schedule.name),
            InstigatorType.SCHEDULE,
            InstigatorStatus.RUNNING if on else InstigatorStatus.STOPPED,
            ScheduleInstigatorData(cron, time.time() if on else None),
        )
        known = instance.get_instigator_state(state.instigator_origin_id, state.selector_id)
        running = known is not None and known.is_running
        if on is not None and on != running:
            (instance.add_instigator_state if known is None else instance.update_instigator_state)(state)
            running = on
        due = next(schedule_execution_time_iterator(time.time(), cron, zone)) if running else None
        rows.append({"schedule": schedule.name, "runs": schedule.job_name, "on": running, "cron": cron, "zone": zone,
                     "next": due and f"{due:%Y-%m-%d %H:%M %Z}"})  # fmt: skip
    return rows


def _origin_tags() -> dict[str, str]:
    """Return a run's tags of origin: host, git revision and whether files differ from it; the seed is a partition."""
    context = row_context()
    revision = context["revision"] or "unknown"
    dirty = str(revision.endswith("+")).lower()
    return {"navi/host": context["host"], "navi/revision": revision.rstrip("+"), "navi/dirty": dirty}


class WatchedRunLauncher(DefaultRunLauncher):
    """Run launcher with health checks for runs of this machine, and termination of those that have a process.

    It is configured in `dagster.yaml`.
    """

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run and tag it with this machine's name: other machines share the home but cannot see its process.

        The tag replaces the process mark that a run copies when it is re-executed from a command's run; the flow's tag
        is emptied. The pool of trainings becomes as large as the number of this machine's GPUs, at least 1.
        """
        tags = {PROCESS_TAG: platform.node(), **_origin_tags()}
        if FLOW_TAG in context.dagster_run.tags:
            tags[FLOW_TAG] = ""
        self._instance.add_run_tags(context.dagster_run.run_id, tags)
        self._instance.event_log_storage.set_concurrency_slots(POOL, max(1, len(usable_devices())))
        super().launch_run(context)

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Return True: run monitoring checks the health of run workers."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Check that the run's process is alive; of another machine's run only its code server knows."""
        pid = _process(self._instance, run)
        if pid is None and self._is_unknown_to_its_server(run):
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, "its code server was started again")
        if pid is None or _at_work(run, pid):
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"its process {pid} is gone")

    def _is_unknown_to_its_server(self, run: dg.DagsterRun) -> bool:
        """Return whether a code server with a port answers that it executes no such run: another container by now."""
        if "port" not in json.loads(run.tags.get(GRPC_INFO_TAG, "{}")):
            return False
        try:
            client = self._get_grpc_client_for_termination(run.run_id)  # type: ignore[no-untyped-call]
            request = CanCancelExecutionRequest(run_id=run.run_id)
            answer = client and json.loads(client.can_cancel_execution(request, timeout=_SERVER_PATIENCE))
        except (DagsterUserCodeUnreachableError, ValueError):
            return False
        # Asked again: a run that has just ended is unknown to it too.
        now = self._instance.get_run_by_id(run.run_id)
        return bool(answer) and not answer["can_cancel"] and now is not None and now.status == run.status

    def terminate(self, run_id: str) -> bool:
        """Terminate a run; one that a command executes in process is sent SIGINT, for it has no code server.

        Raises:
            RunError: Its process is another user's.
        """
        run = self._instance.get_run_by_id(run_id)
        pid = None if run is None or run.is_finished else _process(self._instance, run)
        if run is None or pid is None or not _at_work(run, pid):
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        if GRPC_INFO_TAG not in run.tags and _another_users(pid):
            raise RunError(f"process {pid}, which works on run {run_id}, is another user's, who can end it")
        # What whole_graph is just making ends with it, and is no failure of those assets.
        for other in self._instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
            if GRPC_INFO_TAG not in other.tags and other.run_id != run_id and _process(self._instance, other) == pid:
                self._instance.report_run_canceling(other)
        if GRPC_INFO_TAG in run.tags:
            try:
                if super().terminate(run_id):  # type: ignore[no-untyped-call]
                    return True
            except (DagsterUserCodeUnreachableError, DagsterUserCodeProcessError):
                if not _is_worker(self._instance, run, pid):
                    raise
            # The code server was killed, and its worker goes on: it gets the signal that the server would have sent.
            if not _is_worker(self._instance, run, pid):
                return False
        else:
            self._instance.report_run_canceling(run)
        os.kill(pid, signal.SIGINT)
        return True


def _process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    """Return the process id of a run of this machine; None if it runs elsewhere, or a worker has not begun."""
    host, *command = run.tags.get(PROCESS_TAG, "").split(" ")
    # A code server with a port may be anywhere, whoever has launched the run.
    if host != platform.node() or "port" in json.loads(run.tags.get(GRPC_INFO_TAG, "{}")):
        return None
    # An earlier Navi left the start time alone.
    return int(command[0]) if len(command) == 2 else _pid(instance, run)


def _pid(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    """Return the process id in a run's start event, whichever machine it is of; None if it has not begun."""
    event = _start(instance, run)
    return None if event is None or event.dagster_event is None else event.dagster_event.pid


def _start(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.EventLogEntry | None:
    begun = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_START)
    return begun[-1] if begun else None


def _is_worker(instance: dg.DagsterInstance, run: dg.DagsterRun, pid: int) -> bool:
    """Return whether the process began before the run's start event, and so is the run's worker."""
    start = _start(instance, run)
    if start is None or not Path("/proc/self").exists():
        return False
    begun = int(process_mark(pid).rpartition(" ")[2]) / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - begun) < start.timestamp


def _at_work(run: dg.DagsterRun, pid: int) -> bool:
    """Return whether the run's process is still alive, and not another program with the same process id."""
    try:
        if GRPC_INFO_TAG not in run.tags:
            host, *_, begun = process_mark(pid).split(" ")
            given = run.tags[PROCESS_TAG].split(" ")
            return (host, begun) == (given[0], given[-1])
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
