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
from navi_pipeline.lib.training.run_curve import Monitor
from navi_pipeline.lib.training.supervised import wait_for_run
from navi_pipeline.lib.training.trainer_client import run_name, train_in_child
from navi_pipeline.lib.warehouse.warehouse import Warehouse

_PATIENCE_SECONDS = 30.0
"""Time limit for the viewer's first observation [s]; one update of a large network may last several seconds."""


class ViewerProbe:
    """Thread that attaches a viewer to a training once it makes progress, and waits for one observation.

    Args:
        prefix: Prefix of the run's name, under which the trainer announces itself in the Navi home.
        moving: Returns whether the training has made progress.
    """

    def __init__(self, prefix: str, moving: Callable[[], bool]) -> None:
        self._prefix, self._moving = prefix, moving
        self._gate: Gate | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._attach, name="navi-viewer-probe", daemon=True)
        self._thread.start()

    def gate(self) -> Gate:
        """Stop the thread and return the result of the viewer check; call it after the training."""
        self._over.set()
        self._thread.join(5.0)
        return self._gate or Gate("viewer", False, False, "training ended before a viewer attached")

    def _attach(self) -> None:
        from navi_core.service.viewing.feed import Announcement, Feed, announced
        from navi_core.service.wire import DistanceMatrix

        notes: list[Announcement] = []
        while not notes or not self._moving():
            if self._over.wait(0.2):
                return
            notes = [note for note in announced() if note.name.startswith(self._prefix)]
        note = notes[0]
        seen: list[DistanceMatrix] = []

        def handle(batch: list[Any]) -> None:
            seen.extend(message for message in batch if isinstance(message, DistanceMatrix))

        began = time.monotonic()
        with closing(Feed([note.endpoint], handle, watching=True)):
            while not seen and not self._over.wait(0.2) and time.monotonic() - began < _PATIENCE_SECONDS:
                pass
        seconds = f"{time.monotonic() - began:.1f} s"
        size = "x".join(str(bins) for bins in seen[0].matrix_shape) if seen else None
        what = f"an observation of {size} after {seconds}" if seen else f"no observation within {seconds}"
        self._gate = Gate("viewer", False, bool(seen), f"{note.key}: {what}")


def bounded_training(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Train until the night's share of time is used up; the trainer then writes a checkpoint and exits."""
    config, settings = night.config, night_settings(night)
    seconds = 60.0 * config.minutes * config.training_share
    wait_for_run(_run_id(night, settings))  # of a night that was killed a moment ago: it writes where the run stands
    monitor = _monitor(night, settings, seconds)
    viewer = ViewerProbe(f"{ASSET}-{night.name}-", lambda: monitor.step is not None) if config.viewer else None
    try:
        result = _train(night, settings, monitor)
    except NaviError as error:
        return [Gate("training ends well", True, False, str(error))], {}
    finally:
        watched = [viewer.gate()] if viewer else []
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
    return gates, _kept(result) | {"steps_per_second": speed, "settings": settings.model_dump(mode="json")}


def resume_proof(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Test resumption from a checkpoint: resume for a few steps, check that the run began there and progressed."""
    trained = night.data("training")
    kept = trained.get("settings")
    settings = night_settings(night) if kept is None else parse_config(TrainConfig, upgrade_train_config(kept))
    gates, data = [], {name: value for name, value in trained.items() if name != "settings"}
    if trained["run_id"] != _run_id(night, settings):
        # A trainer would begin another run. What was trained is whole, and the rest of the night is about that.
        detail = f"{trained['run_id']} was trained by another version of Navi, whose settings were others"
        return [Gate("resume", False, False, detail)], data
    wait_for_run(_run_id(night, settings))
    for more in night.config.proof_steps:
        # Not where training ended: a proof that was interrupted has gone on from there.
        began = _newest_step(data)
        monitor = _monitor(night, settings, 60.0 * night.config.stall_minutes, until_step=began + more)
        result = _train(night, settings, monitor)
        gates.append(_proof(more, began, int(trained["steps"]), result, stalled=monitor.stalled))
        if not gates[-1].passed:
            return gates, data
        data = _kept(result) | {"steps_per_second": trained["steps_per_second"]}
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

    result = night.data("resume_proof") or night.data("training")
    if not result:
        raise RunError(f"night {night.name} trained nothing")
    result = {name: value for name, value in result.items() if name != "settings"}
    weights = load_checkpoint(Path(result["checkpoint"])).weights_hash
    # Named by its version: evaluations of other nights' policies stay beside it on the leaderboard.
    named = {"algorithm": "ppo", "profile": f"{ASSET}-{result['version']}", "seed": night.config.seed}
    return result | named | {"weights_hash": weights}


def _train(night: Night, settings: TrainConfig, monitor: Monitor) -> dict[str, Any]:
    result = train_in_child(
        settings,
        asset=ASSET,
        partition=night.name,
        command=("train", "ppo", "--init", _init(night)),
        on_line=lambda line: None if ": step " in line else night.report(f"  {line}"),  # the monitor reports progress
        retries=night.config.retries,
        grace_seconds=120.0,
        stop=monitor,
    )
    monitor.read()
    return result


def _run_id(night: Night, settings: TrainConfig) -> str:
    return run_name(ASSET, night.name, settings)


def _init(night: Night) -> str:
    """Return the model version that the preflight chose as initial weights; `latest` may have moved since."""
    start = night.data("preflight").get("start")
    return str(start) if start else ("none" if night.config.fresh else "latest")


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
        _run_id(night, settings),
        report=night.report,
        seconds=seconds,
        stall_seconds=60.0 * night.config.stall_minutes,
        interval=night.config.monitor_seconds,
        until_step=until_step,
    )


def _finite(run_id: str) -> Gate:
    Warehouse().ingest()
    found = Warehouse().query(
        "select count(*) as rows, count(*) filter (not isfinite(value)) as broken, "
        "min(name) filter (not isfinite(value)) as first from metrics where run_id = ?",
        [run_id],
    )
    rows, broken, first = next(found.itertuples(index=False, name=None))
    detail = f"{rows} metric rows, {broken} of them not finite{f' ({first})' if broken else ''}"
    return Gate("finite metrics", True, rows > 0 and broken == 0, detail)


def _kept(result: dict[str, Any]) -> dict[str, Any]:
    names = ("run_id", "checkpoint", "version", "steps", "reward_ema", "wall_time_hours", "reason", "resumed_from",
             "initial")  # fmt: skip
    return {name: result[name] for name in names}
