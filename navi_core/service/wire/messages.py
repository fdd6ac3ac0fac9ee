"""Message classes of the wire protocol, version 2, with field validators.

Axes: B drones of a message, Az and El bins of a panorama, N numbers of an event. A message is checked when it is
built, so one that exists can be sent. SI units; `timestamp` is seconds since 1970, UTC.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Self, get_type_hints

import numpy as np
import numpy.typing as npt

from navi_core.config.service import FARTHEST
from navi_core.errors import WireError

Sizes = dict[str, int]
"""Lengths of a message's named axes; the same name means the same length."""
Check = Callable[[object, str, Sizes], object]
"""Field validator: takes value, field name and the named axes so far (which it extends); returns the value to store.

Raises `WireError` for a value of another kind."""

_MAX_TEXT = 1024
_MAX_WHOLE = 2**63
MOST = {"B": 4096, "Az": 4096, "El": 2048, "N": 65536}
"""Upper limits of the named axes."""


def whole(most: int = _MAX_WHOLE) -> Check:
    """Build a validator of 64-bit integers below `most` in magnitude."""

    def check(value: object, name: str, _: Sizes) -> int:
        if type(value) is int and -most <= value < most:
            return value
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise WireError(f"{name} is {_describe(value)}, expected a whole number")
        if not -most <= value < most:
            raise WireError(f"{name} is {value}, expected a whole number of 64 bits, less than {most}")
        return int(value)

    return check


def number(most: float = 1e308) -> Check:
    """Build a validator of finite numbers of at most `most` in magnitude."""

    def check(value: object, name: str, _: Sizes) -> float:
        if type(value) is float and -most <= value <= most:
            return value
        if (
            not isinstance(value, int | float | np.integer | np.floating)
            or isinstance(value, bool)
            or not -1e308 <= value <= 1e308
        ):
            raise WireError(f"{name} is {_describe(value)}, expected a finite number")
        if not -most <= value <= most:
            raise WireError(f"{name} is {_describe(value)}, expected a number from {-most:g} to {most:g}")
        return float(value)

    return check


def boolean(value: object, name: str, _: Sizes) -> bool:
    """Validate a boolean."""
    if type(value) is bool:
        return value
    if not isinstance(value, np.bool_):
        raise WireError(f"{name} is {_describe(value)}, expected true or false")
    return bool(value)


def text(value: object, name: str, _: Sizes) -> str:
    """Validate a text of at most 1024 characters."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise WireError(f"{name} is {_describe(value)}, expected text of at most {_MAX_TEXT} characters")
    return value


def texts(value: object, name: str, sizes: Sizes) -> tuple[str, ...]:
    """Validate a list of texts, one for each of the N numbers of a message."""
    if not isinstance(value, list | tuple):
        raise WireError(f"{name} is {_describe(value)}, expected a list of texts")
    _same("N", len(value), name, sizes)
    return tuple(text(part, name, sizes) for part in value)


def size(value: object, name: str, sizes: Sizes) -> tuple[int, int]:
    """Validate a pair of azimuth and elevation bins; fixes both named axes."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise WireError(f"{name} is {_describe(value)}, expected [azimuth bins, elevation bins]")
    azimuth, elevation = (int(_any_whole(part, name, sizes)) for part in value)  # type: ignore[call-overload]
    _same("Az", azimuth, name, sizes)
    _same("El", elevation, name, sizes)
    return azimuth, elevation


def array(dtype: str, *shape: int | str, absent: bool = False, most: float | None = None) -> Check:
    """Build a validator of arrays of one dtype and shape.

    Args:
        dtype: Name of the dtype.
        shape: Axes: a length, or the name of one ("B", "Az", "El", "N").
        absent: Also accept an empty array (0, 0, …) for "not drawn".
        most: Largest magnitude; None also accepts non-finite numbers.
    """
    kind, axes = np.dtype(dtype), " × ".join(map(str, shape))

    def check(value: object, name: str, sizes: Sizes) -> npt.NDArray[np.generic]:
        if not isinstance(value, np.ndarray):
            raise WireError(f"{name} is {_describe(value)}, expected an array of {kind.name}")
        if value.dtype != kind or value.ndim != len(shape):
            raise WireError(f"{name} is {value.dtype.name} {value.shape}, expected {kind.name} ({axes})")
        if absent and value.size == 0:
            return value
        for axis, length in zip(shape, value.shape):
            if isinstance(axis, str):
                _same(axis, length, name, sizes)
            elif axis != length:
                raise WireError(f"{name} has shape {value.shape}, expected {axes}")
        # With NaN, minimum and maximum are NaN, and no comparison holds.
        if most is not None and value.size and not (value.min() >= -most and value.max() <= most):
            if not np.isfinite(value).all():
                raise WireError(f"{name} holds numbers that are not finite")
            raise WireError(f"{name} holds numbers beyond {most:g}")
        return value

    return check


