"""Pydantic settings of the pipeline: nightly runs, studies, sweeps, ablations."""

from typing import Annotated, Any, Generic, Literal, Self, TypeVar
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from navi_core.config.base import Config, Count
from navi_core.config.registry import LEARNER_NAMES, PartNames
from navi_core.errors import ConfigError

Family = Literal["angled", "apartment", "atrium", "hall", "home", "maze", "rooms", "scan", "shop", "stairs"]


class NightlyConfig(Config):
    """Settings of one nightly run. With `train` off it only evaluates the champion and benchmarks the machine."""

    train: bool = True
    """Train, prove that the run resumes, and evaluate the new version against the champion."""
    profile: str = "standard"
    """Preset of the training configuration."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of training, evaluation and benchmarks."""
    fresh: bool = False
    """Start from new weights instead of the version with alias latest."""
    minutes: float = Field(480.0, gt=0, le=10_000)
    """Length of the night [min]."""
    training_share: float = Field(0.8, gt=0, lt=1)
    """Fraction of the night for training."""
    monitor_seconds: float = Field(300.0, gt=0, le=86_400)
    """Interval of the monitor's log lines [s]."""
    checkpoint_every: Count = 25_000
    """Interval between checkpoints [decisions]."""
    stall_minutes: float = Field(60.0, gt=0, le=10_000)
    """Time without an update after which training counts as stalled [min]."""
    retries: int = Field(2, ge=0, le=100)
    """Maximum number of restarts of a killed trainer."""
    proof_steps: tuple[Annotated[int, Field(ge=1)], ...] = (256, 512)
    """Resume proof: the run is resumed once per entry and must advance by this many decisions."""
    floor_steps_per_second: float = Field(60.0, ge=0)
    """Minimum training speed, below which the night warns [decisions/s]."""
    floor_hardware: str | None = None
    """Text in the hardware's description to which the minimum speed applies; None: any hardware."""
    free_disk_gib: float = Field(2.0, ge=0)
    """Minimum free disk space before the night begins [GiB]."""
    compact_segments: int | None = Field(20_000, ge=0)
    """Maximum number of files in `outbox/done/` before the night compacts the warehouse; None: unlimited."""
    train_scenes: int = Field(16, ge=1, le=10_000)
    """Number of generated training scenes, if there is no corpus yet."""
    validation_scenes: int = Field(12, ge=1, le=10_000)
    """Number of generated validation scenes, if there is no corpus yet."""
    test_scenes: int = Field(16, ge=1, le=10_000)
    """Number of generated test scenes, if there is no corpus yet."""
    eval_starts: int = Field(3, ge=1, le=1000)
    """Number of frozen starts per scene in evaluations."""
    eval_steps: int = Field(200, ge=1, le=100_000)
    """Length of an evaluation flight [decisions]."""
    bench_scenes: tuple[Family, ...] = ("apartment", "maze", "atrium")
    """Scene families that are benchmarked, on their first generated scene."""
    bench_repeats: int = Field(5, ge=1, le=1000)
    """Repeats of each benchmark scene; the median counts."""
    bench_steps: int = Field(40, ge=1, le=100_000)
    """Measured environment steps of 64 drones per repeat."""
    viewer: bool = True
    """Attach a viewer to the trainer, as the dashboard does, and check that it receives an observation."""

    webhook: str | None = Field(None, pattern=r"^https?://")
    """URL that a failed night is posted to as JSON; None: nobody is called.

    The variable NAVI_NIGHTLY_WEBHOOK wins, so that a secret in it stays out of files."""
    training_hour: int = Field(22, ge=0, le=23)
    """Start hour of scheduled training nights, in `time_zone`."""
    training_cron: str | None = Field(None, pattern=r"^\S+( \S+){4}$")
    """Cron expression of scheduled training nights in `time_zone`, instead of once a day at `training_hour`."""
    validation_hour: int = Field(7, ge=0, le=23)
    """Start hour of scheduled validation nights, in `time_zone`."""
    time_zone: str = "UTC"
    """Time zone of the schedules, such as `Europe/Zurich`; nights are named after its dates."""

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


NAME = r"^[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*$"


Number = TypeVar("Number", int, float)


