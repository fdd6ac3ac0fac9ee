"""The messages of the wire, version 2, and the checks of their fields.

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
"""Lengths of the named axes of one message; the same name means the same length."""
Check = Callable[[object, str, Sizes], object]
"""Returns a value as the message holds it; takes the value, the field's name, and the named axes so far, which it adds
to. Raises `WireError` for a value of another kind."""

_MAX_TEXT = 1024
_MAX_WHOLE = 2**63
MOST = {"B": 4096, "Az": 4096, "El": 2048, "N": 65536}
"""Longest named axes."""


def whole(most: int = _MAX_WHOLE) -> Check:
    """Return the check of a whole number of 64 bits, of less than `most` in magnitude."""

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
    """Return the check of a finite number of at most `most` in magnitude."""

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
    """Check true or false."""
    if type(value) is bool:
        return value
    if not isinstance(value, np.bool_):
        raise WireError(f"{name} is {_describe(value)}, expected true or false")
    return bool(value)


def text(value: object, name: str, _: Sizes) -> str:
    """Check a short text."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise WireError(f"{name} is {_describe(value)}, expected text of at most {_MAX_TEXT} characters")
    return value


def size(value: object, name: str, sizes: Sizes) -> tuple[int, int]:
    """Check azimuth and elevation bins, a list of two; fixes both axes."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise WireError(f"{name} is {_describe(value)}, expected [azimuth bins, elevation bins]")
    azimuth, elevation = (int(_any_whole(part, name, sizes)) for part in value)  # type: ignore[call-overload]
    _same("Az", azimuth, name, sizes)
    _same("El", elevation, name, sizes)
    return azimuth, elevation


def array(dtype: str, *shape: int | str, absent: bool = False, most: float | None = None) -> Check:
    """Return the check of an array of one dtype.

    Args:
        dtype: Its name.
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
"""Any finite number: the environment clamps."""
_PLAIN_TYPES = frozenset((int, float, bool, str, np.ndarray))


Integer = Annotated[int, whole()]
MOST_STEP_ID = 2**62
"""Bound of step ids: the next one still fits into 64 bits."""
StepId = Annotated[int, whole(MOST_STEP_ID)]
Real = Annotated[float, number()]
Coordinate = Annotated[float, number(FARTHEST)]
"""Of a pose, within the largest scene."""
Boolean = Annotated[bool, boolean]
String = Annotated[str, text]


