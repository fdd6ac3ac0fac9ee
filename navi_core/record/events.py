"""Event bus of runs: typed events, their subscribers, custom callbacks, and the rows of the table `events`.

An entity is a typed, immutable, versioned dataclass that validates its values and serialises to plain data. Events are
entities. A run announces through its bus alone. Delivery is synchronous, in the order of subscription, without a queue.
The exception of a subscriber is logged once and changes nothing.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeVar, get_origin, get_type_hints

from navi_core.config.registry import PartNames, Parts, load_plugins
from navi_core.errors import ConfigError
from navi_core.record.metric_log import MetricLog, utc_time

V = TypeVar("V", bound="Event")
_LOG = logging.getLogger("navi.events")

NotNegative = Annotated[float, (0.0, math.inf)]
Fraction = Annotated[float, (0.0, 1.0)]
Natural = Annotated[int, (0, math.inf)]
Positive = Annotated[int, (1, math.inf)]
"""Annotated number types of entity fields with their bounds; NaN (unknown) is within all bounds."""

ENTITIES: Parts[type[Entity]] = Parts(
    PartNames(
        "entity",
        (
            "event", "rollout_collected", "update_made", "evaluation_made", "checkpoint_saved", "parameter_sync",
            "replay_update", "replaced", "adaptation_applied", "early_stop_triggered", "agm_config", "agm_metrics",
            "smoothing_decision", "early_stop_decision", "population_metrics",
        ),
    )
)  # fmt: skip
"""Registry of entity classes by kind; a subclass of `Entity` enters itself."""


@dataclass(frozen=True)
class Entity:
    """Base dataclass of all entities; validates that numbers are finite and within bounds, and texts not empty.

    Attributes:
        kind: Name of the class in small letters with underscores.
        version: Schema version of this kind; incremented when its fields change.
    """

    kind: ClassVar[str] = "entity"
    version: ClassVar[int] = 1
    _bounds: ClassVar[dict[str, tuple[float, float]]] = {}

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        cls._bounds = {name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated}
        if "kind" not in vars(cls):
            cls.kind = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
        ENTITIES.register(cls.kind, cls)

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
        """Serialise to plain data, with the kind and its version; entities within it likewise."""
        values = {item.name: _plain(getattr(self, item.name)) for item in fields(self)}
        return {"kind": self.kind, "version": self.version, **values}

    def _require(self, holds: bool, name: str, allowed: str) -> None:
        if not holds:
            raise ConfigError(f"{type(self).__name__}.{name} is {getattr(self, name)!r}; allowed: {allowed}")


def _plain(value: object) -> object:
    if isinstance(value, Entity):
        return value.as_dict()
    return dict(value) if isinstance(value, Mapping) else value


def read_entity(data: Mapping[str, Any]) -> Entity:
    """Deserialise an entity from plain data, that of `Entity.as_dict`.

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
    inner = {key: read_entity(x) for key, x in values.items() if isinstance(x, Mapping) and "version" in x}
    return kind(**values | inner)


@dataclass(frozen=True)
class Event(Entity):
    """Base dataclass of all events.

    Attributes:
        frequent: Whether a run publishes so many that the table `events` keeps the latest one of each checkpoint.
    """

    frequent: ClassVar[bool] = False

    @property
    def part(self) -> str:
        """Part of a frequent kind that is counted by itself."""
        return ""

    subject: str
    """Run or service that the event is of."""
    step: Natural
    """Decisions so far, summed over rows; of a learning service, the number of the newest weights."""
    timestamp: float = field(default_factory=time.time, kw_only=True)
    """Seconds since 1970."""

    @property
    def detail(self) -> str | None:
        """Description in words; None of events that only count."""
        return None


@dataclass(frozen=True)
class RolloutCollected(Event):
    """Event: a rollout was collected for training."""

    frequent: ClassVar[bool] = True

    decisions: Natural
    """Decisions of the rollout, summed over rows."""
    reward_mean: float
    """Mean shaped reward of a decision."""


