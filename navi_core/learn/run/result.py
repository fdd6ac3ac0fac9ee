"""Result and counters of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navi_core.models.checkpoint import Checkpoint

__all__ = ["Counters", "TrainResult"]


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
