"""Settings of learners that judge segments of flight."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from navi_core.config.rollouts import RolloutConfig
from navi_core.errors import ConfigError

__all__ = ["SegmentsConfig"]


class SegmentsConfig(RolloutConfig):
    """How a rollout is cut into the segments that GRPO and DPO compare."""

    horizon: int | None = Field(None, ge=1, le=2**20)
    """Decisions of a segment that nothing ends before; None is the rollout.

    A segment begins with the rollout, with an episode, and where the one before it reached its horizon. It counts
    if its whole horizon lies in the rollout, whatever happens in it, so that no outcome is preferred; and unless
    its episode is truncated before, which is nobody's doing."""
    min_steps: int = Field(2, ge=1, le=2**20)
    """Decisions that a segment must have to count."""

    @model_validator(mode="after")
    def _segments(self) -> Self:
        if self.horizon is not None and not self.min_steps <= self.horizon <= self.rollout:
            raise ConfigError(
                f"horizon {self.horizon} of a segment; allowed: min_steps {self.min_steps} … rollout {self.rollout}"
            )
        # Without a horizon a segment is at most the rollout: none would count.
        if self.min_steps > self.rollout:
            raise ConfigError(
                f"min_steps {self.min_steps} of a segment that is at most the rollout of {self.rollout}; allowed: 1 … "
                f"rollout {self.rollout}"
            )
        return self

    @property
    def segment_steps(self) -> int:
        """Decisions of a whole segment."""
        return self.horizon if self.horizon is not None else self.rollout
