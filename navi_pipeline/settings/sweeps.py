"""Settings of sweeps: one thing varies, everything else stays, each combination is measured in a process of its own."""

from typing import Literal, Self

from pydantic import Field, model_validator

from navi_core.config.base import Config, Count
from navi_core.errors import ConfigError


class SweepConfig(Config):
    """How large the cells of a sweep are; what is None follows the profile and the sweep."""

    profile: Literal["quick", "full"] = "quick"
    """quick: at most 2,000 decisions or 20 s a cell; full: as long as the sweep's question needs."""
    seeds: int | None = Field(None, ge=1, le=100)
    """Repeats of each cell, with seeds 0 … n − 1."""
    steps: Count | None = None
    """Decisions of a cell, summed over rows."""
    seconds: float | None = Field(None, gt=0, le=1e6)
    """Training time after which a cell ends with its last update [s]."""
    timeout: float = Field(3600.0, gt=0, le=1e6)
    """Wall time after which a cell's process is killed [s]."""
    preset: str | None = None
    """Preset of the settings that do not vary; None: the sweep's own."""
    memory_limit: float | None = Field(None, gt=0, le=1e5)
    """Address space that a cell may take [GiB]; None: what the machine gives."""
    threads: int = Field(1, ge=0, le=256)
    """Torch threads of a cell; 0 measures what is best."""

    @model_validator(mode="after")
    def _quick_is_quick(self) -> Self:
        if self.profile == "quick":
            for name, value, most in (("steps", self.steps, 2000), ("seconds", self.seconds, 20.0)):
                if value is not None and value > most:
                    raise ConfigError(f"{name} {value:g} exceeds the {most:g} of a quick cell; take profile full")
        return self
