"""Run records: database rows, counters, training result, progress display, warnings, device choice."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

import torch

from navi_core.config import EnvConfig, TrainConfig
from navi_core.kernels.rays.cuda import cuda_device
from navi_core.models import Checkpoint
from navi_core.record import MetricLog, RunDirectory, StageTimer
from navi_core.record.durable import write_durably
from navi_core.record.events import EventBus, EventRows, UpdateMade


class RunRecord:
    """Writer of one run's rows in the tables `runs`, `checkpoints`, `events` and `stage_timings`.

    Args:
        config: The run's configuration.
        run: The run's directory.
        log: Metric log that receives the rows.
        device: Training device.
        source: Training source of the checkpoints.
    """

    def __init__(
        self, config: TrainConfig, run: RunDirectory, log: MetricLog, device: torch.device, source: Literal["rl", "bc"]
    ) -> None:
        self.config, self.run, self.log, self.device, self.source = config, run, log, device, source
        self._spent = run.path / "cpu_seconds.json"
        self.events = EventRows(log)
        self._before, self._began = self._spent_before(), _cpu_seconds()

    def _spent_before(self) -> float | None:
        try:
            return float(json.loads(self._spent.read_text())["cpu_seconds"])
        except FileNotFoundError:
            return 0.0 if self.run.fresh else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep_spent(self) -> float | None:
        """Save and return the run's total CPU time over all starts [s]; None if an earlier start's is unknown.

        It counts this process and its finished child processes, discarded work included. After a kill, the time since
        the last save is missing.
        """
        spent = None if self._before is None else self._before + _cpu_seconds() - self._began
        if spent is not None:
            with contextlib.suppress(OSError):  # no reason to end a training
                write_durably(self._spent, (json.dumps({"cpu_seconds": spent}) + "\n").encode())
        return spent

    def status(self, status: str, step: int, counters: Counters, reason: str | None = None) -> None:
        """Write the run's row to the database table `runs`, with status, device, configuration and times.

        Args:
            status: running, finished or stopped.
            step: Decisions so far.
            counters: Counters of the run.
            reason: Reason of the end; None while it runs.
        """
        config = self.config
        self.log.row(
            "runs",
            {
                "step": step,
                "asset": self.run.asset,
                "partition": self.run.partition,
                "algorithm": config.algorithm,
                "encoder": config.policy.encoder,
                "core": config.policy.core,
                "status": status,
                "reason": reason,
                "device": str(self.device),
                "path": str(self.run.path),
                "reward_ema": _known(counters.reward_ema),
                "wall_time_seconds": counters.seconds,
                "cpu_seconds": self._keep_spent(),
                "started_at": counters.started_at,
                "ended_at": None if status == "running" else now(),
                "config": config.model_dump(mode="json"),
            },
        )

    def checkpoint(self, path: Path, checkpoint: Checkpoint) -> None:
        """Write a checkpoint's row and the events up to it, also when a run resumes (a kill may have lost them).

        Args:
            path: The checkpoint file.
            checkpoint: The checkpoint's content.
        """
        self.log.row(
            "checkpoints",
            {
                "step": checkpoint.step_id,
                "path": str(path),
                "reward_ema": _known(checkpoint.reward_ema),
                "episode_count": checkpoint.episode_count,
                "parent_checkpoint": checkpoint.parent_checkpoint,
                "training_source": self.source,
                "wall_time_hours": checkpoint.wall_time_hours,
                "cpu_seconds": self._keep_spent(),
            },
        )
        self.events.write(checkpoint.extra.get("events", []))
        self.log.flush()

    def stages(self, step: int, timers: Mapping[str, StageTimer]) -> None:
        """Write the mean and total time of every stage to the database table `stage_timings`.

        Args:
            step: Decisions so far.
            timers: Stage timings by phase.
        """
        for phase, timer in timers.items():
            totals = timer.totals()
            for stage, mean in timer.means().items():
                self.log.row(
                    "stage_timings",
                    {
                        "step": step,
                        "stage": f"{phase}/{stage}",
                        "milliseconds": mean,
                        "total_milliseconds": 1e3 * totals[stage],
                    },
                )


def _cpu_seconds() -> float:
    own, waited_for = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + waited_for.ru_utime + waited_for.ru_stime


def run_device(config: TrainConfig) -> torch.device:
    """Resolve the configured device (`cpu`, `cuda`, `auto`) on this machine.

    Raises:
        UnavailableError: The configuration asks for CUDA, and there is none.
    """
    if config.device == "cuda":
        cuda_device(torch.device("cuda"))
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def now() -> str:
    """Return the current UTC time in ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _known(value: float) -> float | None:
    """Convert NaN (no value yet) to None, for a nullable column."""
    return None if math.isnan(value) else value


@dataclass(frozen=True)
class TrainResult:
    """Result of one training run: last checkpoint, counters, reason of the end, metrics.

    Attributes:
        checkpoint: The last checkpoint.
        run_id: Identifier of the run.
        steps: Decisions summed over rows.
        updates: Updates made.
        episodes: Episodes that ended.
        reward_ema: Smoothed shaped reward per decision; NaN before the first update.
        wall_time_hours: Wall time of the run over all its starts [h].
        reason: `total_steps`, `stopped`, or the name of the signal.
        resumed_from: Steps of the checkpoint this start began with; None for a new run.
        initial: Checkpoint whose weights the run began with at step 0, also after a resume.
        metrics: Metrics of the last update of this start; empty if there was none.
    """

    checkpoint: Path
    run_id: str
    steps: int
    updates: int
    episodes: int
    reward_ema: float
    wall_time_hours: float
    reason: str
    resumed_from: int | None
    initial: str | None
    metrics: dict[str, float]


