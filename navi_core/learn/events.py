"""Entities and events of learning: settings that adaptation changes, decisions of smoothing and of early stopping."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from navi_core.config.registry import PartNames, Parts
from navi_core.record.events import Entity, Event, Fraction, Natural, NotNegative, Positive

CALLABLES: Parts[Callable[..., Any]] = Parts(
    PartNames("function", ("apply_consensus_update", "compute_knn_kernel", "early_stop_check"))
)
"""Registry of functions by name, for configurations and other processes."""


@dataclass(frozen=True)
class AGMConfig(Entity):
    """Snapshot of the settings that adaptation may change: smoother step, trust region, neighbours, learning rate."""

    alpha_step: NotNegative
    """Step size of the smoother."""
    trust_region_tau: NotNegative
    """Trust-region bound τ of a row's step; above 0."""
    k: Positive
    """Number of nearest neighbours."""
    learning_rate: NotNegative
    """Adam step size."""

    def check(self) -> None:
        """Validate that the trust region is above 0."""
        self._require(self.trust_region_tau != 0, "trust_region_tau", "above 0")


@dataclass(frozen=True)
class AGMMetrics(Entity):
    """Metrics of training progress between two evaluations, the input of adaptation."""

    convergence_rate: float
    """Relative fall of the temporal differences' variance since the last evaluation; negative where it rose."""
    mean_spread: NotNegative
    """Mean distance of a row from its neighbours' mean."""
    oscillation_strength: Fraction
    """Share of the last evaluations at which the return's slope changed sign."""
    iterations_used: Natural
    """Smoothing steps since the last evaluation."""
    timestamp: NotNegative
    """Seconds since 1970."""
    td_mean: float
    """Mean temporal difference."""
    td_var: NotNegative
    """Variance of the temporal differences."""
    q_rel_change: NotNegative
    """|change of the mean Q| over |mean Q| since the last evaluation."""
    val_reward: float
    """Validation reward."""


@dataclass(frozen=True)
class SmoothingDecision(Entity):
    """Record of one application of the drift smoother: whether it acted, step sizes, clipping, free energy."""

    applied: bool
    """Whether the smoother was applied."""
    alpha_step_used: NotNegative
    """Step size; 0 where nothing was applied."""
    tau_clip: Fraction
    """Share of rows whose step was clipped by the trust region."""
    gated_by_uncertainty: bool
    """Whether the gate kept the smoother from acting."""
    fep_value: float
    """Free energy of the result; NaN where nothing was applied."""
    sigma_stats: tuple[float, float, float]
    """Least, mean and largest kernel width."""
    mean_step: NotNegative = 0.0
    """Mean ‖Δh‖ of a row."""
    disagreement: NotNegative = 0.0
    """Mean distance of a row from its neighbours' mean, before."""

    def check(self) -> None:
        """Validate consistency: no step without application, none behind a shut gate, three σ statistics."""
        self._require(self.applied or self.mean_step == 0.0, "mean_step", "0 where nothing was applied")
        self._require(not (self.applied and self.gated_by_uncertainty), "applied", "False where the gate is shut")
        self._require(len(self.sigma_stats) == 3, "sigma_stats", "three numbers")


@dataclass(frozen=True)
class EarlyStopDecision(Entity):
    """Decision of the early-stopping controller after an evaluation: stop or continue, reason, patience left."""

    should_stop: bool
    """Whether the run may end."""
    reason: str
    """Reason to stop or to go on."""
    patience_left: Natural
    """Further consecutive evaluations needed to stop."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Early-stopping cost and its components."""

    def check(self) -> None:
        """Validate that a stop has no patience left."""
        self._require(not self.should_stop or self.patience_left == 0, "patience_left", "0 at a stop")


@dataclass(frozen=True)
class PopulationMetrics(Entity):
    """Aggregate of several workers' evaluation metrics (median or trimmed mean)."""

    workers: Positive
    """Number of workers."""
    td_mean: float
    """Aggregate mean temporal difference."""
    td_var: NotNegative
    """Aggregate variance of the temporal differences."""
    local_structure: Fraction
    """Aggregate share of latent neighbours with similar targets."""
    val_reward: float
    """Aggregate validation reward."""


@dataclass(frozen=True)
class AdaptationApplied(Event):
    """Event: adaptation changed the settings."""

    version: ClassVar[int] = 2

    before: AGMConfig
    """Settings before the change."""
    after: AGMConfig
    """Settings after the change."""
    reason: str
    """Reason: oscillation, standstill or convergence."""
    metrics_before: Mapping[str, float]
    """Means of the metrics up to the evaluation before."""
    metrics_after: Mapping[str, float]
    """Means of the metrics since then, from which the change follows."""

    @property
    def detail(self) -> str:
        """Reason and changed settings."""
        before, after = vars(self.before), vars(self.after)
        changes = [f"{name} {before[name]:g} → {after[name]:g}" for name in before if before[name] != after[name]]
        return f"{self.reason}: {', '.join(changes)}"


@dataclass(frozen=True)
class EarlyStopTriggered(Event):
    """Event: the early-stopping controller decided to stop; published once."""

    version: ClassVar[int] = 2

    decision: EarlyStopDecision
    """Decision of the controller."""
    evaluation: Natural
    """Number of evaluations up to the decision."""

    @property
    def detail(self) -> str:
        """Reason of the decision."""
        return self.decision.reason
