"""Entities, events and the bus: the decisions and measurements of learning, and how a run announces them.

An entity is typed, immutable and versioned. It is written as plain data and read back, and refuses impossible values.
Events are entities. A subscriber that raises is its owner's fault and is not hidden. Nothing is queued: an event is
delivered where it happens, in the order of subscription.
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
    """Classes or functions by name; a name keeps what it has.

    Args:
        kind: In words.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._items: dict[str, Any] = {}

    def register(self, item: U) -> U:
        """Add a class or function under its name; a decorator.

        Raises:
            ConfigError: The name has another one.
        """
        if self._items.setdefault(item.__name__, item) is not item:
            raise ConfigError(f"there is another {self._kind} {item.__name__}")
        return item

    def __getitem__(self, name: str) -> T:
        """Return what has a name.

        Raises:
            ConfigError: There is none.
        """
        if name not in self._items:
            raise ConfigError(f"no {self._kind} {name!r}; allowed: {', '.join(self.names())}")
        found: T = self._items[name]
        return found

    def names(self) -> tuple[str, ...]:
        """Return all names."""
        return tuple(sorted(self._items))


CALLABLES: Registry[Callable[..., Any]] = Registry("function")
"""Functions by name, for configurations and other processes."""


NotNegative = Annotated[float, (0.0, math.inf)]
Fraction = Annotated[float, (0.0, 1.0)]
Natural = Annotated[int, (0, math.inf)]
Positive = Annotated[int, (1, math.inf)]
"""Numbers of an entity with their bounds; NaN, where a number is not known, lies within."""


@dataclass(frozen=True)
class Entity:
    """Base of all entities. Numbers are finite and within their bounds, texts are not empty.

    Attributes:
        version: Format of this kind; raised when its fields change.
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
        """Assert the further invariants of this kind.

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


ENTITIES: Registry[type[Entity]] = Registry("entity")
"""Kinds of entities by name."""


def read_entity(data: Mapping[str, Any]) -> Entity:
    """Build an entity from plain data.

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
    """Settings that adaptation may change."""

    alpha_step: NotNegative
    """Step size of the smoother."""
    trust_region_tau: NotNegative
    """Bound of a row's step; above 0."""
    k: Positive
    """Neighbours."""
    learning_rate: NotNegative
    """Adam step size."""

    def check(self) -> None:
        """A row may be moved."""
        self._require(self.trust_region_tau != 0, "trust_region_tau", "above 0")


@ENTITIES.register
@dataclass(frozen=True)
class AGMMetrics(Entity):
    """Progress of learning between two evaluations."""

    convergence_rate: float
    """Relative fall of the temporal differences' variance since the last evaluation; negative where it rose."""
    mean_spread: NotNegative
    """Mean distance of a row from its neighbours' mean."""
    oscillation_strength: Fraction
    """Share of the last evaluations at which the return's slope changed its sign."""
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
    """Effect of one application of the smoother."""

    applied: bool
    """Whether anything was moved."""
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
        """A decision that was not applied moved nothing."""
        self._require(self.applied or self.mean_step == 0.0, "mean_step", "0 where nothing was applied")
        self._require(not (self.applied and self.gated_by_uncertainty), "applied", "False where the gate is shut")
        self._require(len(self.sigma_stats) == 3, "sigma_stats", "three numbers")


@ENTITIES.register
@dataclass(frozen=True)
class EarlyStopDecision(Entity):
    """Decision of the early-stopping controller after an evaluation."""

    should_stop: bool
    """Whether the run may end."""
    reason: str
    """Reason to stop or to go on."""
    patience_left: Natural
    """Evaluations that must still agree."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Cost and its parts."""

    def check(self) -> None:
        """Stopping needs patience that is used up."""
        self._require(not self.should_stop or self.patience_left == 0, "patience_left", "0 at a stop")


@ENTITIES.register
@dataclass(frozen=True)
class PopulationMetrics(Entity):
    """Aggregate of several workers' measurements."""

    workers: Positive
    """How many."""
    td_mean: float
    """Their aggregate mean temporal difference."""
    td_var: NotNegative
    """Their aggregate variance."""
    local_structure: Fraction
    """Their aggregate share of neighbours with like targets."""
    val_reward: float
    """Their aggregate validation reward."""


@dataclass(frozen=True)
class Event(Entity):
    """Base of all events."""


@dataclass(frozen=True)
class TimedEvent(Event):
    """Event with a time."""

    timestamp: float = field(default_factory=time.time, kw_only=True)
    """Seconds since 1970."""


@ENTITIES.register
@dataclass(frozen=True)
class AdaptationApplied(TimedEvent):
    """Settings were adapted."""

    before: AGMConfig
    """As they stood."""
    after: AGMConfig
    """As they stand now."""
    reason: str
    """What the evaluation showed."""


@ENTITIES.register
@dataclass(frozen=True)
class EarlyStopTriggered(TimedEvent):
    """The controller decided to stop, for the first time."""

    decision: EarlyStopDecision
    """Its decision."""
    evaluation: int
    """Number of evaluations before it."""


@ENTITIES.register
@dataclass(frozen=True)
class ParameterSync(Event):
    """A learner published weights."""

    learner_id: Natural
    """Which learner."""
    step: Natural
    """Its gradient steps."""
    checksum: str
    """Hash of the weights."""
    model_version: Natural
    """Number of the publication."""


@ENTITIES.register
@dataclass(frozen=True)
class ReplayUpdate(Event):
    """Items were added to a replay, or their priorities changed."""

    shard_id: Natural
    """Which replay; 0 where there is one."""
    count: Natural
    """Items that were touched."""
    priority_stats: Mapping[str, float]
    """Least, mean and largest priority among them."""


class EventBus:
    """Delivers events to those who subscribed to their kind or to a base of it."""

    def __init__(self) -> None:
        self._subscriptions: dict[object, tuple[type[Event], Callable[[Any], None]]] = {}

    def subscribe(self, kind: type[V], handler: Callable[[V], None]) -> Callable[[], object]:
        """Call `handler` with every event of a kind; return the function that ends the subscription."""
        key = object()
        self._subscriptions[key] = (kind, handler)
        return lambda: self._subscriptions.pop(key, None)

    def publish(self, event: V) -> V:
        """Deliver an event; return it."""
        for kind, handler in tuple(self._subscriptions.values()):
            if isinstance(event, kind):
                handler(event)
        return event

    @property
    def wanted(self) -> bool:
        """Whether there are subscribers."""
        return bool(self._subscriptions)
