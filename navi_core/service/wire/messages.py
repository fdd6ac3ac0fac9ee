"""The messages of the wire, version 2.

Axes: B drones of a message, Az and El bins of a panorama, N numbers of an event. A message is checked when it is
built, so one that exists can be sent. SI units; `timestamp` is seconds since 1970, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, get_type_hints

import numpy as np

from navi_core.config.service import FARTHEST
from navi_core.errors import WireError
from navi_core.service.wire.kinds import Array, Flag, Kind, Number, Size, Sizes, Text, Whole

__all__ = [
    "MESSAGES",
    "MOST_STEP_ID",
    "OVERHEAD_SHAPE",
    "Action",
    "BatchStepRequest",
    "BatchStepResult",
    "DistanceMatrix",
    "Fault",
    "Message",
    "RobotPose",
    "StepRequest",
    "StepResult",
    "TelemetryEvent",
]

OVERHEAD_SHAPE = (256, 256, 3)
_MOST_PARTS = 4096
_MOST_SPEED = 3.4e38
"""Any that is finite: who flies clamps."""
_AS_THEY_ARE = frozenset((int, float, bool, str, np.ndarray))


Integer = Annotated[int, Whole()]
MOST_STEP_ID = 2**62
"""Step ids are less: the next one is a whole number, too."""
StepId = Annotated[int, Whole(most=MOST_STEP_ID)]
Real = Annotated[float, Number()]
Coordinate = Annotated[float, Number(most=FARTHEST)]
"""Of a pose; what is further away than any scene is no place."""
Boolean = Annotated[bool, Flag()]
String = Annotated[str, Text()]


class Message:
    """Base of the messages; subclasses are frozen dataclasses whose annotations name the fields' kinds."""

    _kinds: ClassVar[dict[type, dict[str, Kind]]] = {}

    def __post_init__(self) -> None:
        sizes: Sizes = {}
        # A frozen dataclass is written through its dictionary; the loop runs for every message on the wire.
        values = self.__dict__
        for name, kind in self.kinds().items():
            values[name] = kind.check(values[name], name, sizes)

    @classmethod
    def kinds(cls) -> dict[str, Kind]:
        """Return the kind of each field, in the order of the wire."""
        if cls not in cls._kinds:
            hints = get_type_hints(cls, include_extras=True).items()
            kinds = {
                name: [k for k in getattr(hint, "__metadata__", ()) if isinstance(k, Kind)] for name, hint in hints
            }
            cls._kinds[cls] = {name: found[0] for name, found in kinds.items() if found}
        return cls._kinds[cls]

    def to_map(self) -> dict[str, Any]:
        """Return the fields as plain values and arrays, nested messages as maps."""
        values = self.__dict__
        return {name: _plain(values[name]) for name in self.kinds()}

    @classmethod
    def from_map(cls, data: Any) -> Self:
        """Build the message from a received map.

        Raises:
            WireError: A field is missing, unknown, or of another kind.
        """
        if not isinstance(data, dict):
            raise WireError(f"{cls.__name__} is {type(data).__name__}, expected a map")
        if data.keys() != cls.kinds().keys():
            lacks = [name for name in cls.kinds() if name not in data]
            adds = [str(name)[:40] for name in data if name not in cls.kinds()]
            raise WireError(f"{cls.__name__}: fields missing: {lacks or 'none'}, unknown: {adds or 'none'}")
        return cls(**data)


class _Nested(Kind):
    """A message within a message."""

    def __init__(self, cls: type[Message]) -> None:
        self.cls = cls

    def check(self, value: Any, name: str, sizes: Sizes) -> Message:
        """Return the message."""
        return value if isinstance(value, self.cls) else self.cls.from_map(value)


class _Several(_Nested):
    """A list of messages of one type."""

    def check(self, value: Any, name: str, sizes: Sizes) -> Any:
        """Return a tuple of them."""
        if not isinstance(value, list | tuple) or len(value) > _MOST_PARTS:
            raise WireError(f"{name} is {type(value).__name__}, expected a list of at most {_MOST_PARTS}")
        return tuple(super(_Several, self).check(part, name, sizes) for part in value)