class Message:
    """Base of the messages; subclasses are frozen dataclasses whose annotations have the checks of the fields."""

    def __post_init__(self) -> None:
        sizes: Sizes = {}
        # A frozen dataclass is written through its dictionary; the loop runs for every message on the wire.
        values = self.__dict__
        for name, check in self.checks().items():
            values[name] = check(values[name], name, sizes)

    @classmethod
    @cache
    def checks(cls) -> dict[str, Check]:
        """Return the check of each field, in the order of the wire."""
        return {name: hint.__metadata__[0] for name, hint in get_type_hints(cls, include_extras=True).items()}

    def to_map(self) -> dict[str, object]:
        """Return the fields as plain values and arrays, nested messages as maps."""
        return {name: _plain(self.__dict__[name]) for name in self.checks()}

    @classmethod
    def from_map(cls, data: object) -> Self:
        """Build the message from a received map.

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
        """Check a message within a message."""
        return value if isinstance(value, cls) else cls.from_map(value)

    @classmethod
    def several(cls, value: object, name: str, sizes: Sizes) -> tuple[Self, ...]:
        """Check a list of messages of this type."""
        if not isinstance(value, list | tuple) or len(value) > _MAX_PARTS:
            raise WireError(f"{name} is {type(value).__name__}, expected a list of at most {_MAX_PARTS}")
        return tuple(cls.nested(part, name, sizes) for part in value)


@dataclass(frozen=True, eq=False)
class RobotPose(Message):
    """Pose of a drone."""

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
    """Observation of one drone (B = 1)."""

    episode_id: Integer
    """New in every episode of a drone: at a change the recurrent state begins anew."""
    env_ids: Annotated[np.ndarray, array("int32", "B")]
    """(B,) numbers of the drones."""
    matrix_shape: Annotated[tuple[int, int], size]
    """Az, El."""
    depth: Annotated[np.ndarray, array("float32", "B", "Az", "El", most=10.0)]
    """Normalised: log1p(metres) / log1p(range); 1 without a hit."""
    delta_depth: Annotated[np.ndarray, array("float32", "B", "Az", "El")]
    """Change of `depth` since the last decision; zeros at the first of an episode."""
    semantic: Annotated[np.ndarray, array("int32", "B", "Az", "El")]
    """Semantic ids; 0 without a hit."""
    valid_mask: Annotated[np.ndarray, array("bool", "B", "Az", "El")]
    """Whether the ray hit."""
    overhead: Annotated[np.ndarray, array("uint8", *OVERHEAD_SHAPE, absent=True)]
    """(256, 256, 3) RGB picture from above, or (0, 0, 3): not drawn."""
    robot_pose: Annotated[RobotPose, RobotPose.nested]
    step_id: StepId
    """Of the decision that led here."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class Action(Message):
    """Actions of drones: shares of the limits, −1 to 1; the environment clamps."""

    env_ids: Annotated[np.ndarray, array("int32", "B")]
    """(B,) numbers of the drones."""
    linear_velocity: Annotated[np.ndarray, array("float32", "B", 3, most=_MAX_SPEED)]
    """(B, 3) forward, vertical, lateral."""
    angular_velocity: Annotated[np.ndarray, array("float32", "B", 3, most=_MAX_SPEED)]
    """(B, 3); yaw is the last, the others are not used."""
    policy_id: String
    """Name of the policy."""
    step_id: StepId
    """Of the decision."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class StepRequest(Message):
    """Request for one decision of one drone."""

    action: Annotated[Action, Action.nested]
    """Of one drone (B = 1)."""
    step_id: StepId
    """Of the decision; a repeated one is answered again and not flown."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class StepResult(Message):
    """Result of one decision."""

    step_id: StepId
    env_id: Integer
    episode_id: Integer
    """Of the episode that the decision belongs to."""
    done: Boolean
    """Whether the episode terminated."""
    truncated: Boolean
    """Whether the episode was truncated: time limit or void."""
    reward: Annotated[float, number(1e12)]
    episode_return: Real
    """Sum of the rewards of the episode so far."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class BatchStepRequest(Message):
    """Request for one decision of several drones."""

    actions: Annotated[tuple[Action, ...], Action.several]
    """Each drone at most once."""
    step_id: StepId
    """Of the batch; each action has its own."""
    timestamp: Real


@dataclass(frozen=True, eq=False)
class BatchStepResult(Message):
    """Results of a batch, with observations."""

    results: Annotated[tuple[StepResult, ...], StepResult.several]
    observations: Annotated[tuple[DistanceMatrix, ...], DistanceMatrix.several]
    """After the decision; of the next episode where one ended."""


@dataclass(frozen=True, eq=False)
class TelemetryEvent(Message):
    """Telemetry: a typed list of numbers."""

    event_type: String
    """For instance `actor.inference.perf`; docs/WIRE.md lists them with the meaning of their numbers."""
    episode_id: Integer
    env_id: Integer
    step_id: StepId
    payload: Annotated[np.ndarray, array("float32", "N")]
    timestamp: Real


@dataclass(frozen=True, eq=False)
class Fault(Message):
    """Answer to a request that cannot be served."""

    code: String
    """`malformed`, `version`, `unknown_env` or `busy`."""
    message: String
    """Text for people: what is wrong, what is allowed."""
    timestamp: Real


MESSAGES: dict[str, type[Message]] = {
    cls.__name__: cls
    for cls in (
        RobotPose, DistanceMatrix, Action, StepRequest, StepResult, BatchStepRequest, BatchStepResult,
        TelemetryEvent, Fault,
    )
}  # fmt: skip
"""By the name that `_type` gives."""


def _plain(value: object) -> object:
    if type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, Message):
        return value.to_map()
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value