class _RangeParameter(Config, Generic[Number]):
    """Numeric search parameter between two inclusive bounds."""

    low: Number
    """Lower bound, inclusive."""
    high: Number
    """Upper bound, inclusive."""
    log: bool = False
    """Search on a logarithmic scale."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ConfigError(f"low {self.low:g} is above high {self.high:g}")
        if self.log and self.low <= 0:
            raise ConfigError(f"low {self.low:g} has no logarithm; log needs bounds above zero")
        return self


class FloatParameter(_RangeParameter[float]):
    """Real-valued search parameter between two inclusive bounds."""

    kind: Literal["float"] = "float"
    """Discriminator of the parameter's type."""


class IntParameter(_RangeParameter[int]):
    """Integer search parameter between two inclusive bounds."""

    kind: Literal["int"] = "int"
    """Discriminator of the parameter's type."""


class ChoiceParameter(Config):
    """Categorical search parameter: one of a few values without order."""

    kind: Literal["choice"] = "choice"
    """Discriminator of the parameter's type."""
    choices: tuple[bool | int | float | str | None, ...] = Field(min_length=1, max_length=100)
    """Allowed values."""


Parameter = Annotated[FloatParameter | IntParameter | ChoiceParameter, Field(discriminator="kind")]
"""Search parameter, discriminated by its kind."""


class ObjectiveConfig(Config):
    """Objective of a study: one metric of a training run, and its direction."""

    metric: str = Field("reward_ema", min_length=1, max_length=100)
    """Metric that the trainer records with every update, or wall_time_hours, memory_gib."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Optimisation direction."""
    summary: Literal["last", "median", "best"] = "last"
    """Aggregation of a run's values: the last, the median (for noisy metrics such as sps), or the best."""


class ConstraintConfig(Config):
    """Constraint of a study: a bound on a metric; a trial beyond it is infeasible and never the best."""

    metric: str = Field(min_length=1, max_length=100)
    """Metric as in an objective; memory_gib is the trainer's peak resident memory, collision the reward term."""
    at_most: float | None = None
    """Upper bound of the metric."""
    at_least: float | None = None
    """Lower bound of the metric."""

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
    """Settings of the Hyperband pruner (Li et al. 2018): trials that lag behind at a rung end early."""

    min_steps: Count = 4096
    """Minimum resource of every trial [decisions]."""
    reduction_factor: int = Field(3, ge=2, le=100)
    """Reduction factor η: one trial in η is promoted to the next rung, which is η times as far."""


class _StudyLearners(PartNames):
    """Names of the learners, and of Ape-X, which is an algorithm's way to train and no algorithm."""

    def all(self) -> tuple[str, ...]:
        """Return all allowed names in this process."""
        return (*LEARNER_NAMES.all(), "apex")


class StudyConfig(Config):
    """Settings of a study (hyperparameter search): trials of one learner, each a separate training run."""

    name: str = Field(pattern=NAME, max_length=80)
    """Name of the study; part of the key of its runs."""
    learner: Annotated[str, _StudyLearners("learner", ())] = "ppo"
    """Learner to tune: ppo, grpo, dpo, dqn, bc, apex, or a user-defined one of a module in NAVI_PLUGINS."""
    preset: str | None = None
    """Preset (YAML file of settings) with the settings that do not vary."""
    settings: dict[str, Any] = {}
    """Fixed settings, nested as in a configuration file; they override the preset."""
    demonstrations: tuple[str, ...] = ()
    """Folders of demonstration datasets, for bc."""
    space: dict[str, Parameter] = {}
    """Search space: setting (a.b) → parameter; empty takes the learner's default space."""
    objectives: tuple[ObjectiveConfig, ...] = Field((ObjectiveConfig(),), min_length=1, max_length=4)
    """Objectives; with more than one the result is a Pareto front, and nothing is pruned."""
    constraints: tuple[ConstraintConfig, ...] = Field((), max_length=16)
    """Constraints that a feasible trial satisfies."""
    sampler: Literal["tpe", "gp", "nsga2", "random"] = "tpe"
    """Sampler: tree of Parzen estimators (TPE), Gaussian process, NSGA-II, or random search."""
    pruning: PruningConfig | None = None
    """Pruner of unpromising trials; None lets each run to its end."""
    trials: int = Field(30, ge=1, le=100_000)
    """Number of trials of the study; one that is resumed after a crash counts once."""
    workers: int = Field(1, ge=1, le=256)
    """Number of worker processes, each with one trial at a time."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the sampler; with one worker the study is reproducible."""
    timeout: float | None = Field(None, gt=0, le=1e7)
    """Time limit of a trial, after which it counts as failed [s]."""
    attempts: int = Field(5, ge=1, le=100)
    """Maximum attempts of a trial whose worker or trainer was killed from outside."""
    storage: str | None = None
    """Storage of the study: an SQL URL such as postgresql+psycopg://host/navi; None: a journal in its folder.

    The variable NAVI_STUDY_STORAGE wins, so that passwords stay out of files."""

    @model_validator(mode="after")
    def _one_objective_is_pruned(self) -> Self:
        metrics = [objective.metric for objective in self.objectives]
        if len(set(metrics)) < len(metrics):
            raise ConfigError(f"objectives {', '.join(metrics)}: each metric counts once")
        if self.pruning is not None and len(self.objectives) > 1:
            raise ConfigError("pruning needs a single objective; take pruning: null or one objective")
        if (self.learner == "bc") != bool(self.demonstrations):
            raise ConfigError("demonstrations are what bc learns from: name their folders for bc, and for bc alone")
        return self


