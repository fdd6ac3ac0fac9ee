"""Settings of a night: bounded training, its proofs and gates, benchmarks and the morning's summary."""

from typing import Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from navi_core.config.base import Config, Count
from navi_core.errors import ConfigError

Family = Literal["apartment", "maze", "atrium", "rooms", "scan"]


class NightlyConfig(Config):
    """One night. With `train` off it is a validation night: the champion is evaluated and the machine measured."""

    train: bool = True
    """Train, prove the resume, and let the new version challenge the champion."""
    profile: str = "standard"
    """Preset of the training."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of training, evaluation and benchmarks."""
    fresh: bool = False
    """Begin with new weights instead of those of the alias latest."""
    minutes: float = Field(480.0, gt=0, le=10_000)
    """Length of the night [min]."""
    training_share: float = Field(0.8, gt=0, lt=1)
    """Share of the night that is given to training."""
    monitor_seconds: float = Field(300.0, gt=0, le=86_400)
    """Interval of the monitor's lines [s]."""
    checkpoint_every: Count = 25_000
    """Steps between checkpoints."""
    stall_minutes: float = Field(60.0, gt=0, le=10_000)
    """Time without an update after which training counts as stalled [min]."""
    retries: int = Field(2, ge=0, le=100)
    """Times that a trainer that was killed is started again."""
    proof_steps: tuple[int, ...] = (256, 512)
    """Resume proof: the run is taken up again and has to go on by so many steps, one after the other."""
    floor_steps_per_second: float = Field(60.0, ge=0)
    """Training speed below which a warning is given [1/s]."""
    floor_hardware: str | None = None
    """Part of the hardware's description for which the floor holds; None: on any."""
    free_disk_gib: float = Field(2.0, ge=0)
    """Space that must be free before the night begins [GiB]."""
    compact_segments: int | None = Field(20_000, ge=0)
    """Files in `outbox/done/` beyond which the morning compacts the warehouse; None: never."""
    train_scenes: int = Field(16, ge=1, le=10_000)
    """Generated training scenes, where there is no corpus yet."""
    validation_scenes: int = Field(12, ge=1, le=10_000)
    """Generated validation scenes, where there is no corpus yet."""
    test_scenes: int = Field(16, ge=1, le=10_000)
    """Generated test scenes, where there is no corpus yet."""
    eval_starts: int = Field(3, ge=1, le=1000)
    """Frozen starts per scene."""
    eval_steps: int = Field(200, ge=1, le=100_000)
    """Decisions per flight."""
    bench_scenes: tuple[Family, ...] = ("apartment", "maze", "atrium")
    """Generated families whose first scene is flown for the benchmark."""
    bench_repeats: int = Field(5, ge=1, le=1000)
    """Turns that each benchmark scene takes; the median counts."""
    bench_steps: int = Field(40, ge=1, le=100_000)
    """Measured steps of 64 drones per turn."""
    viewer: bool = True
    """Whether a viewer attaches to the trainer as the dashboard does, and has to see an observation."""

    training_hour: int = Field(22, ge=0, le=23)
    """Hour at which the schedule of training nights begins one."""
    validation_hour: int = Field(7, ge=0, le=23)
    """Hour at which the schedule of validation nights begins one."""
    time_zone: str = "UTC"
    """Time zone of the schedules' hours, such as `Europe/Zurich`; nights are named after its dates."""

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (KeyError, OSError, ValueError) as error:
            raise ConfigError(
                f"time_zone {zone!r} is not known here ({error}); for example UTC, Europe/Zurich"
            ) from None
        return zone

    @model_validator(mode="after")
    def _proof_rises(self) -> Self:
        if any(steps < 1 for steps in self.proof_steps):
            raise ConfigError(f"proof_steps {self.proof_steps} must be positive numbers of steps")
        return self
