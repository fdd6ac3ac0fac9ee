"""Settings of the evaluation protocol and of recording demonstrations."""

from typing import Literal, Self

from pydantic import Field, model_validator

from navi_core.config.base import Config
from navi_core.config.world import DynamicsConfig, GoalConfig, OdometryConfig, SensorConfig
from navi_core.errors import ConfigError

BASELINES = ("random", "forward-plus", "wall-following", "farthest-ray", "frontier", "compass", "planner")
"""The scripted pilots that the protocol compares with."""

PROTOCOLS: dict[str, dict[str, int]] = {
    "quick": {"starts": 3, "max_steps": 200},
    "full": {"starts": 10, "max_steps": 1000, "surface": True},
}
"""Settings of `EvalConfig` that make the named lengths of an evaluation."""

NOISY_SENSOR = SensorConfig(depth_additive=0.01, depth_relative=0.01, depth_quadratic=0.002, dropout=0.05)
"""The noisy sensor of the protocol: at 3 m a depth is off by 0.06 m, one ray in twenty drops out."""


DRIFTS = {
    "none": OdometryConfig(),
    "low": OdometryConfig(scale=0.005, gyro_degrees=0.03),
    "high": OdometryConfig(scale=0.02, gyro_degrees=0.1),
}
"""Named drifts of the protocol's odometry."""


class EvalConfig(Config):
    """Settings of the evaluation protocol: starts, episode length, sensor, coverage grid."""

    starts: int = Field(10, ge=1, le=10_000)
    """Frozen starts per scene."""
    task: Literal["explore", "point_goal"] = "explore"
    """Explore, or fly to a goal and stop there, which ends the episode."""
    goal: GoalConfig = GoalConfig()
    """Goals of point_goal: least distance, and what counts as reached."""
    max_steps: int = Field(1000, ge=1, le=2**30)
    """Decisions per episode."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of starts and of sampled actions."""
    deterministic: bool = True
    """Fly the mean action instead of a sample."""
    recovery: bool | None = None
    """Free policies that are stuck on a spot; None: those whose settings have `policy.recovery`."""
    done_after: int | None = Field(None, ge=0, le=10_000, exclude_if=lambda after: after is None)
    """Decisions without a way to a frontier of the own map after which a flight hovers; 0: it flies on. None: as the
    policy's settings, and pilots fly on."""
    azimuth_bins: int = Field(64, ge=8, le=4096)
    """Azimuth bins for scripted pilots; a policy's own are used for a policy."""
    elevation_bins: int = Field(16, ge=4, le=2048)
    """Elevation bins for scripted pilots."""
    view_radius: float = Field(3.2, gt=0)
    """Radius within which floor counts as seen [m]."""
    floor_cell: float = Field(0.1, ge=0.01, le=10)
    """Edge of a ground-truth cell [m]."""
    visit_cell: float = Field(0.5, ge=0.01, le=100)
    """Edge of a C_visit cell [m]."""
    surface: bool = False
    """Also measure C_surf, the share of the surface seen; it takes 4,096 more rays a decision."""
    clearance_margin: float = Field(0.05, ge=0)
    """Added to the drone's radius for the reachable set [m]."""
    block: int = Field(16, ge=1, le=1024)
    """Rows evaluated together; blocks are padded, so results do not depend on how many run."""
    sensor: SensorConfig = SensorConfig()
    """Faults of the sensor in flight; coverage and collisions are always measured on the truth."""
    odometry: OdometryConfig = Field(OdometryConfig(), exclude_if=lambda drift: drift == OdometryConfig())
    """Drift of the poses by which policies and pilots fly; coverage, collisions and goals are measured on the truth."""
    dynamics: DynamicsConfig = DynamicsConfig()
    """Drone dynamics; a policy trained at another decision rate is refused."""

    @property
    def coverage_metric(self) -> str:
        """Headline metric of coverage: with a limited sensor only floor that it measured counts."""
        return "c_seen_auc" if self.sensor.limited else "c_vis_auc"

    @property
    def reckoned(self) -> bool:
        """Whether subjects fly by the body's odometry: it drifts, or late or narrow scans cannot correct their own."""
        return self.odometry != OdometryConfig() or self.sensor.needs_odometry

    @model_validator(mode="after")
    def _one_sensor(self) -> Self:
        if len(self.sensor.profiles) > 1:
            raise ConfigError(f"sensor.profiles {', '.join(self.sensor.profiles)}: evaluate each sensor by itself")
        return self

    @model_validator(mode="after")
    def _recovery_of_the_mean(self) -> Self:
        if self.recovery and not self.deterministic:
            raise ConfigError("recovery frees flights by the mean; sampled ones come free by themselves: leave it out")
        return self


class ExpertConfig(Config):
    """Settings of recording demonstrations with a scripted pilot (teacher, DAgger)."""

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
    answers to what it leads to, so the student learns to come back."""
    noise_hold: int = Field(3, ge=1, le=1000)
    """Decisions for which one disturbance is kept, and one of teacher and student flies."""
    pupil: str | None = None
    """Hash of the weights that fly in the teacher's stead while it answers (DAgger, Ross et al. 2011); filled in by
    `navi demos expert --student`. None flies the teacher's own answers."""
    teacher_share: float = Field(0.5, ge=0, le=1)
    """Share of the decisions that the teacher flies beside a student, drawn for `noise_hold` of them at a time (β of
    DAgger). With 0, a student that is stuck stays so, and most recordings are one observation."""
    azimuth_bins: int = Field(64, ge=8, le=4096)
    """Azimuth bins of the observations."""
    elevation_bins: int = Field(16, ge=4, le=2048)
    """Elevation bins of the observations."""
    max_distance: float = Field(100.0, gt=0, le=1e5)
    """Range of the sensor, M [m]."""
    clearance: float = Field(0.3, gt=0, le=10)
    """Distance to surfaces that a start keeps [m]."""
    sensor: SensorConfig = Field(SensorConfig(), exclude_if=lambda sensor: sensor == SensorConfig())
    """Profiles and faults of the sensor that is recorded and that the teacher flies by; without a delay."""
    dynamics: DynamicsConfig = DynamicsConfig()
    """The drone."""

    @model_validator(mode="after")
    def _prompt_sensor(self) -> Self:
        if self.sensor.oldest:
            raise ConfigError("sensor.delay and sensor.period: demonstrations are recorded without; leave them out")
        return self
