"""Entities: typed, immutable, versioned decisions and measurements of learning, with their invariants asserted.

An entity has a `kind` and a `version`, is written as plain data and read back, and refuses impossible values. The
registry has every kind; use it to read a record from elsewhere.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from navi_core.errors import ConfigError

E = TypeVar("E", bound="Entity")


@dataclass(frozen=True)
class Entity:
    """Base of all entities.

    Attributes:
        version: Format of this kind; raised when its fields change.
    """

    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float):
                self._require(not math.isinf(value), item.name, "finite, or NaN where it is not known")
        self.check()

    def check(self) -> None:
        """Assert the invariants of this kind.

        Raises:
            ConfigError: One is broken; the field is named.
        """

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, with the kind and its version."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        plain = {name: dict(x) if isinstance(x, Mapping) else x for name, x in values.items()}
        return {"kind": type(self).__name__, "version": self.version, **plain}

    def _require(self, holds: bool, name: str, allowed: str) -> None:
        if not holds:
            raise ConfigError(f"{type(self).__name__}.{name} is {getattr(self, name)!r}; allowed: {allowed}")

    def _share(self, *names: str) -> None:
        for name in names:
            self._require(0.0 <= getattr(self, name) <= 1.0, name, "0 … 1")

    def _not_negative(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            self._require(value >= 0 or value != value, name, "0 or more")


class EntityRegistry:
    """Kinds of entities by name."""

    def __init__(self) -> None:
        self._kinds: dict[str, type[Entity]] = {}

    def register(self, kind: type[E]) -> type[E]:
        """Add a kind; a decorator.

        Raises:
            ConfigError: There is another kind of that name.
        """
        if self._kinds.get(kind.__name__, kind) is not kind:
            raise ConfigError(f"there is another entity {kind.__name__}")
        self._kinds[kind.__name__] = kind
        return kind

    def kinds(self) -> tuple[str, ...]:
        """Return the names of all kinds."""
        return tuple(self._kinds)

    def read(self, data: Mapping[str, Any]) -> Entity:
        """Build an entity from plain data.

        Raises:
            ConfigError: The kind is unknown, its version another one, or a field missing, unknown or impossible.
        """
        values = dict(data)
        name, version = values.pop("kind", None), values.pop("version", None)
        kind = self._kinds.get(str(name))
        if kind is None:
            raise ConfigError(f"no entity {name!r}; allowed: {', '.join(self._kinds)}")
        if version != kind.version:
            raise ConfigError(f"entity {name} of version {version!r}; this Navi reads version {kind.version}")
        names = {item.name for item in fields(kind)}
        if set(values) != names:
            raise ConfigError(f"entity {name} has fields {sorted(values)}; expected {sorted(names)}")
        return kind(**values)


ENTITIES = EntityRegistry()
"""All kinds of this package."""


@ENTITIES.register
@dataclass(frozen=True)
class AGMConfig(Entity):
    """Settings that adaptation may change."""

    alpha_step: float
    """Step size of the smoother."""
    trust_region_tau: float
    """Bound of a row's step."""
    k: int
    """Neighbours."""
    learning_rate: float
    """Adam step size."""

    def check(self) -> None:
        """Step sizes are not negative, there is a neighbour."""
        self._not_negative("alpha_step", "learning_rate")
        self._require(self.trust_region_tau > 0, "trust_region_tau", "above 0")
        self._require(self.k >= 1, "k", "1 or more")


@ENTITIES.register
@dataclass(frozen=True)
class AGMMetrics(Entity):
    """Progress of learning between two evaluations."""

    convergence_rate: float
    """Relative fall of the temporal differences' variance since the last evaluation; negative where it rose."""
    mean_spread: float
    """Mean distance of a row from its neighbours' mean."""
    oscillation_strength: float
    """Share of the last evaluations at which the return's slope changed its sign."""
    iterations_used: int
    """Smoothing steps since the last evaluation."""
    timestamp: float
    """Seconds since 1970."""
    td_mean: float
    """Mean temporal difference."""
    td_var: float
    """Variance of the temporal differences."""
    q_rel_change: float
    """|change of the mean Q| over |mean Q| since the last evaluation."""
    val_reward: float
    """Validation reward."""

    def check(self) -> None:
        """Variances, distances and counts are not negative; fractions lie in 0 … 1."""
        self._not_negative("mean_spread", "td_var", "q_rel_change", "iterations_used", "timestamp")
        if self.oscillation_strength == self.oscillation_strength:
            self._share("oscillation_strength")


@ENTITIES.register
@dataclass(frozen=True)
class SmoothingDecision(Entity):
    """Effect of one application of the smoother."""

    applied: bool
    """Whether anything was moved."""
    alpha_step_used: float
    """Step size; 0 where nothing was applied."""
    tau_clip: float
    """Share of rows whose step was clipped by the trust region."""
    gated_by_uncertainty: bool
    """Whether the gate kept the smoother from acting."""
    fep_value: float
    """Free energy of the result; NaN where nothing was applied."""
    sigma_stats: tuple[float, float, float]
    """Least, mean and largest kernel width."""
    mean_step: float = 0.0
    """Mean ‖Δh‖ of a row."""
    disagreement: float = 0.0
    """Mean distance of a row from its neighbours' mean, before."""

    def check(self) -> None:
        """A decision that was not applied moved nothing."""
        self._not_negative("alpha_step_used", "mean_step", "disagreement")
        self._share("tau_clip")
        self._require(self.applied or self.mean_step == 0.0, "mean_step", "0 where nothing was applied")
        self._require(not (self.applied and self.gated_by_uncertainty), "applied", "False where the gate is shut")
        object.__setattr__(self, "sigma_stats", tuple(self.sigma_stats))
        self._require(len(self.sigma_stats) == 3, "sigma_stats", "three numbers")


@ENTITIES.register
@dataclass(frozen=True)
class EarlyStopDecision(Entity):
    """Decision of the early-stopping controller after an evaluation."""

    should_stop: bool
    """Whether the run may end."""
    reason: str
    """Reason to stop or to go on."""
    patience_left: int
    """Evaluations that must still agree."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Cost and its parts."""

    def check(self) -> None:
        """Stopping needs a reason and patience that is used up."""
        self._not_negative("patience_left")
        self._require(bool(self.reason), "reason", "words")
        self._require(not self.should_stop or self.patience_left == 0, "patience_left", "0 at a stop")
        object.__setattr__(self, "metrics", MappingProxyType({k: float(v) for k, v in self.metrics.items()}))


@ENTITIES.register
@dataclass(frozen=True)
class PopulationMetrics(Entity):
    """Aggregate of several workers' measurements."""

    workers: int
    """How many."""
    td_mean: float
    """Their aggregate mean temporal difference."""
    td_var: float
    """Their aggregate variance."""
    local_structure: float
    """Their aggregate share of neighbours with like targets."""
    val_reward: float
    """Their aggregate validation reward."""

    def check(self) -> None:
        """There is a worker; fractions lie in 0 … 1."""
        self._require(self.workers >= 1, "workers", "1 or more")
        self._not_negative("td_var")
        self._share("local_structure")