@dataclass(frozen=True, eq=False)
class RobotPose(Message):
    """Where a drone is."""

    x: Coordinate
    """World x [m]."""
    y: Coordinate
    """World y, up [m]."""
    z: Coordinate
    """World z [m]."""
    roll: Coordinate
    """[rad]; 0."""
    pitch: Coordinate
    """[rad]; 0."""
    yaw: Coordinate
    """[rad], 0 faces −z, counter-clockwise seen from above."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class DistanceMatrix(Message):
    """What one drone (B = 1) sees."""

    episode_id: Integer
    """Another one in every episode of a drone: at a change the recurrent state begins anew."""
    env_ids: Annotated[np.ndarray, Array("int32", "B")]
    """(B,) numbers of the drones."""
    matrix_shape: Annotated[tuple[int, int], Size()]
    """Az, El."""
    depth: Annotated[np.ndarray, Array("float32", "B", "Az", "El", most=10.0)]
    """Normalised: log1p(metres) / log1p(range); 1 where nothing was hit."""
    delta_depth: Annotated[np.ndarray, Array("float32", "B", "Az", "El")]
    """`depth` minus that of the decision before; zeros at the first of an episode."""
    semantic: Annotated[np.ndarray, Array("int32", "B", "Az", "El")]
    """Ids; 0 where nothing was hit."""
    valid_mask: Annotated[np.ndarray, Array("bool", "B", "Az", "El")]
    """Did the ray hit?"""
    overhead: Annotated[np.ndarray, Array("uint8", *OVERHEAD_SHAPE, absent=True)]
    """(256, 256, 3) RGB picture from above, or (0, 0, 3): not drawn."""
    robot_pose: Annotated[RobotPose, _Nested(RobotPose)]
    step_id: StepId
    """Of the decision that led here."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class Action(Message):
    """What drones are to do: shares of the limits, −1 to 1; the environment clamps."""

    env_ids: Annotated[np.ndarray, Array("int32", "B")]
    """(B,) numbers of the drones."""
    linear_velocity: Annotated[np.ndarray, Array("float32", "B", 3, most=_MOST_SPEED)]
    """(B, 3) forward, vertical, lateral."""
    angular_velocity: Annotated[np.ndarray, Array("float32", "B", 3, most=_MOST_SPEED)]
    """(B, 3); yaw is the last, the others are not used."""
    policy_id: String
    """Who decided."""
    step_id: StepId
    """Of the decision."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class StepRequest(Message):
    """Fly one decision of one drone."""

    action: Annotated[Action, _Nested(Action)]
    """Of one drone (B = 1)."""
    step_id: StepId
    """Of the decision; one that repeats the drone's last is answered again and flies nothing."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class StepResult(Message):
    """What came of it."""

    step_id: StepId
    env_id: Integer
    episode_id: Integer
    """Of the episode that the decision belongs to."""
    done: Boolean
    """The episode ended for good."""
    truncated: Boolean
    """The episode was cut: time limit or void."""
    reward: Annotated[float, Number(most=1e12)]
    episode_return: Real
    """Sum of the rewards of the episode so far."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class BatchStepRequest(Message):
    """Fly one decision of several drones."""

    actions: Annotated[tuple[Action, ...], _Several(Action)]
    """Each drone at most once."""
    step_id: StepId
    """Of the batch; each action has its own."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class BatchStepResult(Message):
    """What came of it, observations included."""

    results: Annotated[tuple[StepResult, ...], _Several(StepResult)]
    observations: Annotated[tuple[DistanceMatrix, ...], _Several(DistanceMatrix)]
    """After the decision; of the next episode where one ended."""


@dataclass(frozen=True, eq=False)
class TelemetryEvent(Message):
    """Numbers about what goes on."""

    event_type: String
    """For instance `actor.inference.perf`; docs/WIRE.md lists them with the meaning of their numbers."""
    episode_id: Integer
    env_id: Integer
    step_id: StepId
    payload: Annotated[np.ndarray, Array("float32", "N")]
    timestamp: Real


@dataclass(frozen=True, eq=False)
class Fault(Message):
    """The answer to a request that cannot be served."""

    code: String
    """`malformed`, `version`, `unknown_env` or `busy`."""
    message: String
    """For people: what is wrong, what is allowed."""
    timestamp: Real


MESSAGES: dict[str, type[Message]] = {
    cls.__name__: cls
    for cls in (
        RobotPose, DistanceMatrix, Action, StepRequest, StepResult, BatchStepRequest, BatchStepResult,
        TelemetryEvent, Fault,
    )
}  # fmt: skip
"""By the name that `_type` gives."""


def _plain(value: Any) -> Any:
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, Message):
        return value.to_map()
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value