@dataclass
class Counters:
    """Counters of a run, summed over all its starts: updates, episodes, decisions, wall time, reward average."""

    updates: int = 0
    episodes: int = 0
    reward_ema: float = math.nan  # 0 would beat every trained version whose reward is negative
    decisions_seen: int = 0
    seconds: float = 0.0
    started_at: str = ""
    saved_at: int = -1
    last: dict[str, float] = field(default_factory=dict)

    def add(self, rewards: Sequence[float], episodes: int, seconds: float, alpha: float) -> None:
        """Add an update and its rollout to the counters, and update the exponential moving average of the reward.

        Args:
            rewards: Mean shaped reward of every decision.
            episodes: Episodes that ended.
            seconds: Wall time of rollout and update [s].
            alpha: Weight of a new reward in the moving average.
        """
        for reward in rewards:
            # The first decision sets the average, so that it does not crawl up from an arbitrary 0.
            first = self.decisions_seen == 0
            self.reward_ema = reward if first else self.reward_ema + alpha * (reward - self.reward_ema)
            self.decisions_seen += 1
        self.updates += 1
        self.episodes += episodes
        self.seconds += seconds

    @property
    def hours(self) -> float:
        """Wall time of the run [h]."""
        return self.seconds / 3600.0

    def extra(self) -> dict[str, Any]:
        """Return the counters that a checkpoint stores in its `extra` field."""
        return {name: getattr(self, name) for name in ("updates", "decisions_seen", "seconds", "started_at")}

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Restore the counters of a run from its checkpoint.

        Raises:
            KeyError, ValueError, TypeError: The checkpoint has none.
        """
        kept = checkpoint.extra["counters"]
        return cls(
            updates=int(kept["updates"]),
            episodes=checkpoint.episode_count,
            reward_ema=checkpoint.reward_ema,
            decisions_seen=int(kept["decisions_seen"]),
            seconds=float(kept["seconds"]),
            started_at=str(kept["started_at"]),
            saved_at=checkpoint.step_id,
        )


_LOG = logging.getLogger("navi.learn")


@contextmanager
def console_progress(events: EventBus, title: str = "train") -> Iterator[None]:
    """Context manager that shows the progress of a bus on standard error: a bar, or log lines off a terminal.

    What is printed on `sys.stderr` meanwhile stands above the bar.

    Args:
        events: Event bus of the run.
        title: Name of the run.
    """
    if not sys.stderr.isatty():
        events.subscribe(UpdateMade, lambda update: _LOG.info("%s: %s", title, update.line()))
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True, markup=False, highlight=False)
    wide = console.width >= _WIDE
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(40 if wide else 12),
        TextColumn("{task.fields[count]}", markup=False), TextColumn("{task.fields[line]}", markup=False),
    )  # fmt: skip
    with Bar(*columns, console=console, transient=False, speed_estimate_period=300) as bar:
        task = bar.add_task(title[: 40 if wide else 20], total=None, count="", line="")

        shown = 0.0

        def advance(done: int, total: int | None, line: str | None = None) -> None:
            nonlocal shown
            # Small policies make ten thousand decisions a second; a bar is read ten times a second.
            if line is None and time.monotonic() - shown < 0.1:
                return
            at, shown = bar.tasks[0], time.monotonic()
            left = "--:--" if at.time_remaining is None else f"{timedelta(seconds=round(at.time_remaining))}"
            known = (
                f"{100 * done // max(total, 1):>3} % {done:,}/{total:,} eta {left}" if total else f"{done:,} decisions"
            )
            bar.update(task, completed=done, total=total, count=known, line=at.fields["line"] if line is None else line)

        def show(update: UpdateMade) -> None:
            advance(update.step, update.total_steps, line=update.figures() if wide else update.figures(1))

        events.progress = advance
        leave = events.subscribe(UpdateMade, show)
        try:
            yield
        finally:
            events.progress = None
            leave()


_WIDE = 120
"""Least width of a terminal for all figures of an update [columns]."""
_MANY_VOID = 0.1
"""Fraction of episodes ending in the void above which a warning is issued."""


def changed_ids_warning(before: Mapping[str, int], now: Mapping[str, int], weights: str) -> str | None:
    """Return a warning if initial weights were trained with other semantic ids; None if shared names keep their ids.

    Names that only one corpus has are allowed: a policy may meet new objects.

    Args:
        before: Ids by name that the weights were trained with; empty where they are unknown.
        now: Ids by name of the run's scenes.
        weights: Name of the weights, for the message.
    """
    changed = sorted(name for name in before.keys() & now.keys() if before[name] != now[name])
    if not changed:
        return None
    first = changed[0]
    return (
        f"{weights} learned other semantic ids than this corpus has: {len(changed)} of {len(now)} names differ, first "
        f"{first!r} ({before[first]} there, {now[first]} here). Its knowledge of surfaces no longer holds. Begin "
        "with new weights (--init none), or train on scenes with the same names"
    )


def void_warning(metrics: Mapping[str, float], env: EnvConfig) -> str | None:
    """Return a warning if more than 10 % of the episodes leave the scene and are truncated there; else None.

    Args:
        metrics: Metrics of an update.
        env: Settings of the environment.
    """
    # `void_rate` is a fraction of the decisions.
    share = metrics.get("void_rate", 0.0) * metrics.get("episode_length", 0.0)
    if share <= _MANY_VOID or env.void_ends != "truncated":
        return None
    return (
        f"{100 * min(share, 1.0):.0f} % of episodes left the scene. Truncation bootstraps V(s'), so leaving is not "
        "penalised; set env.void_ends=terminated."
    )
