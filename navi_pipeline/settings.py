"""Pydantic settings of the pipeline: nightly runs, studies, sweeps, ablations."""

from typing import Annotated, Any, Literal, Self, TypeVar
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from navi_core.config.base import Config, Count
from navi_core.config.registry import LearnerName
from navi_core.errors import ConfigError

Family = Literal["apartment", "maze", "atrium", "rooms", "scan"]


class NightlyConfig(Config):
    """Settings of one nightly run. With `train` off it only evaluates the champion and benchmarks the machine."""

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


NAME = r"^[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*$"


Bounded = TypeVar("Bounded", "FloatParameter", "IntParameter")


def _check_bounds(parameter: Bounded) -> Bounded:
    """Validate that the bounds enclose a value, and are positive for a logarithmic search."""
    if parameter.low > parameter.high:
        raise ConfigError(f"low {parameter.low:g} is above high {parameter.high:g}")
    if parameter.log and parameter.low <= 0:
        raise ConfigError(f"low {parameter.low:g} has no logarithm; log needs bounds above zero")
    return parameter


class FloatParameter(Config):
    """Real-valued search parameter between two bounds."""

    kind: Literal["float"] = "float"
    """Kind of the parameter."""
    low: float
    """Least value."""
    high: float
    """Greatest value."""
    log: bool = False
    """Search its logarithm."""

    _ordered = model_validator(mode="after")(_check_bounds)


class IntParameter(Config):
    """Integer search parameter between two inclusive bounds."""

    kind: Literal["int"] = "int"
    """Kind of the parameter."""
    low: int
    """Least value."""
    high: int
    """Greatest value."""
    log: bool = False
    """Search its logarithm."""

    _ordered = model_validator(mode="after")(_check_bounds)


class ChoiceParameter(Config):
    """Categorical search parameter: one of a few values without order."""

    kind: Literal["choice"] = "choice"
    """Kind of the parameter."""
    choices: tuple[bool | int | float | str | None, ...] = Field(min_length=1, max_length=100)
    """The values."""


Parameter = Annotated[FloatParameter | IntParameter | ChoiceParameter, Field(discriminator="kind")]
"""Search parameter, discriminated by its kind."""


class ObjectiveConfig(Config):
    """Objective of a study: one metric of a training run, and its direction."""

    metric: str = Field("reward_ema", min_length=1, max_length=100)
    """A metric that the trainer records with every update, or wall_time_hours, memory_gib."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Which way is better."""
    summary: Literal["last", "median", "best"] = "last"
    """What becomes of a run's values: the last, their median (for a noisy one such as sps), or the best."""


class ConstraintConfig(Config):
    """Constraint of a study: a bound on a metric; a trial beyond it is infeasible and never the best."""

    metric: str = Field(min_length=1, max_length=100)
    """As of an objective; memory_gib is the trainer's largest resident memory, collision the reward's term."""
    at_most: float | None = None
    """Upper bound."""
    at_least: float | None = None
    """Lower bound."""

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.at_most is None) == (self.at_least is None):
            raise ConfigError(f"the constraint on {self.metric} needs one of at_most and at_least")
        return self

    def violation(self, value: float) -> float:
        """Return the constraint violation of a value; zero or less is feasible."""
        if self.at_most is not None:
            return value - self.at_most
        assert self.at_least is not None
        return self.at_least - value


class PruningConfig(Config):
    """Hyperband (Li et al. 2018): trials that lag behind at a rung end early."""

    min_steps: Count = 4096
    """Decisions that every trial gets."""
    reduction_factor: int = Field(3, ge=2, le=100)
    """η; one trial in η goes on to the next rung, which is η times as far."""


