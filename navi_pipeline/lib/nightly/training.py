"""Time-bounded training of a night, a probe of its live viewer, and the proof that the run resumes."""

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from navi_core.config import TrainConfig, parse_config
from navi_core.config.learn import upgrade_train_config
from navi_core.errors import NaviError, RunError
from navi_core.record import hardware_profile
from navi_pipeline.lib.corpus.scenes import scene_paths
from navi_pipeline.lib.nightly.night import Gate, Night, preset_settings
from navi_pipeline.lib.nightly.preflight import ASSET
from navi_pipeline.lib.training.policies import metric_counts
from navi_pipeline.lib.training.run_curve import Monitor
from navi_pipeline.lib.training.supervised import wait_for_run
from navi_pipeline.lib.training.trainer_client import run_name, train_in_child
from navi_pipeline.lib.warehouse.warehouse import Warehouse

_PATIENCE_SECONDS = 30.0
"""Time limit for the viewer's first observation [s]; one update of a large network may last several seconds."""
_END_SECONDS = 5.0
"""Time limit for the viewer's end after the training [s]."""


def probe_viewer(prefix: str, moving: Callable[[], bool], over: threading.Event) -> Gate:
    """Attach a viewer to a training once it makes progress, wait for one observation, and return the result.

    Any error of the viewer is a failed gate.

    Args:
        prefix: Prefix of the run's name, under which the trainer announces itself in the Navi home.
        moving: Returns whether the training has made progress.
        over: Set when the training has ended.
    """
    from navi_core.service.viewing.feed import Announcement, Feed, announced
    from navi_core.service.wire import DistanceMatrix

    notes: list[Announcement] = []
    seen: list[DistanceMatrix] = []

    def handle(batch: list[Any]) -> None:
        seen.extend(message for message in batch if isinstance(message, DistanceMatrix))

    try:
        while not notes or not moving():
            if over.wait(0.2):
                return Gate("viewer", False, False, "training ended before a viewer attached")
            notes = [note for note in announced() if note.name.startswith(prefix)]
        began = time.monotonic()
        with closing(Feed([notes[0].endpoint], handle, watching=True)):
            while not seen and not over.wait(0.2) and time.monotonic() - began < _PATIENCE_SECONDS:
                pass
    except Exception as error:
        return Gate("viewer", False, False, f"{type(error).__name__}: {error}")
    what = f"an observation of {'x'.join(map(str, seen[0].matrix_shape))} after" if seen else "no observation within"
    return Gate("viewer", False, bool(seen), f"{notes[0].key}: {what} {time.monotonic() - began:.1f} s")


