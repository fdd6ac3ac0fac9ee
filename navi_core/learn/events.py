"""Typed entities, events and the event bus: decisions and measurements of training, published to subscribers.

An entity is a typed, immutable, versioned dataclass that validates its values and serialises to plain data. Events are
entities. Delivery is synchronous, in the order of subscription, without a queue; a subscriber's exception propagates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Generic, TypeVar, get_origin, get_type_hints

from navi_core.errors import ConfigError

T = TypeVar("T", bound=Callable[..., Any])
U = TypeVar("U", bound=Callable[..., Any])
V = TypeVar("V", bound="Event")


class Registry(Generic[T]):
    """Registry of classes or functions by name; a name cannot be registered twice.

    Args:
        kind: Kind of the items, for error messages.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._items: dict[str, Any] = {}

    def register(self, item: U) -> U:
        """Register a class or function under its name; usable as a decorator.

        Raises:
            ConfigError: The name is taken by another item.
        """
        if self._items.setdefault(item.__name__, item) is not item:
            raise ConfigError(f"there is another {self._kind} {item.__name__}")
        return item

    def __getitem__(self, name: str) -> T:
        """Look up an item by name.

        Raises:
            ConfigError: The name is not registered.
        """
        if name not in self._items:
            raise ConfigError(f"no {self._kind} {name!r}; allowed: {', '.join(self.names())}")
        found: T = self._items[name]
        return found

    def names(self) -> tuple[str, ...]:
        """Return all registered names, sorted."""
        return tuple(sorted(self._items))


CALLABLES: Registry[Callable[..., Any]] = Registry("function")
"""Registry of functions by name, for configurations and other processes."""


NotNegative = Annotated[float, (0.0, math.inf)]
Fraction = Annotated[float, (0.0, 1.0)]
Natural = Annotated[int, (0, math.inf)]
Positive = Annotated[int, (1, math.inf)]
"""Annotated number types of entity fields with their bounds; NaN (unknown) is within all bounds."""


@dataclass(frozen=True)
class Entity:
    """Base dataclass of all entities; validates that numbers are finite and within bounds, and texts not empty.

    Attributes:
        version: Schema version of this kind; incremented when its fields change.
    """

    version: ClassVar[int] = 1
    _bounds: ClassVar[dict[str, tuple[float, float]]] = {}

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        cls._bounds = {name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated}

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float | int):
                least, most = self._bounds.get(item.name, (-math.inf, math.inf))
                within = not (math.isinf(value) or value < least or value > most)
                self._require(within, item.name, f"finite, {least} … {most}, or NaN where it is not known")
            elif isinstance(value, str):
                self._require(bool(value), item.name, "words")
            elif isinstance(value, Mapping):
                object.__setattr__(self, item.name, MappingProxyType(dict(value)))
            elif isinstance(value, list):
                object.__setattr__(self, item.name, tuple(value))
        self.check()

    def check(self) -> None:
        """Validate further invariants of this kind of entity; a hook for subclasses.

        Raises:
            ConfigError: An invariant is violated; the field is named.
        """

    def as_dict(self) -> dict[str, Any]:
        """Serialise to plain data, with the kind and its version."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        plain = {name: dict(x) if isinstance(x, Mapping) else x for name, x in values.items()}
        return {"kind": type(self).__name__, "version": self.version, **plain}

    def _require(self, holds: bool, name: str, allowed: str) -> None:
        if not holds:
            raise ConfigError(f"{type(self).__name__}.{name} is {getattr(self, name)!r}; allowed: {allowed}")


ENTITIES: Registry[type[Entity]] = Registry("entity")
"""Registry of entity classes by name."""


def read_entity(data: Mapping[str, Any]) -> Entity:
    """Deserialise an entity from plain data.

    Raises:
        ConfigError: The kind is unknown, its version another one, or a field missing, unknown or impossible.
    """
    values = dict(data)
    name, version = str(values.pop("kind", None)), values.pop("version", None)
    kind = ENTITIES[name]
    if version != kind.version:
        raise ConfigError(f"entity {name} of version {version!r}; this Navi reads version {kind.version}")
    names = {item.name for item in fields(kind)}
    if set(values) != names:
        raise ConfigError(f"entity {name} has fields {sorted(values)}; expected {sorted(names)}")
    return kind(**values)


@ENTITIES.register
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


@ENTITIES.register
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


@ENTITIES.register
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


@ENTITIES.register
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


@ENTITIES.register
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
class Event(Entity):
    """Base dataclass of all events."""


@dataclass(frozen=True)
class TimedEvent(Event):
    """Base dataclass of events with a timestamp."""

    timestamp: float = field(default_factory=time.time, kw_only=True)
    """Seconds since 1970."""


@ENTITIES.register
@dataclass(frozen=True)
class AdaptationApplied(TimedEvent):
    """Event: adaptation changed the settings."""

    before: AGMConfig
    """Settings before the change."""
    after: AGMConfig
    """Settings after the change."""
    reason: str
    """Reason: oscillation, standstill or convergence."""


@ENTITIES.register
@dataclass(frozen=True)
class EarlyStopTriggered(TimedEvent):
    """Event: the early-stopping controller decided to stop; published once."""

    decision: EarlyStopDecision
    """Decision of the controller."""
    evaluation: int
    """Number of evaluations up to the decision."""


@ENTITIES.register
@dataclass(frozen=True)
class ParameterSync(Event):
    """Event: a learner published weights to the actors."""

    learner_id: Natural
    """Number of the learner."""
    step: Natural
    """Gradient steps of the learner so far."""
    checksum: str
    """Hash of the weights."""
    model_version: Natural
    """Number of the publication."""


@ENTITIES.register
@dataclass(frozen=True)
class ReplayUpdate(Event):
    """Event: items were added to a replay buffer, or their priorities updated."""

    shard_id: Natural
    """Number of the replay shard; 0 if there is only one."""
    count: Natural
    """Number of items added or updated."""
    priority_stats: Mapping[str, float]
    """Least, mean and largest priority among them."""


class EventBus:
    """Synchronous publish/subscribe bus: delivers an event to the subscribers of its class or a base class."""

    def __init__(self) -> None:
        self._subscriptions: dict[object, tuple[type[Event], Callable[[Any], None]]] = {}

    def subscribe(self, kind: type[V], handler: Callable[[V], None]) -> Callable[[], object]:
        """Subscribe `handler` to an event class; return a function that unsubscribes it."""
        key = object()
        self._subscriptions[key] = (kind, handler)
        return lambda: self._subscriptions.pop(key, None)

    def publish(self, event: V) -> V:
        """Publish an event to its subscribers; return the event."""
        for kind, handler in tuple(self._subscriptions.values()):
            if isinstance(event, kind):
                handler(event)
        return event

    @property
    def wanted(self) -> bool:
        """Whether the bus has subscribers."""
        return bool(self._subscriptions)
