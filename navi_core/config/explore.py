"""Settings of the explorer: a person flies, and what is flown may become a demonstration."""

from __future__ import annotations

from pydantic import Field

from navi_core.config.base import Config
from navi_core.config.world import DynamicsConfig

__all__ = ["ExplorerConfig"]


class ExplorerConfig(Config):
    """Flights by hand."""

    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the starts."""
    azimuth_bins: int = Field(64, ge=8, le=4096)
    """Azimuth bins of the observations; those of `demos expert`, so that both may lie in one dataset."""
    elevation_bins: int = Field(16, ge=4, le=2048)
    """Elevation bins of the observations."""
    sharp_bins: tuple[int, int] = (256, 48)
    """Azimuth and elevation bins of the picture for the person where it is not the drone's own."""
    max_distance: float = Field(100.0, gt=0, le=1e5)
    """Range of the sensor, M [m]."""
    max_decisions: int = Field(6000, ge=2, le=100_000)
    """Decisions of a recorded flight at most; it is then saved and ended."""
    undo_decisions: int = Field(30, ge=1, le=10_000)
    """Decisions that one undo takes back."""
    idle_seconds: float = Field(0.5, gt=0, le=60)
    """Time without a word from the page after which the drone hovers [s]."""
    dynamics: DynamicsConfig = DynamicsConfig()
    """The drone."""
