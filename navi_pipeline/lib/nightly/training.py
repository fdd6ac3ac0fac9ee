"""Bounded training with a monitor, and the proof that its run can be taken up again."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from navi_core.config import TrainConfig
from navi_core.errors import NaviError, RunError
from navi_core.record import hardware_profile
from navi_pipeline.lib.nightly.night import Gate, Night
from navi_pipeline.lib.nightly.viewer import ViewerProbe

__all__ = ["Monitor", "bounded_training", "night_policy", "resume_proof"]

ASSET = "nightly"
"""Asset name in the run directory's key."""
_STEP = re.compile(r"\bstep ([\d,]+)")
_SPEED = re.compile(r"steps/s ([\d,.]+)")


@dataclass
class Monitor:
    """Watches a trainer by its lines, tells how it goes now and then, and says when it has to end.

    Attributes:
        say: Told a line every `interval`.
        seconds: Time from the first update on after which the trainer is told to end [s].
        stall_seconds: Time without progress after which it is told to end [s].
        interval: Seconds between lines [s].
        until_step: Step at which it is told to end; None: none.
    """

    say: Any
    seconds: float
    stall_seconds: float
    interval: float
    until_step: int | None = None
    step: int | None = None
    stalled: bool = False
    speeds: list[float] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _moved: float = field(default_factory=time.monotonic)
    _told: float = field(default_factory=time.monotonic)

    def line(self, text: str) -> None:
        """Take a line of the trainer."""
        found = _STEP.search(text)
        if found is None or "resumes from" in text:
            self.say(f"  {text}")
            return
        step = int(found[1].replace(",", ""))
        if step != self.step:
            if self.step is None:
                self._began = time.monotonic()
            self.step, self._moved = step, time.monotonic()
        if speed := _SPEED.search(text):
            self.speeds.append(float(speed[1].replace(",", "")))

    def __call__(self) -> bool:
        """Whether the trainer has to end; asked twice a second."""
        now = time.monotonic()
        if now - self._told >= self.interval:
            self._told = now
            speed = f"{self.speeds[-1]:,.0f} steps/s" if self.speeds else "no update yet"
            self.say(f"  monitor: step {self.step or 0:,}, {speed}, {(now - self._began) / 60:.1f} min")
        if now - self._moved > self.stall_seconds:
            self.stalled = True
        done = self.until_step is not None and self.step is not None and self.step >= self.until_step
        over = self.step is not None and now - self._began > self.seconds
        return self.stalled or done or over


def bounded_training(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Train until the night's share of time is over; the trainer then checkpoints and ends."""
    config = night.config
    seconds = 60.0 * config.minutes * config.training_share
    monitor = _monitor(night, seconds)
    viewer = ViewerProbe(f"{ASSET}-{night.name}-", lambda: monitor.step is not None) if config.viewer else None
    try:
        result = _train(night, monitor)
    except NaviError as error:
        return [Gate("training ends well", True, False, str(error))], {}
    finally:
        watched = [viewer.gate()] if viewer else []
    speed = sorted(monitor.speeds)[len(monitor.speeds) // 2] if monitor.speeds else 0.0
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
    return gates, _kept(result) | {"steps_per_second": speed}


def resume_proof(night: Night) -> tuple[list[Gate], dict[str, Any]]:
    """Take the run up again, let it go on by a few steps, end it, and look where it began and ended."""
    before = night.data("training")
    gates, began = [], int(before["steps"])
    for more in night.config.proof_steps:
        monitor = _monitor(night, 60.0 * night.config.stall_minutes, until_step=began + more)
        result = _train(night, monitor)
        exact = result["resumed_from"] == began
        went_on = int(result["steps"]) >= began + more
        detail = f"taken up at {result['resumed_from']:,}, left at {result['steps']:,}; before: {began:,}"
        gates.append(Gate(f"resume +{more}", True, exact and went_on and not monitor.stalled, detail))
        if not gates[-1].passed:
            return gates, before
        before, began = _kept(result) | {"steps_per_second": before["steps_per_second"]}, int(result["steps"])
    gates.append(_finite(before["run_id"]))
    return gates, before


def night_policy(night: Night) -> dict[str, Any]:
    """Return the night's policy as the evaluation takes it.

    Raises:
        RunError: The night trained nothing.
    """
    from navi_core.models import load_checkpoint

    result = night.data("resume_proof") or night.data("training")
    if not result:
        raise RunError(f"night {night.name} trained nothing")
    weights = load_checkpoint(Path(result["checkpoint"])).weights_hash
    # Named by its version: evaluations of other nights' policies stay beside it on the leaderboard.
    named = {"algorithm": "ppo", "profile": f"{ASSET}-{result['version']}", "seed": night.config.seed}
    return result | named | {"weights_hash": weights}


def _train(night: Night, monitor: Monitor) -> dict[str, Any]:
    from navi_pipeline.lib.trainer_client import train_in_child

    begin = "none" if night.config.fresh else "latest"
    return train_in_child(
        _settings(night),
        asset=ASSET,
        partition=night.name,
        command=("train", "ppo", "--init", begin),
        on_line=monitor.line,
        retries=night.config.retries,
        grace_seconds=120.0,
        stop=monitor,
    )


def _settings(night: Night) -> TrainConfig:
    from navi_core.presets import resolve_config
    from navi_pipeline.lib.compiled import scene_paths

    config = night.config
    scenes = [str(path) for path in scene_paths("train")]
    flags = {"seed": config.seed, "checkpoint_every": config.checkpoint_every, "corpus": {"scenes": scenes}}
    # Time ends it, not a number of steps: the resume proof goes on with the very same run.
    return resolve_config(preset=config.profile, flags=flags).model_copy(update={"total_steps": None})


def _monitor(night: Night, seconds: float, until_step: int | None = None) -> Monitor:
    config = night.config
    return Monitor(night.say, seconds, 60.0 * config.stall_minutes, config.monitor_seconds, until_step)


def _finite(run_id: str) -> Gate:
    from navi_pipeline.lib.warehouse import Warehouse

    warehouse = Warehouse()
    warehouse.ingest()
    row = warehouse.query(
        "select count(*) as rows, count(*) filter (not isfinite(value)) as broken, "
        "min(name) filter (not isfinite(value)) as first from metrics where run_id = ?",
        [run_id],
    ).iloc[0]
    detail = f"{int(row['rows'])} metric rows, {int(row['broken'])} of them not finite"
    passed = int(row["rows"]) > 0 and int(row["broken"]) == 0
    return Gate("finite metrics", True, passed, detail + (f" ({row['first']})" if int(row["broken"]) else ""))


def _kept(result: dict[str, Any]) -> dict[str, Any]:
    names = ("run_id", "checkpoint", "version", "steps", "reward_ema", "wall_time_hours", "reason", "resumed_from",
             "initial")  # fmt: skip
    return {name: result[name] for name in names}
