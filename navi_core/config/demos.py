"""Settings of recorded demonstrations."""

from pydantic import Field

from navi_core.config.base import Config
from navi_core.config.world import DynamicsConfig


class ExpertConfig(Config):
    """Flights of a scripted pilot, recorded as demonstrations."""

    pilot: str = "frontier"
    """The teacher."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the starts, of the disturbance and of the pilot's draws."""
    episodes: int = Field(8, ge=1, le=100_000)
    """Episodes per scene."""
    steps: int = Field(300, ge=2, le=1_000_000)
    """Decisions per episode."""
    noise: float = Field(0.0, ge=0, le=2)
    """Standard deviation of the disturbance that is flown but not recorded (DART, Laskey et al. 2017); the teacher
    answers to what it leads to, so the pupil learns to come back."""
    noise_hold: int = Field(3, ge=1, le=1000)
    """Decisions for which one disturbance is kept, and one of teacher and pupil flies."""
    pupil: str | None = None
    """Hash of the weights that fly in the teacher's stead while it answers (DAgger, Ross et al. 2011); filled in by
    `navi demos expert --pupil`. None flies the teacher's own answers."""
    teacher_share: float = Field(0.5, ge=0, le=1)
    """Share of the decisions that the teacher flies beside a pupil, drawn for `noise_hold` of them at a time (β of
    DAgger). With 0, a pupil that is stuck stays so, and most recordings are one observation."""
    azimuth_bins: int = Field(64, ge=8, le=4096)
    """Azimuth bins of the observations."""
    elevation_bins: int = Field(16, ge=4, le=2048)
    """Elevation bins of the observations."""
    max_distance: float = Field(100.0, gt=0, le=1e5)
    """Range of the sensor, M [m]."""
    clearance: float = Field(0.3, gt=0, le=10)
    """Distance to surfaces that a start keeps [m]."""
    dynamics: DynamicsConfig = DynamicsConfig()
    """The drone."""