class StudyConfig(Config):
    """Settings of a study (hyperparameter search): trials of one learner, each a separate training run."""

    name: str = Field(pattern=NAME, max_length=80)
    """Name of the study; part of the key of its runs."""
    learner: LearnerName = "ppo"
    """What is trained: ppo, grpo, dqn, bc, or a learner of a module that NAVI_PLUGINS names."""
    preset: str | None = None
    """Preset of the settings that do not vary."""
    settings: dict[str, Any] = {}
    """Settings that do not vary, nested as in a configuration file; they win over the preset."""
    demonstrations: tuple[str, ...] = ()
    """Folders of demonstrations, for bc."""
    space: dict[str, Parameter] = {}
    """Setting (a.b) → how it varies; empty takes the space that Navi has for its learners."""
    objectives: tuple[ObjectiveConfig, ...] = Field((ObjectiveConfig(),), min_length=1, max_length=4)
    """What counts; with more than one the result is a front, and nothing is pruned."""
    constraints: tuple[ConstraintConfig, ...] = Field((), max_length=16)
    """What must hold."""
    sampler: Literal["tpe", "gp", "nsga2", "random"] = "tpe"
    """How settings are proposed: tree of Parzen estimators, Gaussian process, genetic, or at random."""
    pruning: PruningConfig | None = None
    """When trials end early; None lets each run to its end."""
    trials: int = Field(30, ge=1, le=100_000)
    """Trials that the study ends with; one that is taken up again after a crash counts once."""
    workers: int = Field(1, ge=1, le=256)
    """Trials at once, each worker a process."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the proposals; with one worker the study is reproducible."""
    timeout: float | None = Field(None, gt=0, le=1e7)
    """Wall time after which a trial ends and has failed [s]."""
    attempts: int = Field(5, ge=1, le=100)
    """Times that a trial whose worker died, or whose trainer others ended, is taken up before it has failed."""
    storage: str | None = None
    """Where the study lies: an SQL address such as postgresql+psycopg://host/navi; None: a journal in its folder.

    The variable NAVI_STUDY_STORAGE wins, so that passwords stay out of files."""

    @model_validator(mode="after")
    def _one_objective_is_pruned(self) -> Self:
        metrics = [objective.metric for objective in self.objectives]
        if len(set(metrics)) < len(metrics):
            raise ConfigError(f"objectives {', '.join(metrics)}: each metric counts once")
        if self.pruning is not None and len(self.objectives) > 1:
            raise ConfigError("pruning needs a single objective; take pruning: null or one objective")
        if self.learner == "dpo":
            raise ConfigError("there are no studies of dpo; allowed: ppo, grpo, dqn, bc, or a learner of your own")
        if (self.learner == "bc") != bool(self.demonstrations):
            raise ConfigError("demonstrations are what bc learns from: name their folders for bc, and for bc alone")
        return self


class SweepConfig(Config):
    """Settings of a sweep: size of its cells; None takes the default of profile and sweep."""

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


class AblationConfig(Config):
    """Settings of an ablation that all cells share."""

    preset: str = "demo"
    """Preset, or file, of the settings that do not vary."""
    base: dict[str, object] = {}
    """Settings laid on the preset for every variant."""
    variants: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_+.-]{1,64}$")], dict[str, object]] = {}
    """Variants beside the catalogue's: what each changes, settings by section; `algorithm` names another learner."""
    steps: Count = 300_000
    """Decisions that a cell trains, summed over rows."""
    seeds: int = Field(5, ge=1, le=100)
    """Training seeds 0 … n − 1 of every variant; a verdict needs five."""
    train: tuple[str, ...] = ("rooms:0-15",)
    """Generated scenes to train in, family:seeds."""
    scenes: tuple[str, ...] = ("rooms-v1:validation",)
    """Unseen scenes that the final policies fly in, as `navi evaluate --scene`."""
    protocol: str = "quick"
    """Length of those flights: quick or full."""
    demo_episodes: int = Field(8, ge=1, le=10_000)
    """Demonstrations of each training scene, for what is cloned first."""
    demo_pilot: str = "frontier"
    """Who flies them."""
    timeout: float = Field(7200.0, gt=0, le=1e6)
    """Wall time after which a command of a cell is ended [s]."""

    @model_validator(mode="after")
    def _cells_differ(self) -> Self:
        if "algorithm" in self.base:
            raise ConfigError("the base learns by ppo; another learner is a variant, --vary NAME:algorithm=grpo")
        for who, settings in {"base": self.base, **self.variants}.items():
            if "seed" in settings:
                raise ConfigError(f"{who} sets the seed, which would make all cells one; use --seeds")
            if settings.get("algorithm") == "bc":
                raise ConfigError(f"variant {who!r}: a clone alone is no variant; `navi ablate bc+ppo` begins with one")
        return self