class SweepConfig(Config):
    """Settings of a sweep: size of its cells; None takes the default of profile and sweep."""

    profile: Literal["quick", "full"] = "quick"
    """quick: at most 2,000 decisions or 20 s a cell, 10 s by default; full: as long as the sweep's question needs."""
    seeds: int | None = Field(None, ge=1, le=100)
    """Number of repeats of each cell, with seeds 0 … n − 1."""
    steps: Count | None = None
    """Training length of a cell, summed over rows [decisions]."""
    seconds: float | None = Field(None, gt=0, le=1e6)
    """Training time of a cell, which ends with its last complete update [s]."""
    timeout: float = Field(3600.0, gt=0, le=1e6)
    """Time limit of a cell's process, after which it is killed [s]."""
    preset: str | None = None
    """Preset of the fixed settings; None: the sweep's default."""
    memory_limit: float | None = Field(None, gt=0, le=1e5)
    """Limit of a cell's address space [GiB]; None: unlimited."""
    threads: int = Field(1, ge=0, le=256)
    """Torch threads of a cell; 0 measures the best number."""

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
    """Preset, or YAML file, of the fixed settings."""
    base: dict[str, object] = {}
    """Settings that override the preset for every variant."""
    variants: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_+.-]{1,64}$")], dict[str, object]] = {}
    """Custom variants beside the catalogue's: name → settings by section; `algorithm` selects another learner."""
    steps: Count = 300_000
    """Training length of a cell, summed over rows [decisions]."""
    seeds: int = Field(5, ge=1, le=100)
    """Number of training seeds (0 … n − 1) of every variant; a verdict needs five."""
    train: tuple[str, ...] = ("rooms:0-15",)
    """Generated training scenes, family:seeds."""
    scenes: tuple[str, ...] = ("rooms-v1:validation",)
    """Unseen scenes for the evaluation of final policies, as `navi evaluate --scene`."""
    protocol: str = "quick"
    """Length of the evaluation flights: quick or full."""
    demo_episodes: int = Field(8, ge=1, le=10_000)
    """Demonstration episodes per training scene, for variants with behaviour cloning."""
    demo_pilot: str = "frontier"
    """Scripted pilot that flies the demonstrations."""
    timeout: float = Field(7200.0, gt=0, le=1e6)
    """Time limit of a cell's command [s]."""

    @model_validator(mode="after")
    def _cells_differ(self) -> Self:
        if "algorithm" in self.base:
            raise ConfigError("the base learns by ppo; another learner is a variant, --vary NAME:algorithm=grpo")
        for who, settings in {"base": self.base, **self.variants}.items():
            if "seed" in settings:
                raise ConfigError(f"{who} sets the seed, which would make all cells one; use --seeds")
            if settings.get("algorithm") == "bc":
                raise ConfigError(
                    f"variant {who!r}: a clone alone is no variant; `navi study ablate bc+ppo` begins with one"
                )
        return self