def bounded_training(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Train until the night's share of time is used up; the trainer then writes a checkpoint and exits."""
    config, settings = night.config, night_settings(night)
    # Of a night that was killed a moment ago: it writes where the run stands.
    wait_for_run(run_name(ASSET, night.name, settings))
    monitor = _monitor(night, settings, 60.0 * config.minutes * config.training_share)
    over = threading.Event()
    watched = (
        [Gate("viewer", False, False, f"no result {_END_SECONDS:g} s after the training")] if config.viewer else []
    )

    def watch() -> None:
        watched[:] = [probe_viewer(f"{ASSET}-{night.name}-", lambda: monitor.step is not None, over)]

    viewer = threading.Thread(target=watch, name="navi-viewer-probe", daemon=True)
    if config.viewer:
        viewer.start()
    try:
        result = _train(night, settings, monitor)
    except NaviError as error:
        return [Gate("training ends well", True, False, str(error))], {}
    finally:
        over.set()
        if config.viewer:
            viewer.join(_END_SECONDS)
    speed = statistics.median_high(monitor.speeds) if monitor.speeds else 0.0
    floor, hardware = config.floor_steps_per_second, str(hardware_profile()["hardware"])
    applies = config.floor_hardware is None or config.floor_hardware in hardware
    gates = [
        Gate("training ends well", True, True, f"{result['steps']:,} steps, ended by {result['reason']}"),
        Gate("no stall", True, not monitor.stalled, f"an update within every {config.stall_minutes:g} min"),
        Gate("a checkpoint", True, Path(result["checkpoint"]).is_file(), result["checkpoint"]),
        Gate("an update", True, bool(monitor.speeds), f"{len(monitor.speeds)} updates"),
        _finite(result["run_id"]),
        Gate(
            "speed",
            False,
            speed >= floor or not applies,
            f"median {speed:,.0f} steps/s, floor {floor:g}{'' if applies else ' on other hardware'}",
        ),
        *watched,
    ]
    # The proof takes up this very run: with settings that were resolved again, a corpus that has changed since would
    # make another one of it.
    return gates, result | {"steps_per_second": speed, "settings": settings.model_dump(mode="json")}


def resume_proof(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Test resumption from a checkpoint: resume for a few steps, check that the run began there and progressed."""
    trained = night.data("training")
    data = dict(trained)
    settings = parse_config(TrainConfig, upgrade_train_config(data.pop("settings")))
    gates = []
    if trained["run_id"] != run_name(ASSET, night.name, settings):
        # A trainer would begin another run. What was trained is whole, and the rest of the night is about that.
        detail = f"{trained['run_id']} was trained by another version of Navi, whose settings were others"
        return [Gate("resume", False, False, detail)], data
    wait_for_run(run_name(ASSET, night.name, settings))
    for more in night.config.proof_steps:
        # Not where training ended: a proof that was interrupted has gone on from there.
        began = _newest_step(data)
        monitor = _monitor(night, settings, 60.0 * night.config.stall_minutes, until_step=began + more)
        result = _train(night, settings, monitor)
        gates.append(_proof(more, began, int(trained["steps"]), result, stalled=monitor.stalled))
        if not gates[-1].passed:
            return gates, data
        data = result | {"steps_per_second": trained["steps_per_second"]}
    gates.append(_finite(data["run_id"]))
    return gates, data


def _proof(more: int, began: int, trained: int, result: dict[str, Any], *, stalled: bool) -> Gate:
    """Check one resumed run: it must start at step `began` (≥ `trained`) and advance by `more` steps."""
    name, resumed, steps = f"resume +{more}", result["resumed_from"], int(result["steps"])
    if resumed is None:
        return Gate(name, True, False, f"not taken up at {began:,}: the trainer began another run, {result['run_id']}")
    passed = resumed == began >= trained and steps >= began + more and not stalled
    detail = f"taken up at {resumed:,}, left at {steps:,}; before: {began:,}"
    return Gate(name, True, passed, detail if began >= trained else f"{detail}, and training ended at {trained:,}")


def _newest_step(data: dict[str, Any]) -> int:
    """Return the step of a run's newest checkpoint; without checkpoints, the last step of the training."""
    from navi_core.learn.run.checkpoints import checkpoints_in

    kept = checkpoints_in(Path(data["checkpoint"]).parent)
    return int(kept[-1].stem.removeprefix("step-")) if kept else int(data["steps"])


def night_policy(night: Night) -> dict[str, Any]:
    """Return the night's policy as a JSON document (run, checkpoint, weights hash), the input of the evaluation."""
    from navi_core.models import load_checkpoint

    result = night.data("resume_proof") or {k: v for k, v in night.data("training").items() if k != "settings"}
    if not result:
        raise RunError(f"night {night.name} trained nothing")
    return result | {
        "algorithm": "ppo",
        # Named by its version: evaluations of other nights' policies stay beside it on the leaderboard.
        "profile": f"{ASSET}-{result['version']}",
        "seed": night.config.seed,
        "weights_hash": load_checkpoint(Path(result["checkpoint"])).weights_hash,
    }


def _train(night: Night, settings: TrainConfig, monitor: Monitor) -> dict[str, Any]:
    result = train_in_child(
        settings,
        asset=ASSET,
        partition=night.name,
        # The version that the preflight chose; `latest` may have moved since.
        command=("train", "ppo", "--init", night.data("preflight").get("start", "latest")),
        on_line=lambda line: None if ": step " in line else night.report(f"  {line}"),  # the monitor reports progress
        retries=night.config.retries,
        grace_seconds=120.0,
        stop=monitor,
    )
    monitor.read()
    return result


def night_settings(night: Night) -> TrainConfig:
    """Return the training configuration of a night: its profile without a step limit, on the corpus' scenes."""
    settings = preset_settings(night.config, [str(path) for path in scene_paths("train")])
    # Time ends it, not a number of steps: the resume proof goes on with the very same run. What the profile lets move
    # over its steps moves over as many.
    lasting = {
        name: schedule.model_copy(update={"steps": schedule.steps or settings.total_steps})
        for name, schedule in settings.ppo.schedules.items()
        if schedule.end is not None
    }
    ppo = settings.ppo.model_copy(update={"schedules": settings.ppo.schedules | lasting})
    return settings.model_copy(update={"total_steps": None, "ppo": ppo})


def _monitor(night: Night, settings: TrainConfig, seconds: float, until_step: int | None = None) -> Monitor:
    return Monitor(
        run_name(ASSET, night.name, settings),
        report=night.report,
        seconds=seconds,
        stall_seconds=60.0 * night.config.stall_minutes,
        interval=night.config.monitor_seconds,
        until_step=until_step,
    )


def _finite(run_id: str) -> Gate:
    Warehouse().ingest()
    counts = metric_counts(run_id)
    detail = f"{counts['rows']} metric rows, {counts['not_finite']} of them not finite {counts['first_not_finite']}"
    return Gate("finite metrics", True, counts["rows"] > 0 and not counts["not_finite"], detail.rstrip())