_SHOWN = (
    ("reward_ema", "reward_ema", "+.4f"),
    ("episode_return", "return", ".2f"),
    ("nll", "NLL", ".3f"),
    ("validation_nll", "held out", ".3f"),
    ("approx_kl", "kl", ".4f"),
    ("explained_variance", "ev", ".2f"),
    ("sps", "steps/s", ",.0f"),
)
"""Metrics of the progress line: name, label, format."""


@dataclass(frozen=True)
class UpdateMade(Event):
    """Event: the weights were updated; the progress of a run. In Ape-X it is published about every second."""

    frequent: ClassVar[bool] = True

    updates: Natural
    """Updates so far; in behaviour cloning, epochs."""
    total_steps: int | None
    """Decisions at which the run ends; None if it ends when stopped."""
    metrics: Mapping[str, float]
    """Metrics of the update."""
    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Time of each stage of the update by phase [ms]."""

    def line(self) -> str:
        """Format the progress as one line for the console."""
        goal = f"/{self.total_steps:,}" if self.total_steps is not None else ""
        return f"step {self.step:,}{goal}  {self.figures()}".rstrip()

    def figures(self, most: int | None = None) -> str:
        """Format the metrics of the progress line, or only the first ones."""
        m = self.metrics
        return "  ".join([f"{label} {m[name]:{form}}" for name, label, form in _SHOWN if name in m][:most])


@dataclass(frozen=True)
class EvaluationMade(Event):
    """Event: a run was evaluated, by its early stopping and adaptation or by a shadow flight."""

    evaluation: str
    """Evaluation in words: progress, or shadow flight."""
    metrics: Mapping[str, float]
    """Measurements."""


@dataclass(frozen=True)
class CheckpointSaved(Event):
    """Event: a checkpoint is on disk."""

    path: str
    """Its file."""


@dataclass(frozen=True)
class ParameterSync(Event):
    """Event: a learner published weights to the actors, or a learning service put others into use."""

    version: ClassVar[int] = 2
    frequent: ClassVar[bool] = True

    learner_id: Natural
    """Number of the learner."""
    gradient_steps: Natural
    """Gradient steps of the learner so far."""
    checksum: str
    """Hash of the weights."""
    before: Natural
    """Number of the weights in use before; 0 for none."""
    model_version: Natural
    """Number of the publication."""


@dataclass(frozen=True)
class ReplayUpdate(Event):
    """Event: items were added to a replay buffer, or their priorities updated."""

    version: ClassVar[int] = 2
    frequent: ClassVar[bool] = True

    shard_id: Natural
    """Number of the replay shard; 0 if there is only one."""
    change: str
    """Change of the items: added or priorities."""
    count: Natural
    """Number of items added or updated."""
    before: Natural
    """Items in the buffer before."""
    after: Natural
    """Items in the buffer afterwards."""
    priority_stats: Mapping[str, float] = field(default_factory=dict)
    """Least, mean and largest priority among them, where this process knows them."""

    @property
    def part(self) -> str:
        """Change and shard: additions and new priorities are counted apart, shard by shard."""
        return f"{self.change} {self.shard_id}"


@dataclass(frozen=True)
class PartReplaced(Event):
    """Event: an actor or a replay shard died and was replaced."""

    kind: ClassVar[str] = "replaced"

    cause: str
    """Part and cause in words."""

    @property
    def detail(self) -> str:
        """Part and cause."""
        return self.cause


Callback = Callable[[Event], object]
"""Subscriber of all events."""

CALLBACKS: Parts[Callback] = Parts(
    PartNames("callback", ()),
    """Enter a callback, which every run and learning service then calls with each `Event`; or as
    `@register_callback("mine")`. Its exception is logged once and changes nothing.
    """,
)
"""Registry of custom subscribers by name."""
register_callback = CALLBACKS.register


class EventBus:
    """Synchronous publish/subscribe bus: delivers an event to the subscribers of its class or a base class.

    Args:
        handlers: First subscribers, by event class.
        strict: Raise the exception of a subscriber, for benchmarks that measure in one.

    Attributes:
        subject: Run or service that publishes; a run sets it.
    """

    def __init__(
        self, handlers: Mapping[type[Event], Callable[[Any], object]] | None = None, *, strict: bool = False
    ) -> None:
        self.subject = "run"
        self.progress: Callable[[int, int | None], object] | None = None
        """Called between two events with decisions done and in all, for a progress bar; no row keeps it."""
        self._strict = strict
        self._subscriptions: dict[object, tuple[type[Event], Callable[[Any], object]]] = {}
        self._failed: set[object] = set()
        for kind, handler in (handlers or {}).items():
            self.subscribe(kind, handler)

    def subscribe(self, kind: type[V], handler: Callable[[V], object]) -> Callable[[], object]:
        """Subscribe `handler` to an event class; return a function that unsubscribes it."""
        key = object()
        self._subscriptions[key] = (kind, handler)
        return lambda: self._subscriptions.pop(key, None)

    def publish(self, event: Event) -> None:
        """Publish an event to its subscribers."""
        for key, (kind, handler) in tuple(self._subscriptions.items()):
            if not isinstance(event, kind):
                continue
            try:
                handler(event)
            except Exception:  # a custom subscriber may raise anything
                if self._strict:
                    raise
                if key not in self._failed:
                    self._failed.add(key)
                    _LOG.exception("a subscriber of %s failed; its later failures are not logged", event.kind)

    @property
    def wanted(self) -> bool:
        """Whether the bus has subscribers."""
        return bool(self._subscriptions)

    @contextmanager
    def recorded(self, rows: EventRows | None) -> Iterator[None]:
        """Context manager that subscribes the custom callbacks and, if given, the rows of the table `events`."""
        load_plugins()
        handlers: list[Callback] = [*CALLBACKS.values(), *([] if rows is None else [rows.add])]
        leave = [self.subscribe(Event, handler) for handler in handlers]
        try:
            yield
        finally:
            for end in leave:
                end()


class EventRows:
    """Subscriber that writes events to the table `events` with each checkpoint and at the end.

    A checkpoint holds the rows up to it, and a resumed run writes them again. So a kill neither loses nor doubles a
    row. Of frequent kinds the latest event is written, with the number of events that it stands for.

    Args:
        log: Metric log that receives the rows.
    """

    def __init__(self, log: MetricLog) -> None:
        self._log = log
        self._rows: list[dict[str, Any]] = []
        self._latest: dict[tuple[str, ...], tuple[Event, int]] = {}
        self._lock = threading.RLock()

    def add(self, event: Event) -> None:
        """Keep an event until the next checkpoint; that of a checkpoint is added by `pending`."""
        with self._lock:
            if event.frequent:
                key = (event.kind, event.part)
                self._latest[key] = (event, self._latest.get(key, (event, 0))[1] + 1)
            elif not isinstance(event, CheckpointSaved):
                self._rows.append(event_row(event))

    def pending(self, *events: Event) -> list[dict[str, Any]]:
        """Return the rows since the last `write`, and those of further events, as plain data."""
        with self._lock:
            latest = [event_row(event) | {"events": count} for event, count in self._latest.values()]
            return [*self._rows, *latest, *map(event_row, events)]

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Add rows of `pending` to the metric log, and begin anew."""
        with self._lock:
            self._rows, self._latest = [], {}
        for row in rows:
            self._log.row("events", row)

    def write_pending(self) -> None:
        """Write the rows since the last `write`; events of other threads are in these or in the next."""
        with self._lock:
            self.write(self.pending())


def event_row(event: Event) -> dict[str, Any]:
    """Return an event as a row of the table `events`; its own fields go to the column `extra`."""
    values = event.as_dict()
    kind, moment = values.pop("kind"), values.pop("timestamp")
    values.pop("subject")
    return {"event": kind, "detail": event.detail, "recorded_at": utc_time(moment), **values}
