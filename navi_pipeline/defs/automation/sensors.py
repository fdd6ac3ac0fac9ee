"""Dagster sensors: new scenes, new demonstrations, renewals, failed runs, stale runs."""

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import dagster as dg

from navi_core.record.home import recordings_folder
from navi_pipeline.lib.orchestration import record_failure
from navi_pipeline.lib.training.supervised import sweep

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
        with suppress(OSError):
            about = file.stat()
            if file.suffix.lower() in suffixes and file.is_file():
                lines.append(f"{file}\0{about.st_size}\0{about.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] if lines else ""


def _watch(
    name: str, asset: str, folder: Callable[[], Path | None], suffixes: tuple[str, ...], text: str, **config: bool
) -> dg.SensorDefinition:
    """Return a sensor that requests an asset when the files of a folder come, change or go."""

    @dg.sensor(name=name, target=dg.AssetSelection.assets(asset), minimum_interval_seconds=60, description=text)
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        signature = (folder_signature(there, suffixes) if (there := folder()) else "") or "none"
        # Earlier versions kept a JSON document with the signature.
        if signature in (context.cursor or "none"):
            return dg.SkipReason(f"no new file in {there}" if there else "no folder is named")
        # Dagster starts a run key only once: the time lets a restored folder or a failed run be requested again.
        request = dg.RunRequest(
            run_key=f"{name}-{time.time_ns()}",
            asset_selection=[dg.AssetKey(asset)],
            run_config={"ops": {asset: {"config": config}}} if config else {},
        )
        return dg.SensorResult([request], cursor=signature)

    return watch


def _meshes() -> Path | None:
    return Path(named).expanduser() if (named := os.environ.get("NAVI_SCENES")) else None


new_scenes = _watch(
    "new_scenes",
    "scene_sources",
    _meshes,
    _MESHES,
    "Plans the scenes anew when meshes come to $NAVI_SCENES, change or go. The sensor renewals compiles due scenes "
    "and assembles the corpus.",
    as_last=True,
)
new_demonstrations = _watch(
    "new_demonstrations",
    "recorded_demonstrations",
    recordings_folder,
    _RECORDINGS,
    "Ingests recorded flights when files come to $NAVI_DEMOS, or to recordings/ of the Navi home.",
)
renewals = dg.AutomationConditionSensorDefinition(
    "renewals",
    target=dg.AssetSelection.all(),
    description="Renews outdated assets: scenes, corpus, leaderboard, warehouse. Assets that a command or whole_graph "
    "is making are left to it.",
)


@dg.run_failure_sensor(
    minimum_interval_seconds=30,
    description="Writes every failed run into the table events, with its job, its step and the cause; of a failed "
    "night, also the partial summary.",
)
def run_failures(context: dg.RunFailureSensorContext) -> None:
    """Record a failed run, its job, steps and cause, as an event of the warehouse."""
    run = context.dagster_run
    steps = [(event.step_key or "", event.message or "") for event in context.get_step_failure_events()]
    record_failure(run.run_id, run.job_name, context.failure_event.message or "", steps, night=run.tags.get("night"))


@dg.sensor(
    minimum_interval_seconds=300,
    description="Ends trainers whose supervisor is gone, marks runs without a process as stopped, and removes their "
    "unfinished files. The same command or a retry resumes such a run.",
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
