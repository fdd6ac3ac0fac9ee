"""Events and the bus that delivers them to subscribers.

A subscriber that raises is its owner's fault and is not hidden. Nothing is queued: an event is delivered where it
happens, in the order of subscription.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from navi_core.learn.entities import ENTITIES, AGMConfig, EarlyStopDecision, Entity


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

    learner_id: int
    """Which learner."""
    step: int
    """Its gradient steps."""
    checksum: str
    """Hash of the weights."""
    model_version: int
    """Number of the publication."""

    def check(self) -> None:
        """Counts are not negative, and there is a checksum."""
        self._not_negative("learner_id", "step", "model_version")
        self._require(bool(self.checksum), "checksum", "a hash")


@ENTITIES.register
@dataclass(frozen=True)
class ReplayUpdate(Event):
    """Items were added to a replay, or their priorities changed."""

    shard_id: int
    """Which replay; 0 where there is one."""
    count: int
    """Items that were touched."""
    priority_stats: Mapping[str, float]
    """Least, mean and largest priority among them."""

    def check(self) -> None:
        """Counts are not negative."""
        self._not_negative("shard_id", "count")
        object.__setattr__(self, "priority_stats", MappingProxyType(dict(self.priority_stats)))


V = TypeVar("V", bound=Event)


class EventBus:
    """Delivers events to those who subscribed to their kind or to a base of it."""

    def __init__(self) -> None:
        self._subscriptions: list[tuple[type[Event], Callable[[Event], None]]] = []

    def subscribe(self, kind: type[V], handler: Callable[[V], None]) -> Callable[[], None]:
        """Call `handler` with every event of a kind; return the function that ends the subscription."""
        entry: tuple[type[Event], Callable[[Event], None]] = (kind, handler)  # type: ignore[assignment]
        self._subscriptions.append(entry)

        def end() -> None:
            if entry in self._subscriptions:
                self._subscriptions.remove(entry)

        return end

    def publish(self, event: V) -> V:
        """Deliver an event; return it."""
        for kind, handler in tuple(self._subscriptions):
            if isinstance(event, kind):
                handler(event)
        return event

    @property
    def wanted(self) -> bool:
        """Whether there are subscribers."""
        return bool(self._subscriptions)
