"""Result, counters and progress of a run."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navi_core.models.checkpoint import Checkpoint


@dataclass(frozen=True)
class TrainResult:
    """Result of a run.

    Attributes:
        checkpoint: The last checkpoint.
        run_id: The run.
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
    """Counters of a run over all its starts."""

    updates: int = 0
    episodes: int = 0
    reward_ema: float = math.nan  # 0 would beat every trained version whose reward is negative
    decisions_seen: int = 0
    seconds: float = 0.0
    started_at: str = ""
    saved_at: int = -1
    last: dict[str, float] = field(default_factory=dict)

    def add(self, rewards: Sequence[float], episodes: int, seconds: float, alpha: float) -> None:
        """Count an update and its rollout.

        Args:
            rewards: Mean shaped reward of every decision.
            episodes: Episodes that ended.
            seconds: Wall time of both [s].
            alpha: Weight of a new reward in the smoothed one.
        """
        for reward in rewards:
            # The first decision sets the average, so that it does not crawl up from an arbitrary 0.
            first = self.decisions_seen == 0
            self.reward_ema = reward if first else self.reward_ema + alpha * (reward - self.reward_ema)
            self.decisions_seen += 1
        self.updates += 1
        self.episodes += episodes
        self.seconds += seconds

    def fields(self, steps: int) -> dict[str, Any]:
        """Return the counters that have fields of their own in a checkpoint after `steps` decisions."""
        return {
            "step_id": steps,
            "episode_count": self.episodes,
            "reward_ema": self.reward_ema,
            "wall_time_hours": self.seconds / 3600.0,
        }

    def extra(self) -> dict[str, Any]:
        """Return the other counters of a checkpoint, which are kept in its `extra`."""
        return {name: getattr(self, name) for name in ("updates", "decisions_seen", "seconds", "started_at")}

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Counters:
        """Return the counters of a checkpoint's run.

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


_SHOWN = (
    ("reward_ema", "reward_ema", "+.4f"),
    ("episode_return", "return", ".2f"),
    ("nll", "NLL", ".3f"),
    ("validation_nll", "held out", ".3f"),
    ("approx_kl", "kl", ".4f"),
    ("explained_variance", "ev", ".2f"),
    ("sps", "steps/s", ",.0f"),
)
"""Metric, label, format."""
_LOG = logging.getLogger("navi.learn")


@dataclass(frozen=True)
class Progress:
    """The state of a run after an update.

    Attributes:
        steps: Decisions so far, summed over rows.
        total_steps: Decisions at which the run ends; None if it ends when stopped.
        updates: Updates so far.
        metrics: Metrics of the latest update.
        stages: Time of each stage of the latest update by phase [ms].
    """

    steps: int
    total_steps: int | None
    updates: int
    metrics: dict[str, float]
    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def line(self) -> str:
        """One line for people."""
        m = self.metrics
        goal = f"/{self.total_steps:,}" if self.total_steps is not None else ""
        parts = [f"step {self.steps:,}{goal}"]
        parts += [f"{label} {m[name]:{form}}" for name, label, form in _SHOWN if name in m]
        return "  ".join(parts)


@contextmanager
def console_progress(title: str = "train") -> Iterator[Callable[[Progress], None]]:
    """Yield a callback that shows progress on standard error.

    Args:
        title: Name of the run.
    """
    if not sys.stderr.isatty():
        yield lambda progress: _LOG.info("%s: %s", title, progress.line())
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[line]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task(title, total=None, line="first rollout …")
        yield lambda p: bar.update(task, completed=p.steps, total=p.total_steps, line=p.line())