_any_whole = whole()


def _same(axis: str, length: int, name: str, sizes: Sizes) -> None:
    if sizes.setdefault(axis, length) != length:
        raise WireError(f"{name}: axis {axis} is {length}, elsewhere in the message {sizes[axis]}")
    if not 0 <= length <= MOST[axis]:
        raise WireError(f"{name}: axis {axis} is {length}; allowed: 0 to {MOST[axis]}")


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.name} {value.shape}"
    if isinstance(value, Mapping | list | tuple | bytes):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value)[:60]


OVERHEAD_SHAPE = (256, 256, 3)
_MAX_PARTS = 4096
_MAX_SPEED = 3.4e38
"""Magnitude limit of commands: any finite float32; the environment clamps."""
_PLAIN_TYPES = frozenset((int, float, bool, str, np.ndarray))


Integer = Annotated[int, whole()]
MOST_STEP_ID = 2**62
"""Upper bound of step ids: the next one still fits into 64 bits."""
StepId = Annotated[int, whole(MOST_STEP_ID)]
Real = Annotated[float, number()]
Coordinate = Annotated[float, number(FARTHEST)]
"""Coordinate of a pose, bounded by the largest scene."""
Boolean = Annotated[bool, boolean]
String = Annotated[str, text]


class Message:
    """Base class of wire messages: subclasses are frozen dataclasses whose annotations hold field validators."""

    def __post_init__(self) -> None:
        sizes: Sizes = {}
        # A frozen dataclass is written through its dictionary; the loop runs for every message on the wire.
        values = self.__dict__
        for name, check in self.checks().items():
            values[name] = check(values[name], name, sizes)

    @classmethod
    @cache
    def checks(cls) -> dict[str, Check]:
        """Return the validator of each field by name, in serialisation order."""
        return {name: hint.__metadata__[0] for name, hint in get_type_hints(cls, include_extras=True).items()}

    def to_map(self) -> dict[str, object]:
        """Convert the message to a map of plain values and arrays, nested messages as maps."""
        return {name: _plain(self.__dict__[name]) for name in self.checks()}

    @classmethod
    def from_map(cls, data: object) -> Self:
        """Build and validate the message from a received map.

        Raises:
            WireError: A field is missing, unknown, or of another kind.
        """
        if not isinstance(data, dict):
            raise WireError(f"{cls.__name__} is {type(data).__name__}, expected a map")
        checks = cls.checks()
        if data.keys() != checks.keys():
            missing = [name for name in checks if name not in data]
            unknown = [str(name)[:40] for name in data if name not in checks]
            raise WireError(f"{cls.__name__}: fields missing: {missing or 'none'}, unknown: {unknown or 'none'}")
        return cls(**data)

    @classmethod
    def nested(cls, value: object, _name: str, _: Sizes) -> Self:
        """Validate a nested message."""
        return value if isinstance(value, cls) else cls.from_map(value)

    @classmethod
    def several(cls, value: object, name: str, sizes: Sizes) -> tuple[Self, ...]:
        """Validate a list of nested messages of this type."""
        if not isinstance(value, list | tuple) or len(value) > _MAX_PARTS:
            raise WireError(f"{name} is {type(value).__name__}, expected a list of at most {_MAX_PARTS}")
        return tuple(cls.nested(part, name, sizes) for part in value)


