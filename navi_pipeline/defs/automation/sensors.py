"""Dagster sensors: new scenes, new demonstrations, failed runs, stale runs."""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import dagster as dg

from navi_core.record.home import navi_home
from navi_pipeline.defs.corpus import CompileSettings
from navi_pipeline.lib.corpus.scenes import due_scenes
from navi_pipeline.lib.orchestration import record_failure
from navi_pipeline.lib.training.supervised import sweep

_OPEN = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
)
_MESHES = (".glb", ".gltf", ".obj", ".ply", ".stl", ".dae", ".world", ".sdf")
_RECORDINGS = (".npz", ".hdf5", ".h5")


def folder_signature(folder: Path, suffixes: tuple[str, ...]) -> str:
    """Return a hash of names, sizes and modification times of a folder's files; empty if there are none.

    Args:
        folder: Folder, or one file.
        suffixes: Suffixes that count.
    """
    files = [folder] if folder.is_file() else sorted(folder.rglob("*")) if folder.is_dir() else []
    lines = []
    for file in files:
        try:
            about = file.stat()
        except OSError:
            continue
        if file.suffix.lower() in suffixes and file.is_file():
            lines.append(f"{file}\0{about.st_size}\0{about.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] if lines else ""


@dg.sensor(
    target=dg.AssetSelection.groups("corpus"),
    minimum_interval_seconds=60,
    description="Meshes that come to $NAVI_SCENES, change or go: plans the scenes anew, compiles each that is not up "
    "to date by the default settings of compiled_scene, and gathers the corpus when all of them are.",
)
def new_scenes(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """Update the corpus in steps, one per tick: plan the scenes, compile those that are due, write the manifest."""
    named = os.environ.get("NAVI_SCENES")
    if not named:
        return dg.SkipReason("NAVI_SCENES names no folder of meshes")
    known = _known(context)
    signature = folder_signature(Path(named).expanduser(), _MESHES)
    if _at_work(context.instance):
        return dg.SkipReason("scenes are being worked on")
    if signature != known.get("signature"):
        change = time.time_ns()
        cursor = json.dumps({"signature": signature, "stage": "compile", "change": change})
        return dg.SensorResult([_plan_anew(f"sources-{change}")], cursor=cursor)
    change = known.get("change", 0)
    if known.get("stage") == "compile":
        compiled = context.instance.get_materialized_partitions(dg.AssetKey("compiled_scene"))
        due = [source.name for source in due_scenes(compiled, CompileSettings().compile_config())]
        requests = [_request(("compiled_scene",), f"compile-{change}-{name}", partition=name) for name in due]
        cursor = json.dumps({"signature": signature, "stage": "gather", "change": change})
        return dg.SensorResult(requests, cursor=cursor, skip_reason=None if due else "every scene is up to date")
    if known.get("stage") == "gather":
        cursor = json.dumps({"signature": signature, "stage": "done", "change": change})
        return dg.SensorResult([_request(("scene_quality", "corpus"), f"corpus-{change}")], cursor=cursor)
    return dg.SkipReason("the scenes have not changed")


@dg.sensor(
    target=dg.AssetSelection.groups("demonstrations"),
    minimum_interval_seconds=60,
    description="Flights that people record: takes them in when files come to $NAVI_DEMOS, or to recordings/ of the "
    "Navi home.",
)
def new_demonstrations(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
    """Request an ingest of the recorded demonstrations when their folder has changed."""
    folder = Path(os.environ.get("NAVI_DEMOS") or navi_home() / "recordings").expanduser()
    signature = folder_signature(folder, _RECORDINGS)
    if not signature:
        return dg.SkipReason(f"no recording in {folder}")
    if signature == _known(context).get("signature"):
        return dg.SkipReason("the recordings have not changed")
    request = _request(("recorded_demonstrations",), f"recordings-{time.time_ns()}")
    return dg.SensorResult([request], cursor=json.dumps({"signature": signature}))


@dg.run_failure_sensor(
    minimum_interval_seconds=30,
    description="Writes every failed run into the table events, with its job, its step and the cause; of a night that "
    "broke down, also the summary as far as it came.",
)
def run_failures(context: dg.RunFailureSensorContext) -> None:
    """Record a failed run, its job, steps and cause, as an event of the warehouse."""
    run = context.dagster_run
    steps = [(event.step_key or "", event.message or "") for event in context.get_step_failure_events()]
    record_failure(run.run_id, run.job_name, context.failure_event.message or "", steps, night=run.tags.get("night"))


@dg.sensor(
    minimum_interval_seconds=300,
    description="Ends trainers whose supervisor is gone, marks running ones that nobody holds as stopped, "
    "and removes what they left unfinished. The same command or a retry resumes such a run.",
)
def stale_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """End orphaned trainers, mark stale runs as stopped, and remove their unfinished files."""
    report = sweep()
    for pid in report.ended:
        context.log.warning("trainer %d had lost its supervisor and was ended", pid)
    for run in report.stale:
        context.log.warning("run %s was marked as stopped", run)
    return dg.SkipReason(
        f"{len(report.ended)} orphaned trainers ended, {len(report.stale)} stale runs marked, "
        f"{report.leftovers} unfinished files removed"
    )


def _known(context: dg.SensorEvaluationContext) -> dict[str, Any]:
    """Parse the Dagster sensor's cursor: signature, stage, time of the last change.

    The time is part of every run key. Dagster starts a run key only once, so without it a restored folder, a failed run
    or a reset cursor could not request a run again.
    """
    try:
        known = json.loads(context.cursor or "{}")
    except ValueError:
        known = context.cursor
    # Earlier versions noted the signature alone.
    return known if isinstance(known, dict) else {"signature": context.cursor}


def _plan_anew(key: str) -> dg.RunRequest:
    """Return a run request for `scene_sources` with the last plan's settings."""
    return _request(("scene_sources",), key, config={"ops": {"scene_sources": {"config": {"as_last": True}}}})


def _request(
    assets: tuple[str, ...], key: str, *, partition: str | None = None, config: dict[str, Any] | None = None
) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=key, asset_selection=[dg.AssetKey(name) for name in assets], partition_key=partition,
        run_config=config or {}, tags={"navi/sensed": key},
    )  # fmt: skip


def _at_work(instance: dg.DagsterInstance) -> bool:
    """Return whether a run that a sensor requested is still queued or running."""
    runs = instance.get_runs(dg.RunsFilter(statuses=list(_OPEN)), limit=200)
    return any("navi/sensed" in run.tags for run in runs)
