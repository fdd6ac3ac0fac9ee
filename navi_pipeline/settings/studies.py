"""Settings of studies: which settings are searched, what counts as good, and how the search is carried out."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from navi_core.config.base import Config, Count
from navi_core.config.registry import LearnerName
from navi_core.errors import ConfigError

NAME = r"^[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*$"


class FloatParameter(Config):
    """A real number between two bounds."""

    kind: Literal["float"] = "float"
    """Kind of the parameter."""
    low: float
    """Least value."""
    high: float
    """Greatest value."""
    log: bool = False
    """Search its logarithm."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_bounds(self.low, self.high, self.log)
        return self


class IntParameter(Config):
    """A whole number between two bounds, both of which may be taken."""

    kind: Literal["int"] = "int"
    """Kind of the parameter."""
    low: int
    """Least value."""
    high: int
    """Greatest value."""
    log: bool = False
    """Search its logarithm."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        _check_bounds(self.low, self.high, self.log)
        return self


class ChoiceParameter(Config):
    """One of a few values without order."""

    kind: Literal["choice"] = "choice"
    """Kind of the parameter."""
    choices: tuple[bool | int | float | str | None, ...] = Field(min_length=1, max_length=100)
    """The values."""


Parameter = Annotated[FloatParameter | IntParameter | ChoiceParameter, Field(discriminator="kind")]
"""What may be searched."""


class ObjectiveConfig(Config):
    """One figure of a training run, and which way is better."""

    metric: str = Field("reward_ema", min_length=1, max_length=100)
    """A metric that the trainer records with every update, or wall_time_hours, memory_gib."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Which way is better."""
    summary: Literal["last", "median", "best"] = "last"
    """What becomes of a run's values: the last, their median (for a noisy one such as sps), or the best."""


class ConstraintConfig(Config):
    """A bound on a figure of a training run; a trial beyond it is infeasible and is never the best."""

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
        """Return how far a value is beyond the bound; zero or less is feasible."""
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
    """A study: trials of one learner, each a training run of its own."""

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


def _check_bounds(low: float, high: float, log: bool) -> None:
    if low > high:
        raise ConfigError(f"low {low:g} is above high {high:g}")
    if log and low <= 0:
        raise ConfigError(f"low {low:g} has no logarithm; log needs bounds above zero")