@dataclass(frozen=True, eq=False)
class RobotPose(Message):
    """Message part: pose of a drone in the world frame."""

    x: Coordinate
    """World x [m]."""
    y: Coordinate
    """World y, up [m]."""
    z: Coordinate
    """World z [m]."""
    roll: Coordinate
    """Roll [rad]; always 0."""
    pitch: Coordinate
    """Pitch [rad]; always 0."""
    yaw: Coordinate
    """Yaw [rad]: 0 faces −z, counter-clockwise seen from above."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class DistanceMatrix(Message):
    """Message: observation of one drone (B = 1) as a depth and semantic panorama."""

    episode_id: Integer
    """Episode number, new in every episode of a drone: at a change the recurrent state is reset."""
    env_ids: Annotated[np.ndarray, array("int32", "B")]
    """(B,) drone ids."""
    matrix_shape: Annotated[tuple[int, int], size]
    """Azimuth and elevation bins: Az, El."""
    depth: Annotated[np.ndarray, array("float32", "B", "Az", "El", most=10.0)]
    """(B, Az, El) normalised depth: log1p(metres) / log1p(range); 1 without a hit, 0 of a ray that was not measured."""
    delta_depth: Annotated[np.ndarray, array("float32", "B", "Az", "El")]
    """(B, Az, El) change of `depth` since the last decision; zeros at the first of an episode."""
    semantic: Annotated[np.ndarray, array("int32", "B", "Az", "El")]
    """(B, Az, El) semantic ids; 0 without a hit."""
    valid_mask: Annotated[np.ndarray, array("bool", "B", "Az", "El")]
    """(B, Az, El) valid mask: whether the ray hit a surface."""
    overhead: Annotated[np.ndarray, array("uint8", *OVERHEAD_SHAPE, absent=True)]
    """(256, 256, 3) RGB top-down map, or (0, 0, 3): not drawn."""
    robot_pose: Annotated[RobotPose, RobotPose.nested]
    step_id: StepId
    """Step id of the decision that led to this observation."""
    timestamp: Real
    """Time of the scan; a late one is as old as the timestamp of `robot_pose` is later."""


@dataclass(frozen=True, eq=False)
class Action(Message):
    """Message: actions of drones as fractions of the limits, −1 to 1; the environment clamps."""

    env_ids: Annotated[np.ndarray, array("int32", "B")]
    """(B,) drone ids."""
    linear_velocity: Annotated[np.ndarray, array("float32", "B", 3, most=_MAX_SPEED)]
    """(B, 3) velocity commands: forward, vertical, lateral."""
    angular_velocity: Annotated[np.ndarray, array("float32", "B", 3, most=_MAX_SPEED)]
    """(B, 3) rate commands; the last is yaw, the others are not used."""
    policy_id: String
    """Name of the policy that acted."""
    step_id: StepId
    """Step id of the decision."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class StepRequest(Message):
    """Message: request of one environment step of one drone."""

    action: Annotated[Action, Action.nested]
    """Action of one drone (B = 1)."""
    step_id: StepId
    """Step id of the decision; a repeated one is answered again and not executed."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class StepResult(Message):
    """Message: result of one environment step of one drone."""

    step_id: StepId
    env_id: Integer
    episode_id: Integer
    """Episode that the decision belongs to."""
    done: Boolean
    """Whether the episode terminated."""
    truncated: Boolean
    """Whether the episode was truncated: time limit or void."""
    reward: Annotated[float, number(1e12)]
    episode_return: Real
    """Return of the episode so far: sum of its rewards."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class BatchStepRequest(Message):
    """Message: request of one environment step of several drones."""

    actions: Annotated[tuple[Action, ...], Action.several]
    """Actions, each drone at most once."""
    step_id: StepId
    """Step id of the batch; each action has its own."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class BatchStepResult(Message):
    """Message: results of a batched environment step, with observations."""

    results: Annotated[tuple[StepResult, ...], StepResult.several]
    observations: Annotated[tuple[DistanceMatrix, ...], DistanceMatrix.several]
    """Observations after the decision; of the next episode where one ended."""


@dataclass(frozen=True, eq=False)
class DescribeRequest(Message):
    """Message: request of the environment's description."""

    timestamp: Real


@dataclass(frozen=True, eq=False)
class Description(Message):
    """Message: what a client has to know of an environment before it flies."""

    env_ids: Annotated[np.ndarray, array("int32", "B")]
    """(B,) ids of the environment's drones."""
    matrix_shape: Annotated[tuple[int, int], size]
    """Azimuth and elevation bins."""
    max_distance: Real
    """Range [m]."""
    limits: Annotated[np.ndarray, array("float32", 4)]
    """(4,) largest speeds: forward, vertical, lateral [m/s], yaw [rad/s]."""
    decision_hz: Real
    """Decisions per second [Hz]."""
    max_steps: Integer
    """Most decisions of an episode."""
    semantic_ids: Annotated[np.ndarray, array("int32", "N")]
    """(N,) semantic ids of the scenes."""
    semantic_names: Annotated[tuple[str, ...], texts]
    """Their names, in the same order."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class TelemetryEvent(Message):
    """Message: telemetry event with a typed vector of numbers."""

    event_type: String
    """Event type, for instance `actor.inference.perf`; docs/reference/wire.md has the meaning of the numbers."""
    episode_id: Integer
    env_id: Integer
    step_id: StepId
    payload: Annotated[np.ndarray, array("float32", "N")]
    timestamp: Real


@dataclass(frozen=True, eq=False)
class Fault(Message):
    """Message: error reply to a request that cannot be served."""

    code: String
    """Error code: `malformed`, `version`, `unknown_env` or `busy`."""
    message: String
    """Error message for people: what is wrong, what is allowed."""
    timestamp: Real


MESSAGES: dict[str, type[Message]] = {
    cls.__name__: cls
    for cls in (
        RobotPose, DistanceMatrix, Action, StepRequest, StepResult, BatchStepRequest, BatchStepResult,
        DescribeRequest, Description, TelemetryEvent, Fault,
    )
}  # fmt: skip
"""Message classes by the name in `_type`."""


def _plain(value: object) -> object:
    if type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, Message):
        return value.to_map()
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value
